"""Test lifted functions: expressions where proven, calls where a check is true."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dml.errors import UDFError
from dml.ops.row.lifted import LiftedFilter, LiftedMap
from dml.optimize.phases import optimize
from tests.expr.checks import holds, node_of, table

LAST = 2**63 - 1
COLUMNS = {
    "x": pa.array([1, -7, LAST, None, 0, 5, 6]),
    "y": pa.array([2, 3, 1, 4, 0, -2, 1]),
}


def lifted(ds: Any, kind: type) -> bool:
    plan = optimize(node_of(ds), 0).plan
    return any(isinstance(step, kind) for step in (*plan.stage.steps, *plan.stream))


@pytest.mark.law
def test_map_where_it_is_proven() -> None:
    ds = table({"x": pa.array([1, 2, 3, 4]), "y": pa.array([5, 6, 7, 8])}).map(
        lambda row: {"s": row["x"] + row["y"], "q": row["x"] // row["y"]}
    )
    assert lifted(ds, LiftedMap)
    assert holds(ds) == 4
    assert holds(ds.batch(3)) == 2


@pytest.mark.law
def test_overflow_is_pythons() -> None:
    ds = table(COLUMNS).filter(lambda row: row["x"] is not None).map(
        lambda row: {"s": row["x"] + row["y"] > 3}
    )  # fmt: skip
    assert [row["s"] for row in ds] == [False, False, True, False, False, True]
    assert holds(ds) == 6


def test_errors_are_those_of_the_function() -> None:
    ds = table({"x": pa.array([4, 2, 0, 1])}).map(lambda row: {"q": 8 // row["x"]})
    run = iter(ds)
    assert [next(run)["q"], next(run)["q"]] == [2, 4]
    with pytest.raises(UDFError, match="ZeroDivisionError") as caught:
        next(run)
    assert caught.value.row == 2


@pytest.mark.law
def test_filter() -> None:
    ds = table({"x": pa.array(range(9))}).filter(lambda row: row["x"] % 3 == 1)
    assert lifted(ds, LiftedFilter)
    assert holds(ds) == 3
