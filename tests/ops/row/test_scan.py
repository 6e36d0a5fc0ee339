"""Test ``scan``: a function of a state and each row, in order."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import PlanError, UDFError
from dml.expr.flow import CHUNK
from tests.expr.checks import QUIET, agrees, holds, node_of, numbers, table

Row = dict[str, Any]


def total(state: int, row: Row) -> tuple[int, Row]:
    new = state + row["x"]
    return new, {"x": row["x"], "total": new}


def last(state: list[int], row: Row) -> tuple[list[int], Row]:
    """Changes its state, and hands it out."""
    state.append(row["x"])
    del state[:-2]
    return state, {"last": state}


def extremes(state: dict[str, Any], row: Row) -> tuple[Any, Row]:
    low = min(state["low"], float(row["x"]))
    return {"low": low, "seen": (*state["seen"], b"x")[-2:]}, {"low": low}


def moments(state: Any, row: Row) -> tuple[Any, Row]:
    new = state + np.array([1, row["x"]])
    return new, {"mean": float(new[1] / new[0])}


def test_a_running_total() -> None:
    rows = list(numbers(5).scan(0, total))
    assert [row["total"] for row in rows] == [0, 1, 3, 6, 10]
    assert list(numbers(0).scan(0, total)) == []


def test_what_is_handed_out_is_not_changed_later() -> None:
    rows = list(numbers(4).scan([], last))
    assert [row["last"] for row in rows] == [[0], [0, 1], [1, 2], [2, 3]]
    begun: list[int] = [7]
    ds = numbers(2).scan(begun, last)
    begun.append(8)
    assert [row["last"] for row in ds] == [row["last"] for row in ds] == [[7, 0], [0, 1]]


@pytest.mark.sample(2)
@pytest.mark.law
@pytest.mark.parametrize(
    ("state", "fn"),
    [
        (0, total),
        ([], last),
        ({"low": math.inf, "seen": ()}, extremes),
        (np.zeros(2), moments),
    ],
)
def test_every_way_of_running_and_resuming(state: Any, fn: Any) -> None:
    ds = numbers(20)
    holds(ds.scan(state, fn))
    holds(ds.shuffle(4, seed=1).repeat(2).scan(state, fn).batch(3))
    holds(ds.filter(col("x") % 3 != 1).scan(state, fn).shuffle(3).repeat(2).skip(1))
    holds(ds.repeat().scan(state, fn).take(30))


@pytest.mark.law
def test_each_row_once_and_a_resumed_run_does_one_piece_again() -> None:
    calls: list[int] = []

    def counted(state: int, row: Row) -> tuple[int, Row]:
        calls.append(row["id"])
        return state + 1, {"n": state}

    n = 3 * CHUNK
    ds = dml.range(n, atom_rows=1000).with_options(**QUIET)
    ds = ds.scan(0, counted, fingerprint="counted").batch(100)
    it = iter(ds)
    states = []
    whole = []
    for batch in it:
        whole.append(batch["n"].tolist())
        states.append(json.dumps(it.state_dict()))
    assert calls == list(range(n))
    assert max(map(len, states)) < 2048
    for at in (0, 90, len(states) - 1):
        calls.clear()
        again = iter(ds)
        again.load_state_dict(json.loads(states[at]))
        assert [batch["n"].tolist() for batch in again] == whole[at + 1 :]
        assert calls == sorted(set(calls))
        assert len(calls) <= n - 100 * (at + 1) + CHUNK


def test_epochs_begin_anew() -> None:
    ds = numbers(4).shuffle(seed=1).scan(0, total)
    assert [row["total"] for row in ds][-1] == [row["total"] for row in ds][-1] == 6
    twice = numbers(3).repeat(2).scan(0, total)
    assert [row["total"] for row in twice] == [0, 1, 3, 3, 4, 6]
    passes = numbers(3).scan(0, total).repeat(2)
    assert [row["total"] for row in passes] == [0, 1, 3, 0, 1, 3]


@pytest.mark.law
def test_a_state_that_cannot_be_carried_stands_at_its_row() -> None:
    def to_set(state: Any, row: Row) -> Any:
        return (state if row["x"] < 5 else {1}), row

    ds = numbers(9).scan(0, to_set)
    it = iter(ds)
    assert [next(it)["x"] for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(UDFError, match="returned a state with a set") as found:
        next(it)
    assert found.value.row == 5
    assert "test_scan.py" in str(found.value)
    agrees(ds)

    def growing(state: list[int], row: Row) -> Any:
        return [0] * 1000 * row["x"], row

    with pytest.raises(UDFError, match="a state of more than 65536 bytes") as large:
        list(numbers(20).scan([], growing))
    assert large.value.row == 9

    def pairless(state: Any, row: Row) -> Any:
        return row if row["x"] == 3 else (state, row)

    with pytest.raises(UDFError, match="returned a dict in place of a pair") as bare:
        list(numbers(9).scan(0, pairless))
    assert bare.value.row == 3
    agrees(numbers(9).scan(0, pairless))

    def failing(state: Any, row: Row) -> Any:
        return state, {"x": 1 // (row["x"] - 4)}

    with pytest.raises(UDFError, match="raised ZeroDivisionError") as raised:
        list(numbers(9).scan(0, failing))
    assert raised.value.row == 4
    agrees(numbers(9).scan(0, failing))


@pytest.mark.law
def test_types_settle_and_hold() -> None:
    declared = numbers(3).scan(0, total, schema={"x": "int8", "total": "float32"})
    assert declared.schema["total"] == pa.float32()
    holds(declared)
    assert not numbers(3).scan(0, total).schema.known

    def turning(state: int, row: Row) -> Any:
        return state, {"y": row["x"] if row["x"] < 7 else "text"}

    ds = numbers(9).scan(0, turning)
    with pytest.raises(UDFError):
        list(ds)
    agrees(ds)


def test_what_is_known_and_what_is_named() -> None:
    ds = numbers(9)
    assert ds.scan(0, total).cardinality() == 9
    assert ds.repeat().scan(0, total).cardinality() == math.inf
    names = {
        ds.scan(state, total).fingerprint() for state in (0, 0.0, -0.0, False, None, [0], (0,))
    }
    assert len(names) == 7
    assert node_of(ds.scan(0, total)) == node_of(ds.scan(0, total))
    assert "Scan(0, total)" in ds.scan(0, total).explain("written")


def test_what_is_refused() -> None:
    with pytest.raises(PlanError, match="scan cannot begin with a state with a set") as found:
        numbers(3).scan({1}, total)
    assert "test_scan.py" in str(found.value)
    with pytest.raises(PlanError, match="scan after batch"):
        numbers(3).batch(2).scan(0, total)
    with pytest.raises(PlanError, match="scan needs a function"):
        numbers(3).scan(0, 3)  # type: ignore[arg-type]
    texts = table({"t": pa.array(["a", "bc"])})
    assert [row["n"] for row in texts.scan(0, lambda s, row: (s, {"n": len(row["t"])}))] == [1, 2]
