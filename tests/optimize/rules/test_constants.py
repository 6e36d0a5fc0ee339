"""Test the rules that fold constants and simplify logic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import dml
from dml import col, lit, when
from dml.kernels.cast_ops import misfits
from dml.optimize.rules.constants import (
    drop_true_parts,
    fold_constants,
    holds_all,
    keep_nothing,
    pick_branch,
    relax_sure_cast,
    simplify_logic,
)
from dml.optimize.rules.order import columns_before_position
from dml.testing.plans import keeps_rows, leaves, rewrites
from tests.optimize.tables import flights

NO = lit(None, "bool")


@pytest.mark.law
def test_fold_constants() -> None:
    by = [fold_constants]
    rewrites(
        flights().with_columns(k=col("miles") + lit(2) * 3 + lit(0.5)),
        to=flights().with_columns(k=col("miles") + lit(6, "int64") + 0.5),
        by=by,
    )
    rewrites(
        flights().filter(col("late") > lit(7) // 0),
        to=flights().filter(col("late") > lit(None, "int64")),
        by=by,
    )
    leaves(flights().with_columns(k=lit(1).cast("int8") + 1), by=by)  # a cast may fail
    leaves(flights().with_columns(k=(col("miles") + 1) + 1), by=by)  # int8 wraps in between
    keeps_rows(flights().with_columns(k=(lit(1) / 3).sqrt(), n=lit(0.0) / 0, z=-lit(0.0)))


@pytest.mark.law
def test_simplify_logic() -> None:
    by = [simplify_logic, fold_constants]
    late = col("late") > 0
    for written, to in (
        (late & (lit(1) == 1), late),
        ((lit(1) != 1) | late, late),
        (late & (lit(1) != 1), lit(False, "bool")),
        (late | (lit(1) == 1), lit(True, "bool")),
        (col("late").is_null().fill_null(False), col("late").is_null()),
    ):
        rewrites(flights().with_columns(p=written), to=flights().with_columns(p=to), by=by)
    leaves(flights().with_columns(p=late & NO), by=[simplify_logic])  # null, or false
    leaves(flights().with_columns(p=late.fill_null(False)), by=[simplify_logic])  # null late
    leaves(flights().with_columns(p=col("id") & 1), by=[simplify_logic])  # bits
    leaves(flights().with_columns(p=(col("id").is_null() & col("id").is_null()) | late), by=by[:1])


@pytest.mark.law
def test_pick_branch() -> None:
    by = [pick_branch]
    rewrites(
        flights().with_columns(
            p=when(lit(True, "bool")).then(col("miles")).otherwise(col("miles"))
        ),
        to=flights().with_columns(p=col("miles")),
        by=[pick_branch, simplify_logic],
    )
    wide = when(lit(True)).then(col("miles")).otherwise(col("late"))
    rewrites(
        flights().with_columns(p=wide),
        to=flights().with_columns(p=col("miles").cast("float64", strict=False)),
        by=[pick_branch, simplify_logic],
    )
    keeps_rows(flights().with_columns(p=when(NO).then(1).otherwise(2.5)))
    keeps_rows(flights().with_columns(p=when(lit(False)).then("a").otherwise(col("gate"))))
    leaves(flights().with_columns(p=when(col("late") > 0).then(1).otherwise(2)), by=by)


@pytest.mark.law
def test_drop_true_parts() -> None:
    late = col("late") > 0
    rewrites(
        flights().filter(lit(True, "bool") & late), to=flights().filter(late), by=[drop_true_parts]
    )
    keeps_rows(flights().filter(lit(True)))
    leaves(flights().filter(col("late").is_nan() & late), by=[drop_true_parts])


@pytest.mark.law
@pytest.mark.parametrize("never", [lit(False), NO, lit(3) < 2, lit(None) > 1], ids=str)
def test_keep_nothing(never: dml.Column) -> None:
    by = [keep_nothing, fold_constants]
    late = col("late") > 0
    rewrites(flights().filter(late & never), to=flights().filter(lit(False, "bool")), by=by)
    plan = keeps_rows(flights().filter(late & never).with_columns(z=1))
    assert plan.stage.source.unit_count == 0  # nothing is read
    leaves(flights().filter(late & col("late").is_null()), by=by[:1])  # never true, but not proven


def test_functions_below_a_filter_that_keeps_nothing_are_called() -> None:
    seen: list[int] = []

    def note(row: dict[str, int]) -> dict[str, int]:
        seen.append(row["id"])
        return row

    ds = dml.range(5).map(note, schema={"id": "int64"}).filter(lit(False))
    assert list(ds.with_options(executor="sync")) == []
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.law
def test_relax_sure_cast() -> None:
    by = [relax_sure_cast]
    rewrites(
        flights().cast({"miles": "int32", "id": "float32"}),
        to=flights().cast({"miles": "int32", "id": "float32"}, strict=False),
        by=by,
    )
    rewrites(
        flights().take(5).cast({"miles": "int32"}),
        to=flights().cast({"miles": "int32"}).take(5),
        by=[relax_sure_cast, columns_before_position],
    )
    leaves(flights().cast({"id": "int32"}), by=by)
    leaves(flights().cast({"late": "int64"}), by=by)


CODES = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(CODES, CODES)))
def test_a_cast_is_sure_only_if_no_value_is_a_misfit(source: str, target: str) -> None:
    if source[0] == "f":
        values = np.array([0, -1, 1.5, np.nan, np.inf, np.finfo(source).max], dtype=source)
    elif source == "b1":
        values = np.array([False, True])
    else:
        info = np.iinfo(source)
        values = np.array([info.min, 0, info.max], dtype=source)
    with np.errstate(all="ignore"):
        wrong = misfits(values, values.astype(target), target)
    assert holds_all(source, target) == (wrong is None or not wrong.any())
