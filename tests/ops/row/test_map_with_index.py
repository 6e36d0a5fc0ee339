"""Test ``map_with_index``: a function of the position of a row, and the row."""

from __future__ import annotations

from typing import Any

import pytest

from dml import col
from dml.errors import PlanError, UDFError
from tests.expr.checks import holds, numbers

Row = dict[str, Any]


def placed(index: int, row: Row) -> Row:
    assert list(row) == ["x"]
    return {"place": index, **row}


@pytest.mark.law
def test_the_place_is_that_of_the_rows_that_reach_it() -> None:
    ds = numbers(9).filter(col("x") % 2 == 0).map_with_index(placed)
    assert [row["place"] for row in ds] == [row["place"] for row in ds] == [0, 1, 2, 3, 4]
    assert [row["x"] for row in ds] == [0, 2, 4, 6, 8]
    holds(ds)
    holds(numbers(9).shuffle(4, seed=1).repeat(2).map_with_index(placed).batch(3))
    typed = numbers(3).map_with_index(placed, schema={"place": "int32", "x": "int64"})
    assert typed.columns == ["place", "x"]
    holds(typed)


def test_names_are_those_of_the_function() -> None:
    def other(index: int, row: Row) -> Row:
        return {"place": index + 1, **row}

    ds = numbers(3)
    assert ds.map_with_index(placed).fingerprint() == ds.map_with_index(placed).fingerprint()
    assert ds.map_with_index(placed).fingerprint() != ds.map_with_index(other).fingerprint()
    assert "MapRows(placed)" in ds.map_with_index(placed).explain("written")


def test_what_goes_wrong() -> None:
    def failing(index: int, row: Row) -> Row:
        return {"x": 1 // (3 - index)}

    with pytest.raises(UDFError, match="failing raised ZeroDivisionError") as found:
        list(numbers(9).skip(1).map_with_index(failing))
    assert found.value.row == 4
    with pytest.raises(PlanError, match="map_with_index after batch"):
        numbers(3).batch(2).map_with_index(placed)
    for wrong in (3, dict):
        with pytest.raises(PlanError, match="map_with_index needs a function") as refused:
            numbers(3).map_with_index(wrong)  # type: ignore[arg-type]
        assert "test_map_with_index.py" in str(refused.value)
