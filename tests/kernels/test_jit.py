"""This file tests the kernel cache: once compiled, always loaded; broken, never in the way."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dml.kernels import jit
from dml.kernels.codegen import source_of
from dml.kernels.compile_worker import compile_once, main
from dml.kernels.fuse import Tiers
from dml.kernels.fused import Fused
from dml.kernels.jit import KernelCache, publish, uncollected
from dml.kernels.program import Program, Step
from dml.kernels.vec import Vec

ADD = Program(("i8",), (Step("add", (0, 0), "i8"),), (1,))
BROKEN = "def run(:\n"


@pytest.mark.law
def test_numba_is_not_imported_before_a_kernel_is_loaded() -> None:
    check = "import sys, dml.kernels.fuse; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_first_publisher_wins(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    publish(path, "one")
    before = path.stat().st_mtime_ns
    publish(path, "two")
    assert (path.read_text(), path.stat().st_mtime_ns) == ("one", before)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_kernel_is_compiled_once_and_then_loaded(tmp_path: Path) -> None:
    (source,) = Fused(ADD).sources([Vec(np.arange(3))])
    first = KernelCache(tmp_path)
    first.request([(source.name, source.text)])
    assert first.wait(source.name) is not None
    compiled = {path for path in first.directory.rglob("*") if path.suffix in (".nbi", ".nbc")}
    assert compiled
    stamps = {path: path.stat().st_mtime_ns for path in compiled}
    again = KernelCache(tmp_path)
    again.request([(source.name, source.text)])
    assert again.wait(source.name) is not None
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    # a second worker finds the work done
    compile_once(first.directory, source.name)
    assert main([str(first.directory), source.name]) == 0


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.request([("kbroken", BROKEN)])
    assert cache.wait("kbroken") is None
    assert "SyntaxError" in cache.failures["kbroken"]


def test_without_a_helper_numpy_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    tiers = Tiers(tmp_path, "compiled")
    result = tiers.run(ADD, [Vec(np.arange(3))], 3)
    assert isinstance(result.outputs[0], Vec)
    assert result.outputs[0].values.tolist() == [0, 2, 4]
    assert tiers.compile_failures == 1
    assert (tiers.counts.numpy, tiers.counts.compiled) == (1, 0)


def test_names_depend_on_the_text(tmp_path: Path) -> None:
    (call,) = Fused(ADD).calls
    dense = source_of(call.shape, nullable=False)
    assert dense.name == source_of(call.shape, nullable=False).name
    assert dense.name != source_of(call.shape, nullable=True).name


def test_a_machine_has_one_name() -> None:
    assert jit.machine() == jit.machine()
    assert len(jit.machine()) == 16


@pytest.fixture
def thawed() -> Iterator[None]:
    """The collector as a program has it: the suite keeps from it what it has imported."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.law
@pytest.mark.usefixtures("thawed")
def test_nothing_is_collected_while_kernels_are_loaded() -> None:
    passes: list[str] = []
    here = threading.get_ident()

    def seen(phase: str, info: dict[str, int]) -> None:
        del info
        if threading.get_ident() == here:  # others, of earlier tests, may ask for one
            passes.append(phase)

    assert gc.isenabled()
    gc.collect()
    gc.callbacks.append(seen)
    try:
        with uncollected():
            made = [[i] for i in range(100_000)]
            assert not passes
    finally:
        gc.callbacks.remove(seen)
    # nor is what is new looked at as soon as that ends
    young = sum(len(gc.get_objects(generation)) for generation in (0, 1))
    assert young < len(made) // 2
    assert gc.isenabled()


@pytest.mark.law
def test_who_keeps_objects_from_the_collector_is_left_alone() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    # as the suite does
    assert gc.get_freeze_count()
    with uncollected():
        assert gc.isenabled()
    assert gc.get_freeze_count()


@pytest.mark.usefixtures("thawed")
def test_the_collector_goes_on_after_a_failure() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()
