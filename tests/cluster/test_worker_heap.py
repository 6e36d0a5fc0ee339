"""Test that Dask workers keep freed memory during a run, and restore their settings afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary

import pytest

from dml.cluster import worker_heap, worker_state
from dml.cluster.worker_state import Freight, WorkerState
from dml.exec.memory import memory_meter

DASKS = {"MALLOC_TRIM_THRESHOLD_": worker_heap.OF_DASK}
GLIBC = hasattr(memory_meter.LIBRARY, "mallopt") and hasattr(memory_meter.LIBRARY, "malloc_trim")
MADE = """
import json, resource
import numpy as np
from dml.cluster import worker_heap
from dml.exec.memory.memory_meter import resident_bytes

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(40):
        np.full(5_000_000, number, "u1")
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def size():
    held = [np.ones(1_000_000, "u1") for _ in range(40)]
    del held
    return resident_bytes()

found = [(faults(), size())]
worker_heap.keep()
found.append((faults(), size()))
worker_heap.let_go()
found.append((faults(), size()))
print(json.dumps(found))
"""


def made(**environment: str) -> Any:
    """Page faults of forty large arrays and the size afterwards: at first, kept, let go."""
    usual = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    command = [sys.executable, "-c", MADE]
    done = subprocess.run(
        command, env={**usual, **environment}, capture_output=True, check=True, text=True
    )
    return json.loads(done.stdout)


@pytest.mark.law
@pytest.mark.skipif(not GLIBC, reason="another C library")
def test_arrays_are_not_faulted_in_again_and_again() -> None:
    (before, small), (kept, _), (after, again) = made(**DASKS)
    assert kept < before / 5
    assert after > before / 2
    assert again < small + (20 << 20)


@pytest.mark.law
@pytest.mark.skipif(not GLIBC, reason="another C library")
def test_what_somebody_has_chosen_stays() -> None:
    (before, _), (kept, _), (after, _) = made(MALLOC_TRIM_THRESHOLD_="65537")
    assert before / 2 < kept < before * 2
    assert before / 2 < after < before * 2


@pytest.mark.parametrize(
    "environment", [{}, {"MALLOC_TRIM_THRESHOLD_": "1"}, {**DASKS, "MALLOC_MMAP_THRESHOLD_": "9"}]
)
def test_nothing_is_set_where_dask_has_not_set_it(environment: dict[str, str]) -> None:
    called: list[Any] = []
    library = SimpleNamespace(mallopt=lambda *args: called.append(args))
    usual = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    with (
        patch.dict(os.environ, {**usual, **environment}, clear=True),
        patch.object(worker_heap, "LIBRARY", library),
    ):
        worker_heap.keep()
        worker_heap.let_go()
        assert not called
        os.environ |= DASKS
        os.environ.pop("MALLOC_MMAP_THRESHOLD_", None)
        worker_heap.keep()
        assert called == [
            (worker_heap.TRIM, worker_heap.KEPT),
            (worker_heap.MMAP, worker_heap.WHOLE),
        ]


def test_it_is_kept_as_long_as_somebody_has_a_seat() -> None:
    told: list[str] = []
    ways = SimpleNamespace(keep=lambda: told.append("keep"), let_go=lambda: told.append("let go"))
    with (
        patch.object(worker_state, "worker_heap", ways),
        patch.object(worker_state, "_DESKS", WeakValueDictionary()),
    ):
        one, other = (WorkerState(Freight(name, b"job", ())) for name in ("one", "other"))
        del one
        assert told == ["keep", "keep"]
        del other
        assert told == ["keep", "keep", "let go"]
