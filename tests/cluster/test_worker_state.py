"""Test the state of a run on a worker (its seat): its release at any moment leaves nothing."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pytest
from distributed.protocol import dumps, loads, to_serialize

from dml.cluster import worker_state
from dml.cluster.worker_state import Freight, WorkerState
from dml.exec.process.task_runner import TaskRunner

SOON_S = 60.0  # only a hang takes so long


@pytest.mark.law
def test_a_seat_that_is_collected_while_another_is_taken_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[Any] = []

    def desk() -> TaskRunner:
        gc.collect()  # it may begin wherever something is made
        return TaskRunner()

    def take() -> None:
        knot: list[Any] = [WorkerState(Freight("first", b"job", ()))]
        knot.append(knot)
        del knot
        monkeypatch.setattr(worker_state, "TaskRunner", desk)
        WorkerState(Freight("second", b"job", ()))

    monkeypatch.setattr(worker_state, "_left", closed.append)
    worker = threading.Thread(target=take, daemon=True)
    gc.disable()
    try:
        worker.start()
        worker.join(SOON_S)
    finally:
        gc.enable()
    assert not worker.is_alive()
    assert closed == [{}, {}]


BUFFERS = {
    "arrow": pa.py_buffer,
    "bytes": bytes,
    "bytearray": bytearray,
    "view": memoryview,
    "sent on": lambda data: pickle.PickleBuffer(pa.py_buffer(data)),
    "array": lambda data: np.frombuffer(data, np.int8) if data else np.empty(0, np.int8),
}


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("size", [0, 5, 5000])
def test_dask_makes_no_view_of_a_view_of_what_a_job_brings(kind: str, size: int) -> None:
    """In a garbage cycle, Python 3.11 would end with a fault: CPython's issue 77894."""
    data = bytes(range(250)) * 20
    given = BUFFERS[kind](data[:size])
    frames = dumps({"x": to_serialize(Freight("run", b"job", (given,)))})
    views = [each for each in frames if isinstance(each, memoryview)]
    assert not [each for each in views if isinstance(each.obj, memoryview)]
    (back,) = loads(frames)["x"].buffers
    assert bytes(memoryview(back)) == data[:size]


def test_work_does_not_see_the_span_of_its_task() -> None:
    span = {"span": {"name": ("dml",), "ids": ("dml",)}}
    with dask.annotate(**span):
        assert worker_state.apart(dask.get_annotations) == {}
        assert dask.get_annotations() == span
    with pytest.raises(ZeroDivisionError):
        worker_state.apart(divmod, 1, 0)
