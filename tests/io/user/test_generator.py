"""Test rows of generator functions: passes, laziness, types of first rows, errors."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import FingerprintError, MemoryContractError, SourceError
from dml.io.source import HELD_S
from dml.io.user.generator import Generated, generated
from dml.io.user.user_source import read_datasource
from dml.testing.source_laws import check_other_process, check_source

SYNC: dict[str, Any] = {"executor": "sync"}


def made_of(fn: Callable[..., Any], schema: Any = None, atom_rows: int | None = None) -> Generated:
    return generated(fn, (), schema, nonce=b"n", fingerprint=None, atom_rows=atom_rows)


@pytest.mark.law
@given(
    st.lists(
        st.fixed_dictionaries({"i": st.none() | st.integers(0, 9), "s": st.none() | st.text()})
    ),
    st.integers(1, 7),
)
def test_rows_keep_all_laws(rows: list[dict[str, Any]], each: int) -> None:
    kinds = {"i": pa.int64(), "s": pa.string()}
    source = read_datasource(made_of(lambda: iter(rows), kinds, each), b"n")
    want = pa.table({name: pa.array([r[name] for r in rows], k) for name, k in kinds.items()})
    check_source(source, want)


@pytest.mark.law
def test_another_process_comes_to_the_same_name() -> None:
    scope: dict[str, Any] = {}
    code = """
from dml.io.user.generator import generated
from dml.io.user.user_source import read_datasource
def rows(n):
    for i in range(n):
        yield {"x": i}
