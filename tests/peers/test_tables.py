"""Compare aggregations, joins and sorts of dml with those of Polars and pandas."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

import dml
from tests.peers.table_programs import CLOSE, drawn, drawn_for_pandas

CASES, SAMPLE = 1500, 200


@pytest.mark.law
@pytest.mark.parametrize("block", range(4))
def test_the_same_rows_as_polars(block: int, whole: bool) -> None:
    pl = pytest.importorskip("polars")
    for seed in range(block, CASES if whole else SAMPLE, 4):
        case = drawn(seed)
        same(case.ours(dml), case.polars(pl), f"{seed}: {case}")


@pytest.mark.law
@pytest.mark.parametrize("block", range(4))
def test_the_same_rows_as_pandas(block: int, whole: bool) -> None:
    pd = pytest.importorskip("pandas")
    for seed in range(block, CASES if whole else SAMPLE, 4):
        case = drawn_for_pandas(seed)
        same(case.ours(dml), case.pandas(pd), f"{seed}: {case}")


def same(ours: pa.Table, theirs: pa.Table, case: str) -> None:
    """Equal columns, value by value as text: -0.0 is not 0.0, 1 is not 1.0, NaN is NaN."""
    assert ours.column_names == theirs.column_names, case
    for name in ours.column_names:
        one, two = ours[name].to_pylist(), theirs[name].to_pylist()
        if name.startswith(CLOSE):
            assert len(one) == len(two), case
            assert all(map(near, one, two)), f"{name} of {case}"
        else:
            assert str(one) == str(two), f"{name} of {case}"


def near(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    return math.isclose(one, two, rel_tol=1e-12, abs_tol=1e-12)
