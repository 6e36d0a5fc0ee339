"""Test that an expression shared by a predicate and columns is computed once."""

from __future__ import annotations

import pytest

import dml
from dml import col
from dml.expr.columns.computation import ComputedSegment, replaced, shared
from dml.expr.columns.value import Value
from dml.testing.plans import keeps_rows
from tests.optimize.tables import flights

CLEAN = col("gate").str.to_uppercase().str.strip_chars("G")
RISKY = col("gate").str.to_integer()


def work(ds: dml.Dataset) -> ComputedSegment:
    (step,) = keeps_rows(ds).stage.steps
    found: ComputedSegment = step.work  # type: ignore[attr-defined]
    return found


def ops(values: tuple[Value, ...] | list[Value]) -> set[str]:
    found, stack = set(), list(values)
    while stack:
        value = stack.pop()
        found.add(value.op)
        stack += value.args
    return found


@pytest.mark.law
def test_a_function_of_text_in_both_is_computed_once() -> None:
    ds = flights().with_columns(clean=CLEAN).filter(col("clean") != "1")
    made = work(ds.with_columns(n=col("clean").str.len_bytes() + col("id")))
    assert made.first is not None
    assert made.first.values == (CLEAN.value,)
    found = made._later(flights().schema)
    assert found is not None
    later = found[1]
    assert not ops(later.predicate.parts) & {op for op in ops([CLEAN.value]) if "." in op}
    assert later.first is None


@pytest.mark.law
def test_cheap_or_fallible_or_unshared_parts_are_left_where_they_are() -> None:
    def first(ds: dml.Dataset) -> object:
        return work(ds).first

    assert first(flights().with_columns(z=col("id") * 2).filter(col("z") > 3)) is None
    assert first(flights().filter(CLEAN != "1").select("id")) is None
    assert first(flights().filter(RISKY > 1).with_columns(z=RISKY)) is None
    guarded = flights().filter(col("id").cast("int8") > 2).filter(CLEAN != "1")
    assert first(guarded.with_columns(z=CLEAN)) is None  # tried on the rows that are left


def test_the_largest_common_parts_are_found() -> None:
    part, whole = CLEAN.str.len_bytes().value, (CLEAN.str.len_bytes() + 1).value
    assert shared([part], [whole, part]) == (part,)
    assert shared([whole], [CLEAN.value]) == (CLEAN.value,)
    assert shared([], [whole]) == ()
    (made,) = replaced([whole], {part: "n"})
    assert made == (col("n") + 1).value


@pytest.mark.law
def test_names_that_a_user_has_are_not_taken() -> None:
    ds = flights().rename({"late": "shared 1"}).filter(CLEAN != "1").with_columns(c=CLEAN)
    assert work(ds).first is not None


@pytest.mark.law
def test_a_cast_that_fails_behind_it_is_told_where_it_is() -> None:
    ds = flights().filter(CLEAN != "1").with_columns(c=CLEAN, s=(col("id") * 9).cast("int8"))
    keeps_rows(ds)
    keeps_rows(ds.batch(3))