made = generated(rows, (5,), None, nonce=b"n", fingerprint=None, atom_rows=None)
source = read_datasource(made, b"n")
"""
    exec(code, scope)
    check_other_process(scope["source"], code)


def test_values_that_are_no_dicts_are_items() -> None:
    assert [row["item"] for row in dml.from_generator(lambda: [1, 2, 3])] == [1, 2, 3]


def test_the_function_is_called_for_every_pass() -> None:
    calls: list[int] = []

    def rows(n: int) -> Iterator[int]:
        calls.append(n)
        yield from range(n)

    ds = dml.from_generator(rows, {"item": "int64"}, args=(3,)).with_options(**SYNC)
    assert not calls
    for passes in range(1, 4):
        assert [row["item"] for row in ds] == [0, 1, 2]
        assert len(calls) == passes
    assert len(list(ds.repeat(2))) == 6
    assert len(calls) == 5


def test_what_is_endless_is_read_as_far_as_needed() -> None:
    given_rows: list[int] = []
    ended: list[bool] = []

    def rows() -> Iterator[dict[str, int]]:
        try:
            for i in itertools.count():
                given_rows.append(i)
                yield {"x": i}
        finally:
            ended.append(True)

    ds = dml.from_generator(rows, atom_rows=10).with_options(**SYNC)
    given_rows.clear()
    assert [row["x"] for row in ds.skip(15).take(10)] == list(range(15, 25))
    assert len(given_rows) == 30
    assert ended == [True, True]  # that of the types, and this one
    assert ds.filter(dml.col("x") % 2 == 0).map(lambda r: {"y": r["x"]}).take(3).count() == 3
    assert ds.cardinality() is None


def test_no_more_than_an_atom_waits_for_its_rows() -> None:
    """Every row of a slow generator comes before the next is asked for, if atoms are that small."""
    asked: list[int] = []

    def rows() -> Iterator[int]:
        for i in range(100):
            asked.append(i)
            yield i

    ds = dml.from_generator(rows, {"item": "int64"}, atom_rows=1).with_options(**SYNC)
    made = iter(ds)
    for i in range(5):
        assert next(made)["item"] == i
        assert len(asked) == i + 1


@pytest.mark.parametrize("executor", ["sync", "threads"])
@pytest.mark.parametrize("above", ["batch", "filter", "map", "batch.map"])
def test_rows_that_come_slowly_do_not_wait_for_their_atom(executor: str, above: str) -> None:
    delivered = threading.Event()

    def rows() -> Iterator[int]:
        for i in range(8):
            time.sleep(2 * HELD_S)
            yield i
        assert delivered.wait(30), "a batch is delivered before row 8 of 1,024 is there"
        yield from range(8, 20)

    same: Any = {"schema": {"item": "int64"}}
    ds = dml.from_generator(rows, **same)
    ds = {
        "batch": lambda: ds.batch(4),
        "filter": lambda: ds.filter(dml.col("item") >= 0).batch(4),
        "map": lambda: ds.map(lambda row: row, **same).batch(4),
        "batch.map": lambda: ds.batch(4).map(lambda batch: batch, **same),
    }[above]()
    found: list[int] = []
    for batch in ds.with_options(executor=executor, num_workers=2):
        found += batch["item"].tolist()
        delivered.set()
    assert found == list(range(20))


def test_a_pause_after_quick_rows_holds_up_those_of_the_last_moment_alone() -> None:
    """Each row that comes slowly is passed on at once, but for the first sixteen of them."""
    asked: list[int] = []

    def rows() -> Iterator[int]:
        for i in range(600):
            asked.append(i)
            if i >= 500:
                time.sleep(1.1 * HELD_S)
            yield i

    made = iter(dml.from_generator(rows, {"item": "int64"}).with_options(executor="sync"))
    for i in range(520):
        assert next(made)["item"] == i
    assert len(asked) <= 522
    made.close()


def test_a_lost_worker_reads_slow_rows_again_and_gives_each_once(tmp_path: Path) -> None:
    """Blocks are cut by time, at other rows in the second attempt but for what is known."""

    def rows() -> Iterator[int]:
        again = (tmp_path / "lost").exists()
        for i in range(30):
            time.sleep((0.0 if again else 0.7 * HELD_S) * (i % 3))
            if i == 20 and not again:
                (tmp_path / "lost").touch()
                os._exit(1)
            yield i

    ds = dml.from_generator(rows, {"item": "int64"}, atom_rows=12)
    ds = ds.with_options(executor="processes", num_workers=1)
    assert [row["item"] for row in ds] == list(range(30))
    assert (tmp_path / "lost").exists()


@pytest.mark.law
def test_resuming_runs_again_and_drops() -> None:
    calls: list[int] = []

    def rows() -> Iterator[int]:
        calls.append(1)
        yield from range(20)

    ds = dml.from_generator(rows, {"item": "int64"}, atom_rows=6)
    ds = ds.with_options(**SYNC).shuffle(buffer_size=4, seed=1).batch(3)
    whole = [batch["item"].tolist() for batch in ds.epoch(0)]
    for stop in range(len(whole) + 1):
        made = iter(ds.epoch(0))
        for _ in range(stop):
            next(made)
        calls.clear()
        rest = iter(ds.epoch(0))
        rest.load_state_dict(made.state_dict())
        assert [batch["item"].tolist() for batch in rest] == whole[stop:]
        assert len(calls) <= 1


# ------------------------------------------------------------------------------------------ types


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([None, None, None, 4], pa.int64()),
        ([None, 1.5], pa.float64()),
        ([[], [], ["a"]], pa.list_(pa.string())),
        ([{"q": None}, {"q": 1}], None),
        ([np.zeros((2, 2), "f4")] * 3, pa.fixed_shape_tensor(pa.float32(), (2, 2))),
        ([b"x"], pa.binary()),
        ([np.int16(3)], pa.int16()),
    ],
)
def test_the_first_rows_settle_types(rows: list[Any], kind: pa.DataType | None) -> None:
    schema = dml.from_generator(lambda: rows).schema
    assert schema[next(iter(schema))] == (kind or pa.int64())


def test_nulls_alone_are_a_column_of_nulls() -> None:
    assert dml.from_generator(lambda: [None] * 5000).schema["item"] == pa.null()


def test_no_rows_need_a_schema() -> None:
    with pytest.raises(SourceError, match="gave no rows"):
        dml.from_generator(lambda: iter(()))
    assert dml.from_generator(lambda: iter(()), {"x": "int64"}).count() == 0


@pytest.mark.parametrize(
    ("rows", "row"),
    [
        ([*range(30), "x"], 30),
        ([*range(7), {"item": 1, "more": 2}], 7),
        ([*range(9), {"other": 1}], 9),
        ([1, 2.5], 1),
    ],
)
def test_a_row_that_does_not_fit_is_named(rows: list[Any], row: int) -> None:
    ds = dml.from_generator(lambda: rows, {"item": "int64"}, atom_rows=4).with_options(**SYNC)
    made = iter(ds)
    assert [next(made)["item"] for _ in range(row)] == rows[:row]
    with pytest.raises(SourceError, match=f"row {row} is "):
        next(made)


# ----------------------------------------------------------------------------------------- errors


def test_what_the_generator_raises_comes_after_the_rows_before() -> None:
    def rows() -> Iterator[int]:
        yield from range(10)
        raise ValueError("no more")

    ds = dml.from_generator(rows, atom_rows=4).with_options(**SYNC)
    assert ds.take(10).count() == 10
    made = iter(ds)
    assert [next(made)["item"] for _ in range(10)] == list(range(10))
    with pytest.raises(SourceError, match="rows raised ValueError at row 10: no more") as caught:
        next(made)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "test_generator.py" in caught.value.at


@pytest.mark.parametrize("fn", [lambda: 3, lambda: "rows", lambda: {"x": [1]}])
def test_what_is_no_iterator_is_refused(fn: Callable[[], Any]) -> None:
    with pytest.raises(SourceError, match="no iterator of rows"):
        dml.from_generator(fn)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(SourceError, match="called again for every pass"):
        dml.from_generator(iter([1, 2]))  # type: ignore[arg-type]


def test_a_function_without_a_name_is_named_in_this_run() -> None:
    handle = open(__file__, encoding="utf-8")  # noqa: SIM115 - an open file has no name

    def rows() -> Iterator[int]:
        yield handle.fileno()

    with handle:
        ds = dml.from_generator(rows)
        with pytest.raises(FingerprintError, match="rows has no fingerprint"):
            ds.fingerprint()
        assert dml.from_generator(rows, fingerprint="mine").fingerprint()


@pytest.mark.cluster
def test_a_worker_process_calls_it_there() -> None:
    ds = dml.from_generator(lambda: range(50), atom_rows=8).map(lambda r: {"y": r["item"] * 2})
    got = ds.with_options(executor="processes", num_workers=2)
    assert [row["y"] for row in got] == list(range(0, 100, 2))


def first_rows_fail() -> Iterator[int]:
    yield from ()
    raise OSError("no more")


def fails_at_once() -> Iterator[int]:
    raise OSError("no more")


@pytest.mark.parametrize("fn", [first_rows_fail, fails_at_once])
def test_what_is_raised_before_types_are_known_is_named(fn: Callable[[], Any]) -> None:
    for ask in (lambda: dml.from_generator(fn), lambda: dml.from_generator(fn, ROW).to_list()):
        with pytest.raises(SourceError, match=f"{fn.__name__} raised OSError at row 0: no more"):
            ask()
    with pytest.raises(SourceError, match="generator raised OSError at row 0: no more"):
        dml.from_iterable(first_rows_fail())


ROW = {"item": "int64"}


def test_large_rows_that_do_not_fit_ask_for_fewer_at_a_time() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        return ({"x": np.full(1 << 20, i, "u1")} for i in range(3))

    ds = dml.from_generator(rows).with_options(memory_limit="64MiB", **SYNC)
    with pytest.raises(MemoryContractError, match="one part does not fit") as caught:
        ds.to_list()
    assert "atom_rows=" in caught.value.try_
    fitting = dml.from_generator(rows, atom_rows=1).with_options(memory_limit="64MiB", **SYNC)
    assert [int(row["x"][0]) for row in fitting] == [0, 1, 2]
