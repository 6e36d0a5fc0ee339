"""Test that ranges count like Python's, take no time to plan, and obey the source laws."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.errors import PlanError
from dml.io.memory.range import Range
from dml.testing.source_laws import check_other_process, check_source, everything


@pytest.mark.law
@given(
    st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7).filter(bool), st.integers(1, 9)
)
def test_counts_like_python_and_keeps_the_laws(
    start: int, stop: int, step: int, atom_rows: int
) -> None:
    numbers = pa.array(range(start, stop, step), pa.int64())
    check_source(Range(start, stop, step, atom_rows), pa.table({"id": numbers}))


def test_a_huge_range_costs_nothing_to_plan() -> None:
    source = Range(0, 10**12)
    assert source.row_count == 10**12
    assert source.atom_count == source.unit_count == -(-(10**12) // 65_536)
    last = source.unit(source.unit_count - 1)
    (block,) = source.read(last, ("id",))
    assert block.to_arrow()["id"][-1].as_py() == 10**12 - 1
    there = source.rows_at(np.array([10**12 - 1, 5]), ("id",))
    assert there.to_arrow()["id"].to_pylist() == [10**12 - 1, 5]


def test_the_whole_of_int64_in_steps_wider_than_int64() -> None:
    low, high = -(2**63), 2**63 - 1
    values = everything(Range(low, high, 2**63)).to_arrow()["id"].to_pylist()
    assert values == [low, 0]
    assert everything(Range(high, low, -(2**64 - 2))).to_arrow()["id"].to_pylist() == [
        high,
        low + 1,
    ]


@pytest.mark.law
def test_equal_everywhere() -> None:
    check_other_process(
        Range(3, 100, 2), "from dml.io.memory.range import Range; source = Range(3, 100, 2)"
    )
    assert Range(0, 5) == Range(0, 5)
    assert Range(0, 5) != Range(0, 6)
    assert Range(0, 5) != Range(0, 5, atom_rows=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, 0), "steps of 0"),
        ((0, 2.5), "whole numbers, stop is 2.5"),
        ((True, 5), "whole numbers, start is True"),
        ((0, 2**63 + 1), "does not fit int64"),
        ((0, 5, 1, 0), "atom_rows of at least 1"),
    ],
)
def test_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Range(*arguments)  # type: ignore[arg-type]


def test_an_empty_range_has_no_units() -> None:
    source = Range(5, 5)
    assert (source.row_count, source.unit_count, source.atom_count) == (0, 0, 0)
    check_source(source, pa.table({"id": pa.array([], pa.int64())}))


def test_shown_as_written() -> None:
    assert Range(0, 10).title() == "Range(0, 10)"
    assert Range(0, 10, 3).title() == "Range(0, 10, 3)"
