"""Test that repeated work is compared with the first result, and that errors name the function."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.cluster.dask_task import RemotePartition, Ticket
from dml.cluster.worker_state import Shipment, ShippedArgument, _with_argument
from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import NonDeterminismError
from dml.exec.process.exception_codec import received
from dml.exec.process.task_runner import Answer, SliceOrder, TaskRunner
from dml.exec.scheduler.messages import Run
from dml.exec.tasks.partition import Piece, ReadTask
from dml.exec.tasks.replay_check import EDGE, MIDDLE, after
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from tests.exec.process.test_task_runner import job_of, opened, pieces, sent

Batch = dict[str, Any]
COUNT = itertools.count()


def grown(batch: Batch, drift: int = 0) -> Iterator[Batch]:
    """Four batches of each; those of another call differ by ``drift``."""
    more = next(COUNT) * drift
    for k in range(4):
        yield {"x": batch["id"] + k + more}


def grown_of_x(batch: Batch) -> Iterator[Batch]:
    yield from ({"y": batch["x"] + k} for k in range(3))


def drawn(batch: Batch) -> Batch:
    return {"x": batch["id"] + next(COUNT)}


def lying(batch: Batch) -> Iterator[Batch]:
    yield from grown(batch, 1)


def shrinking(batch: Batch) -> Iterator[Batch]:
    yield from itertools.islice(grown(batch), next(COUNT), None)


def asked(desk: TaskRunner, k: int, seen: bytes) -> Answer:
    return desk.do(SliceOrder("r", Run((0,), 0, k, ""), ReadTask(0, 1), {}, seen))


def source() -> dml.Dataset:
    return dml.range(3, atom_rows=3)


@pytest.mark.parametrize("at", range(1, 5))
def test_a_task_that_is_begun_elsewhere_goes_on_where_it_was(at: int) -> None:
    ds, got, seen = source().map_batches(grown), [], b""
    desk = opened(ds)
    for k in range(5):
        desk = opened(ds) if k == at else desk
        answer = asked(desk, k, seen)
        assert not answer.error
        got += [piece.block["x"].values.tolist() for piece in pieces(answer) if piece.block]
        seen = answer.digest
    assert got == [[k, k + 1, k + 2] for k in range(4)]


@pytest.mark.parametrize("fn", [lying, shrinking])
@pytest.mark.parametrize("at", [1, 3])
def test_a_function_that_gives_something_else_is_named_with_its_place(fn: Any, at: int) -> None:
    global COUNT  # noqa: PLW0603 (what it lies by)
    COUNT = itertools.count()
    ds, seen = source().map_batches(fn), b""
    first, second = opened(ds), opened(ds)
    for k in range(at):
        answer = asked(first, k, seen)
        seen = answer.digest
    answer = asked(second, at, seen)
    error = received(answer.error)
    assert isinstance(error, NonDeterminismError)
    assert fn.__name__ in error.what
    assert "range, rows 0 to 2" in error.at
    assert "lost" in error.why


def test_one_that_has_given_nothing_yet_may_give_anything() -> None:
    for answer in (asked(opened(source().map_batches(lying)), 0, b"") for _ in range(2)):
        assert not answer.error
    alone = source().map_batches(lambda batch: {"x": batch["id"] * next(COUNT)})
    assert not asked(opened(alone), 0, b"").digest, "its only partition"
    proven = source().map_batches(lambda batch: {"x": batch["id"] * 2}, batch_size=1)
    assert not asked(opened(proven), 0, b"").digest


def test_an_argument_that_was_made_again_is_looked_at() -> None:
    ds = source().map_batches(grown).map_batches(lambda b: b, batch_size=3, num_cpus=0.5)
    desk = TaskRunner()
    assert desk.open("r", *sent(job_of(ds)))
    made = asked(desk, 0, b"")
    answers = []
    for digest in (made.digest, b"another", b""):
        order = SliceOrder("r", Run((0, 0), 1, 0, ""), ShippedArgument(0, 0, digest), {})
        answers.append(desk.do(_with_argument(order, [Shipment((made,))])))
    assert not answers[0].error
    assert str(received(answers[1].error)).startswith("grown gave something else")
    assert not answers[2].error, "nothing came of it yet"


def test_the_only_partition_of_a_task_is_compared_where_a_later_stage_has_begun_with_it() -> None:
    ds = source().map_batches(drawn).map_batches(grown_of_x, batch_size=3, num_cpus=0.5)
    desks = TaskRunner(), TaskRunner()
    for desk in desks:
        assert desk.open("r", *sent(job_of(ds)))
    made, again = (asked(desk, 0, b"") for desk in desks)
    assert made.digest != again.digest
    ticket = Ticket(0, "a", [Run((0,), 0, 0, "")])
    held = RemotePartition(made.parcel.outcome, ticket, 0, None, made.digest)  # type: ignore[union-attr]
    errors = []
    for k in (0, 1):
        run = Run((0, 0), 1, k, "")
        order = SliceOrder("r", run, ShippedArgument(0, 0, held.seen(run)), {})
        errors.append(desks[1].do(_with_argument(order, [Shipment((again,))])).error)
    assert not errors[0], "nobody has seen the other one"
    assert isinstance(received(errors[1]), NonDeterminismError)


def piece(values: np.ndarray, valid: np.ndarray | None = None) -> list[Piece]:
    kind = pa.from_numpy_dtype(values.dtype)
    block = Block(Schema([("x", kind)]), (Vec(values, valid),), RowIds.run(1, 0, len(values)))
    return [Piece(0, 0, block)]


@pytest.mark.law
@given(rows=st.integers(1, 3 * (EDGE + MIDDLE)), at=st.integers(0, EDGE - 1), last=st.booleans())
def test_values_that_differ_are_told(rows: int, at: int, last: bool) -> None:
    values = np.arange(rows, dtype=np.float64)
    whole = after(b"", piece(values))
    assert after(b"", piece(values.copy())) == whole
    assert after(b"before", piece(values)) != whole
    other = values.copy()
    other[-1 - min(at, rows - 1) if last else min(at, rows - 1)] += 1
    assert after(b"", piece(other)) != whole


def test_what_stands_under_null_is_anything() -> None:
    valid = np.array([True, False])
    one, two = np.array([1.0, 5.0]), np.array([1.0, 7.0])
    assert after(b"", piece(one, valid)) == after(b"", piece(two, valid))
    assert after(b"", piece(one, valid)) != after(b"", piece(one, ~valid))
    nans = np.array([np.nan, -np.nan])
    assert after(b"", piece(nans[:1])) == after(b"", piece(nans[1:]))
