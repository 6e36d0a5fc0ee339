"""Test the task runner of a worker: orders and answers, also after failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import InternalError, PlanError, UDFError, WorkerLostError
from dml.exec.memory.spill import DiskSpill
from dml.exec.process import task_runner as module
from dml.exec.process.exception_codec import received
from dml.exec.process.partition_codec import Parcel, unpack
from dml.exec.process.task_runner import Answer, SliceOrder, TaskRunner, written
from dml.exec.scheduler.messages import Run
from dml.exec.scheduler.policy import Fault
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import PartitionSizes, Piece, ReadTask
from dml.expr.flow import At
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.optimize.phases import optimize

ROWS, UNITS = 12, 4


def job_of(ds: Dataset, target: int = 1, folder: str = "none") -> Job:
    plan = optimize(ds._node, 0).plan
    at = At(0, 0, KernelTiers(Path(folder), "numpy"), {}, DiskSpill, 1 << 20)
    return Job(plan.stage, at, PartitionSizes(target, 1 << 30), links=plan.links)


def sent(job: Job) -> tuple[bytes, list[bytes]]:
    body, buffers = written(job)
    return body, [bytes(each.raw()) for each in buffers]


def opened(ds: Dataset, notes: list[int] | None = None) -> TaskRunner:
    desk = TaskRunner() if notes is None else TaskRunner(notes.append)
    assert desk.open("r", *sent(job_of(ds)))
    return desk


def order(k: int = 0, fault: Fault = "") -> SliceOrder:
    return SliceOrder("r", Run((0,), 0, k, fault), ReadTask(0, UNITS), {})


def pieces(answer: Answer) -> list[Piece]:
    assert isinstance(answer.parcel, Parcel)
    value: list[Piece] = unpack(answer.parcel).value
    return value


def numbered(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["id"] * 2, "seen": len(str(row))}


def source() -> Dataset:
    return dml.range(ROWS, atom_rows=3)


def test_slices_of_a_task_follow_one_another() -> None:
    desk, got = opened(source().map(numbered)), []
    for k in range(4):
        answer = desk.do(order(k))
        assert not answer.error
        assert answer.replayed == 0
        got += [row for p in pieces(answer) if p.block for row in p.block["n"].values.tolist()]
    assert got == [2 * n for n in range(ROWS)]


def test_a_function_may_fill_a_small_array_that_it_refers_to() -> None:
    buffer = np.zeros(2)

    def filled(row: dict[str, Any]) -> dict[str, Any]:
        buffer[:] = row["id"]
        return {"x": buffer}

    desk, got = opened(source().map(filled)), list[float]()
    for k in range(4):
        answer = desk.do(order(k))
        assert not answer.error
        got += [row[0] for p in pieces(answer) if p.block for row in p.block["x"].values.tolist()]
    assert got == list(range(ROWS))


def test_an_answer_tells_what_was_counted_and_settled() -> None:
    answer = opened(source().map(numbered)).do(order())
    assert sum(cell.rows_in for _, cell in answer.tally.cells()) > 0
    assert [schema.names for schema in answer.schemas.values()] == [("n", "seen")]
    assert answer.seconds > 0


def test_settled_schemas_come_with_the_order() -> None:
    first = opened(source().map(numbered)).do(order())
    answer = opened(source().map(numbered)).do(
        SliceOrder("r", Run((0,), 0, 0, ""), ReadTask(0, 1), first.schemas)
    )
    assert not answer.schemas


def test_a_slice_elsewhere_is_replayed() -> None:
    answer = opened(source().map(numbered)).do(order(2))
    assert answer.replayed == 2
    assert pieces(answer)[0].block["n"].values.tolist() == [12, 14, 16]  # type: ignore[index]


def test_the_place_of_what_is_read_is_noted() -> None:
    notes: list[int] = []
    desk = opened(source(), notes)
    desk.do(order())
    assert notes == [-1, 0]
    desk.do(order(1))
    assert notes == [-1, 0, 0, 1], "what a parked generator was at, then what it begins"


def failing(error: BaseException) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 4:
            raise error
        return row

    return fails


@pytest.mark.parametrize("raised", [KeyError("x"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_of_a_function_is_a_piece(raised: BaseException) -> None:
    desk = opened(source().map(failing(raised)))
    assert pieces(desk.do(order()))[0].error is None
    before = pieces(desk.do(order(1)))
    (failed,) = [piece for piece in (*before, *pieces(desk.do(order(2)))) if piece.error]
    assert isinstance(failed.error, UDFError)
    assert isinstance(failed.error.__cause__, type(raised))


def test_a_loss_on_purpose_is_a_loss() -> None:
    answer = opened(source()).do(order(fault="lose"))
    assert isinstance(received(answer.error), WorkerLostError)


def test_what_cannot_be_packed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = opened(source())

    def packed(*_: Any) -> Parcel:
        raise raised[0]

    monkeypatch.setattr(module, "pack", packed)
    raised: list[Exception] = [ValueError("odd")]
    error = received(desk.do(order()).error)
    assert isinstance(error, InternalError)
    assert "odd" in str(error)
    raised = [MemoryError()]
    assert type(received(desk.do(order(1)).error)).__name__ == "MemoryContractError"


def test_jobs_come_once_and_go() -> None:
    desk, job = TaskRunner(), sent(job_of(source()))
    assert desk.open("r", *job)
    assert desk.open("r", b"not looked at")
    desk.close("r")
    desk.close("r")
    with pytest.raises(InternalError, match="before its job"):
        desk.do(order())


def test_a_closed_job_ends_its_generators() -> None:
    desk = opened(source().map(numbered))
    desk.do(order())
    bench = desk.benches["r"]
    assert bench.runtime._parked
    desk.close("r")
    assert not bench.runtime._parked


def test_another_thread_may_end_what_is_parked() -> None:
    wide = dml.range(ROWS, atom_rows=ROWS).map(lambda row: {"x": np.full(1 << 19, row["id"])})
    desk = opened(wide)
    assert not desk.do(order()).error
    with ThreadPoolExecutor(1) as other:
        other.submit(desk.close, "r").result()  # as Dask does, in a thread that has done no slice


def test_a_job_that_cannot_be_read_is_told_by_its_orders() -> None:
    desk = TaskRunner()
    assert not desk.open("r", b"nonsense")
    assert not desk.open("r", *sent(job_of(source()))), "until it is closed"
    error = received(desk.do(order()).error)
    assert isinstance(error, PlanError)
    assert "cannot load the pipeline" in str(error)
    desk.close("r")
    assert desk.open("r", *sent(job_of(source())))


def test_a_function_that_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    ds = source().map(numbered).map(lambda row: {"n": row["n"] + lock.locked()})
    with pytest.raises(PlanError, match=r"<lambda> cannot be sent") as caught:
        written(job_of(ds))
    assert "lock" in caught.value.why
    assert "test_task_runner.py" in caught.value.at
