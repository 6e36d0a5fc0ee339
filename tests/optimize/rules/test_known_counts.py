"""Test the rules that use known row counts."""

from __future__ import annotations

import pytest

import dml
from dml import col
from dml.ops.sort.sort import Sort
from dml.optimize.phases import optimize
from dml.optimize.rules.known_counts import drop_take_of_less, most_elements, take_while_sorting
from dml.testing.plans import keeps_rows, leaves, rewrites
from tests.optimize.tables import ROWS, flights


@pytest.mark.law
def test_drop_take_of_less() -> None:
    by = [drop_take_of_less]
    rewrites(flights().take(ROWS), to=flights(), by=by)
    late = flights().filter(col("late") > 0).skip(3)
    rewrites(late.take(ROWS - 3), to=late, by=by)
    leaves(flights().take(ROWS - 1), by=by)
    leaves(flights().repeat().take(10 * ROWS), by=by)
    leaves(flights().flat_map(lambda row: [row, row]).take(ROWS), by=by)
    leaves(flights().skip(99).take(0), by=by)


@pytest.mark.law
def test_take_while_sorting() -> None:
    by = [take_while_sorting]

    def rows_held(ds: dml.Dataset) -> list[int | None]:
        chosen = optimize(ds._node, 0).chosen
        return [node.most for node in chosen.walk() if isinstance(node, Sort)]

    ds = flights().sort("late")
    assert rows_held(ds.take(4)) == [4]
    assert rows_held(ds.skip(2).take(4).batch(2)) == [6]
    assert rows_held(ds.batch(3).take(2)) == [6]
    keeps_rows(ds.skip(2).take(4))
    assert rows_held(ds) == [None]
    leaves(ds.filter(col("id") > 3).skip(1), by=by)
    leaves(ds.shuffle(4).take(2), by=by)


def test_take_of_nothing_stays_and_looks_at_no_row_that_fails() -> None:
    failing = dml.from_dict({"x": [1 << 40] * 3}).filter(col("x") > 0).cast(x="int32")
    assert list(failing.batch(4).take(0).skip(2)) == []


@pytest.mark.law
@pytest.mark.parametrize(
    ("ds", "most"),
    [
        (flights().repeat(3), 3 * ROWS),
        (flights().repeat(0), 0),
        (flights().batch(4), 6),
        (flights().batch(4, drop_last=True).take(5), 5),
        (flights().skip(99), 0),
        (flights().repeat().take(7).repeat(2), 14),
        (flights().shuffle(3).map(dict), ROWS),
        (flights().repeat(), None),
    ],
)
def test_most_elements(ds: dml.Dataset, most: int | None) -> None:
    assert most_elements(ds._node) == most
    assert most is None or len(list(ds)) == most


def test_a_dropped_tail_that_fails_is_not_read_for_batches_that_were_not_asked() -> None:
    ds = dml.range(10).map(lambda row: {"x": 1 // (9 - row["id"])}).batch(4, drop_last=True)
    asked = ds.map(lambda batch: {"x": batch["x"] + 1}).take(2)
    assert len(list(asked)) == len(list(asked.with_options(optimize=False))) == 2


def test_names_do_not_depend_on_how_long_the_data_is() -> None:
    short, long = (dml.range(n).take(10) for n in (5, 50))
    assert "Take" not in short.explain("chosen")
    assert "Take" in short.explain("normalized")
    assert "Take" in long.explain("chosen")
