"""Test classes as functions: constructed once a process, and sent without an instance."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dml
from dml.errors import PlanError, UDFError
from dml.expr.user_call import UserFunction
from dml.udfs.calling import instances
from dml.udfs.named_function import user_function
from tests.expr.checks import holds, node_of, numbers

Row = dict[str, Any]
MADE: list[tuple[Any, ...]] = []


class Add:
    """Adds ``by`` to a row's or a batch's x."""

    def __init__(self, by: int = 1, *, scale: int = 1) -> None:
        MADE.append((by, scale))
        self.by, self.scale = by, scale

    def __call__(self, row: Row) -> Row:
        return {"x": row["x"] * self.scale + self.by}


class Large:
    def __call__(self, row: Row) -> bool:
        return bool(row["x"] > 3)


class Copies:
    def __call__(self, row: Row) -> Iterator[Row]:
        yield {"x": row["x"]}
        if row["x"] == 2:
            raise LookupError("no two")


class Broken:
    def __init__(self) -> None:
        raise OSError("no weights")

    def __call__(self, row: Row) -> Row:
        return row


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    MADE.clear()
    instances._KEPT.clear()
    gc.collect()


def named(fn: Any, *args: Any, fingerprint: str | None = None, **kwargs: Any) -> UserFunction:
    return user_function(fn, "map", b"n", fingerprint, (args, kwargs))


@pytest.mark.law
def test_every_verb_takes_a_class() -> None:
    ds = numbers(6)
    made: dict[str, Any] = {"fn_constructor_args": (2,), "fn_constructor_kwargs": {"scale": 10}}
    assert [row["x"] for row in ds.map(Add, **made)] == [2, 12, 22, 32, 42, 52]
    assert [row["x"] for row in ds.map_batches(Add, **made)] == [2, 12, 22, 32, 42, 52]
    assert [b["x"].tolist() for b in ds.batch(4).map(Add, **made)] == [[2, 12, 22, 32], [42, 52]]
    assert [row["x"] for row in ds.filter(Large)] == [4, 5]
    assert [row["x"] for row in ds.flat_map(Copies).take(3)] == [0, 1, 2]
    for pipeline in (ds.map(Add), ds.map_batches(Add, batch_size=2), ds.filter(Large)):
        assert holds(pipeline) > 0


def test_one_instance_for_a_class_with_its_arguments() -> None:
    ds = numbers(20).with_options(executor="threads", num_workers=4, target_partition_bytes=1)
    ds = ds.map(Add, fn_constructor_args=(3,)).map_batches(Add, fn_constructor_args=(3,))
    ds = ds.map(Add, fn_constructor_args=(4,))
    for _ in range(2):
        assert len(list(ds)) == 20
    assert sorted(MADE) == [(3, 1), (4, 1)]


def test_it_is_made_when_it_is_called() -> None:
    ds = numbers(3).filter(dml.col("x") > 5).map(Add)
    assert list(ds) == []
    assert ds.explain()
    assert not MADE


def test_names_hold_class_and_arguments() -> None:
    names = [named(Add), named(Add, 1), named(Add, 2), named(Add, by=1), named(Large)]
    assert len({each.digest for each in names}) == 5
    assert named(Add, 2).digest == named(Add, 2).digest
    assert (names[0].name, names[0].reason) == ("Add", "")
    assert "instance" in names[0].purity
    assert named(Add, fingerprint="mine").digest == named(Large, fingerprint="mine").digest
    assert named(Add, 1, fingerprint="mine").digest != named(Add, 2, fingerprint="mine").digest
    lock = threading.Lock()
    assert named(Add, lock).reason
    assert not named(Add, lock, fingerprint="mine").reason


def test_what_is_sent_makes_its_own_instance() -> None:
    fn = named(Add, 5)
    assert fn.call({"x": 1}) == {"x": 6}
    sent = pickle.loads(pickle.dumps(fn))
    assert sent.call.pool is None
    assert sent.call({"x": 1}) == {"x": 6}
    assert MADE == [(5, 1)]  # equal names share one in a process
    node = node_of(numbers(3).map_batches(Add))
    assert pickle.loads(pickle.dumps(node.calls)).digest == node.calls.digest  # type: ignore[union-attr]


@pytest.mark.law
def test_what_was_sent_outlives_the_run_that_made_it() -> None:
    text = pickle.dumps(named(Add, 6))
    for _ in range(2):
        pickle.loads(text).call({"x": 1})
        gc.collect()
    assert MADE == [(6, 1)]
    for by in range(100, 100 + instances.KEPT):
        pickle.loads(pickle.dumps(named(Add, by))).call({"x": 1})
    gc.collect()
    pickle.loads(text).call({"x": 1})
    assert MADE.count((6, 1)) == 2


def test_an_instance_goes_with_its_pipeline() -> None:
    fn = named(Add, 7)
    fn.call({"x": 1})
    gone = weakref.ref(fn.call.pool.instances[0].call)  # type: ignore[attr-defined]
    del fn
    gc.collect()
    assert gone() is None


def test_calls_of_one_instance_never_overlap() -> None:
    class Counting:
        def __init__(self) -> None:
            self.inside = 0

        def __call__(self, batch: Row) -> Row:
            self.inside += 1
            seen = self.inside
            np.sort(np.arange(20_000)[::-1])
            self.inside -= 1
            return {"x": batch["x"], "seen": np.full(len(batch["x"]), seen)}

    ds = numbers(60).with_options(executor="threads", num_workers=4, target_partition_bytes=1)
    assert {row["seen"] for row in ds.map_batches(Counting)} == {1}


def test_children_before_an_error_of_a_class() -> None:
    run = iter(numbers(4).flat_map(Copies))
    assert [next(run)["x"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UDFError, match="no two"):
        next(run)


def test_a_constructor_that_raises() -> None:
    for ds in (numbers(3).map(Broken), numbers(3).map_batches(Broken), numbers(3).filter(Broken)):
        with pytest.raises(
            UDFError, match="Broken cannot be constructed: OSError: no weights"
        ) as e:
            list(ds)
        assert isinstance(e.value.__cause__, OSError)


def test_a_class_whose_instances_cannot_be_called_is_a_function() -> None:
    assert [row["x"] for row in numbers(2).map(dict)] == [0, 1]
    for bad in (dict, lambda row: row):
        with pytest.raises(PlanError, match="map with arguments for the constructor"):
            numbers(2).map(bad, fn_constructor_args=(1,))


@pytest.mark.parametrize(
    "bad",
    [
        {"fn_constructor_args": 3},
        {"fn_constructor_args": "weights"},
        {"fn_constructor_kwargs": [1]},
        {"fn_constructor_kwargs": {1: 1}},
    ],
)
def test_arguments_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="map with fn_constructor_args="):
        numbers(2).map(Add, **bad)
