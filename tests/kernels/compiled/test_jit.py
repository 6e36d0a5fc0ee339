"""Test the kernel cache: kernels are compiled once, and failures never stop a run."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.base.ownership import is_own, make_folders
from dml.kernels.compiled import jit
from dml.kernels.compiled.codegen import source_of
from dml.kernels.compiled.compile_worker import compile_once, main
from dml.kernels.compiled.fused_program import Fused
from dml.kernels.compiled.jit import KernelCache, publish, uncollected
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.program import Program, Step
from dml.kernels.vec import Vec

ADD = Program(("i8",), (Step("add", (0, 0), "i8"),), (1,))
BROKEN = "def run(:\n"


@pytest.mark.law
def test_numba_is_not_imported_before_a_kernel_is_loaded() -> None:
    check = "import sys, dml.kernels.compiled.tier_choice; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_first_publisher_wins(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    publish(path, "one")
    before = path.stat().st_mtime_ns
    publish(path, "two")
    assert (path.read_text(), path.stat().st_mtime_ns) == ("one", before)
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def unmasked() -> Iterator[None]:
    """A umask that leaves everything open to all."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.slow
@pytest.mark.usefixtures("unmasked")
def test_a_kernel_is_compiled_once_and_then_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numba").mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))  # of whoever may write there
    (source,) = Fused(ADD).sources([Vec(np.arange(3))])
    first = KernelCache(tmp_path)
    first.request([(source.name, source.text)])
    assert first.wait(source.name) is not None
    compiled = {path for path in first.directory.rglob("*") if path.suffix in (".nbi", ".nbc")}
    assert compiled
    assert not list((tmp_path / "numba").iterdir())
    assert all(map(is_own, first.directory.rglob("*")))
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


PLANTED = """
open({proof!r}, "w").close()
def run(*_):
    pass
"""


def opened_up(path: Path) -> None:
    path.chmod(0o666)


def given_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, 12345, 12345)


def made_a_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_suffix(".real")))


def in_an_open_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def kept(path: Path) -> None:
    del path


@pytest.mark.parametrize("named", ["kernel.py", "kernel.done", "__pycache__/kernel.run-1.nbi"])
@pytest.mark.parametrize("done", [opened_up, given_away, made_a_link, in_an_open_folder, kept])
def test_a_kernel_that_others_could_have_written_is_never_executed(
    named: str, done: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))  # nothing is compiled anew
    proof, cache = tmp_path / "executed", KernelCache(tmp_path)
    make_folders(cache.directory / "__pycache__")
    for name in ("kernel.done", "kernel.py", "__pycache__/kernel.run-1.nbi"):
        (cache.directory / name).write_text(PLANTED.format(proof=str(proof)))
        (cache.directory / name).chmod(0o600)
    done(cache.directory / named)
    own = done is kept
    assert cache.is_compiled("kernel") is own
    cache.request([("kernel", BROKEN)])
    assert (cache.wait("kernel") is not None) is own
    assert proof.exists() is own


@pytest.mark.parametrize("bits", [0o777, 0o770])
def test_kernels_lie_elsewhere_where_others_could_swap_folders(tmp_path: Path, bits: int) -> None:
    tmp_path.chmod(bits)
    found = KernelCache(tmp_path).directory.parent
    assert not found.is_relative_to(tmp_path.resolve())
    assert is_own(found)


def test_without_any_folder_of_ones_own_numpy_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    tiers = KernelTiers(tmp_path, "compiled")
    result = tiers.run(ADD, [Vec(np.arange(3))], 3)
    assert isinstance(result.outputs[0], Vec)
    assert not tiers.cache.is_compiled("kernel")
    assert "CacheError" in next(iter(tiers.cache.failures.values()))


def test_without_a_helper_numpy_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    tiers = KernelTiers(tmp_path, "compiled")
    result = tiers.run(ADD, [Vec(np.arange(3))], 3)
    assert isinstance(result.outputs[0], Vec)
    assert result.outputs[0].values.tolist() == [0, 2, 4]
    assert len(tiers.cache.failures) == 1
    assert (tiers.counts.numpy, tiers.counts.compiled) == (1, 0)


def test_without_threads_numpy_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: object) -> None:
        raise RuntimeError("can't start new thread")

    cache = KernelCache(tmp_path)
    with monkeypatch.context() as limits:
        limits.setattr("threading.Thread.start", failing)
        cache.request([("k1", "")])
    assert cache.wait("k1") is None
    assert "thread" in cache.failures["k1"]
    cache.request([("k2", "import nothing_like_this")])
    assert cache.wait("k2") is None


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


def test_the_process_that_compiles_imports_the_dml_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where dml is not installed, the folder that it lies in is all that there is."""
    seen: list[str] = []

    def started(_command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        seen.extend(options["env"]["PYTHONPATH"].split(os.pathsep))
        return subprocess.CompletedProcess([], 0, b"", b"")

    cache = KernelCache(tmp_path)
    assert cache.directory.name  # by the processor, for which Python may start a process once
    monkeypatch.setattr(subprocess, "run", started)
    cache._make({"k": BROKEN})
    assert (Path(seen[0]) / "dml" / "__init__.py").samefile(dml.__file__)
