"""Test ``window``: batches of rows in a sliding window over the stream."""

from __future__ import annotations

from itertools import product

import pytest

import dml
from dml import col
from dml.errors import PlanError
from tests.expr.checks import holds, numbers


def windows(ds: dml.Dataset) -> list[list[int]]:
    return [batch["x"].tolist() for batch in ds]


def test_windows_overlap_or_leave_rows_out() -> None:
    assert windows(numbers(6).window(3, 1)) == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert windows(numbers(8).window(2, 3)) == [[0, 1], [3, 4], [6, 7]]
    assert windows(numbers(7).window(2)) == [[0, 1], [2, 3], [4, 5]]
    assert windows(numbers(7).window(2, 2, 3)) == [[0, 3], [2, 5]]


def test_windows_that_lack_rows() -> None:
    ds = numbers(5).window(3, 2, drop_last=False)
    assert windows(ds) == [[0, 1, 2], [2, 3, 4], [4]]
    assert windows(numbers(4).window(3, 1, 2, drop_last=False)) == [[0, 2], [1, 3], [2], [3]]
    assert windows(numbers(4).window(2, 9, drop_last=False)) == [[0, 1]]


@pytest.mark.sample(14)
@pytest.mark.law
@pytest.mark.parametrize(
    ("size", "shift", "stride", "last"),
    list(product([1, 2, 4], [1, 2, 7], [1, 3], [True, False])),
)
def test_every_window_is_found_again(size: int, shift: int, stride: int, last: bool) -> None:
    ds = numbers(11).window(size, shift, stride, drop_last=last)
    starts = range(0, 11, shift)
    wanted = [list(range(s, min(11, s + size * stride), stride)) for s in starts]
    wanted = [w for w in wanted if len(w) == size or not last]
    if last:
        wanted = [w for w in wanted if w[0] + (size - 1) * stride < 11]
    assert windows(ds) == wanted
    assert holds(ds) == len(wanted)


@pytest.mark.law
def test_over_and_under_other_operators() -> None:
    ds = numbers(9).shuffle(4).repeat(2).window(4, 1).filter(col("x") > 1).shuffle(3)
    assert holds(ds) == 15
    assert holds(numbers(5).repeat().window(3, 1).skip(2).take(9)) == 9
    assert holds(numbers(0).window(3, 1)) == 0
    assert holds(numbers(9).window(3, 2).map(lambda b: {"s": b["x"] * 2})) == 4


@pytest.mark.law
def test_columns_that_nobody_reads_are_not_made() -> None:
    ds = numbers(9).with_columns(y=col("x") + 1, z=col("x") * 2).window(2, 1).select("y")
    assert "z=" not in ds.explain("physical")
    assert holds(ds) == 8


def test_refusals() -> None:
    for given in ((0,), (2, 0), (2, 1, 0), (2, 1.5)):
        with pytest.raises(PlanError, match=r"window s\w+ needs an integer of at least 1"):
            numbers().window(*given)
    with pytest.raises(PlanError, match="window over batches"):
        numbers().batch(2).window(2)
