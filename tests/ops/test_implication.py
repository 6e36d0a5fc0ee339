"""Test the search for columns and filters in other cache entries: only proven matches count."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

import dml
from dml import col, lit
from dml.expr.columns.column import Column
from dml.expr.columns.value import Value
from dml.ops.implication import Conjunct, implied, made_of
from dml.ops.relation import Naming, relations

COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
COMPARED |= {"==": operator.eq, "!=": operator.ne}
BOUNDS = st.one_of(
    st.integers(-4, 4), st.sampled_from([0.0, -0.0, 0.5, 2.0, 1e300, math.nan, math.inf, 2.0**53])
)
NUMBERS = [None, math.nan, math.inf, -math.inf, *(n / 2 for n in range(-11, 12)), 1e300, 2.0**53]


def conjunct(op: str, bound: float, *, turned: bool = False, name: str = "x") -> Value:
    """A comparison with a constant, which may stand on either side."""
    left: Any
    right: Any
    left, right = (lit(bound), col(name)) if turned else (col(name), bound)
    found: Column = COMPARED[op](left, right)
    return found.value


def passes(op: str, bound: float, value: float | None, *, turned: bool) -> bool:
    if value is None:
        return False
    found: bool = COMPARED[op](bound, value) if turned else COMPARED[op](value, bound)
    return found


@given(st.sampled_from([*COMPARED]), BOUNDS, st.sampled_from([*COMPARED]), BOUNDS, st.booleans())
def test_what_is_implied_holds_for_every_number(
    op: str, bound: float, other: str, least: float, turned: bool
) -> None:
    naming = Naming(0)
    mine = Conjunct.of(conjunct(op, bound, turned=turned), naming)
    theirs = Conjunct.of(conjunct(other, least), naming)
    if mine.implies(theirs):
        for value in NUMBERS:
            if passes(op, bound, value, turned=turned):
                assert passes(other, least, value, turned=False), (op, bound, other, least, value)


CLOSE = [0.1, 0.1 + 1e-12, 0.1 + 1e-8, 0.2, 1 << 24, (1 << 24) + 1, (1 << 24) + 2, 1e300, 1e301]


def test_numbers_that_are_one_as_float32_say_nothing_of_each_other() -> None:
    with np.errstate(over="ignore"):
        single = {each: np.float32(each) for each in CLOSE}
    made = {(op, n): Conjunct.of(conjunct(op, n), Naming(0)) for op in COMPARED for n in CLOSE}
    for (op, bound), (other, least) in itertools.product(made, repeat=2):
        if made[op, bound].implies(made[other, least]):
            for value in single.values():
                if COMPARED[op](value, single[bound]):
                    assert COMPARED[other](value, single[least]), (op, bound, other, least, value)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (col("x") > 5, col("x") > 3),
        (col("x") >= 0.9, col("x") > 0.5),
        (col("x") > 5, col("x") >= 5),
        (lit(5) < col("x"), col("x") > 5),
        (col("x") == 5, col("x") <= 5),
        (col("x") < 2.5, col("x") < 3.5),
        (col("x") * 2 + 1 <= 4, lit(7) >= 1 + col("x") * 2),
    ],
)
def test_what_is_seen(mine: Column, theirs: Column) -> None:
    naming = Naming(0)
    one, other = Conjunct.of(mine.value, naming), Conjunct.of(theirs.value, naming)
    assert one.implies(other)
    assert other.name == one.name or not other.implies(one)
    assert implied([other], [one, Conjunct.of((col("y") > 1).value, naming)])
    assert not implied([other, Conjunct.of((col("y") > 1).value, naming)], [one])


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (col("x") > 5, col("y") > 3),
        (col("x") > 5, col("x") > 3.0),
        (col("x") > 2**60, col("x") > 2**60 - 1),
        (col("x") > True, col("x") > False),
        (col("x") != 5, col("x") != 6),
        (col("x") > 5, col("x") < 6),
    ],
)
def test_what_is_not_sure_is_not_said(mine: Column, theirs: Column) -> None:
    naming = Naming(0)
    assert not Conjunct.of(mine.value, naming).implies(Conjunct.of(theirs.value, naming))


def test_draws_are_those_of_one_seed() -> None:
    draw = Value("random", (), (None, 0, (0, 0)))
    assert Naming(1)(draw) != Naming(2)(draw)
    assert Naming(1)(draw) == Naming(1)(Value("random", (), (None, 0, (0, 0))))


def relation_of(ds: dml.Dataset) -> Any:
    """Rows and columns of a pipeline in normal form, over its source."""
    from dml.optimize.phases import optimize

    source, *nodes = optimize(ds._node, 0).plan.operators
    functions = [b"" if each.calls is None else each.calls.digest for each in nodes]
    return relations(source.schema, nodes, functions)[-1]


@dml.udf(return_dtype="int64", fingerprint="thrice")
def thrice(x: int) -> int:
    return 3 * x


DATA = dml.from_arrow(pa.table({"x": [1, 2, 3], "y": [1.0, 2.0, 3.0]}))


def test_how_it_was_written_does_not_count() -> None:
    one = relation_of(
        DATA.filter(col("x") > 1)
        .with_columns(t=col("y") * 2, u=thrice(col("x")))
        .with_columns(z=col("t") + col("u"))
        .filter(col("u") > 3)
        .select("z", "x")
    )
    other = relation_of(
        DATA.with_columns(three=thrice("x"))
        .filter(col("three") > 3)
        .filter(lit(1) < col("x"))
        .select(b=col("x"), a=col("three") + 2 * col("y"))
    )
    naming = Naming(0)
    assert one.base == other.base == 0
    assert naming.rows("b", one.predicate) == naming.rows("b", other.predicate)
    assert {naming(v) for _, v in one.columns} == {naming(v) for _, v in other.columns}
    assert naming.group("r", one.columns) == naming.group("r", one.columns[::-1])
    assert naming.group("r", one.columns) != naming.group("r", other.columns), "other names"


def test_columns_are_made_of_stored_ones() -> None:
    naming = Naming(0)
    double = (col("x") * 2).value
    stored = {naming(double): "d", naming(col("y").value): "y"}
    some = ((col("x") * 2 > 4).value, (col("y") > 1).value)
    made = made_of(stored, {naming(some[1])}, some, (("a", (2 * col("x") + 1).value),), naming)
    assert made is not None
    assert [str(each) for each in made.residual] == ["(d > 4)"]
    assert [(name, str(value)) for name, value in made.columns] == [("a", "(d + 1)")]
    assert not made.plain
    assert made_of(stored, (), ((col("x") > 4).value,), (), naming) is None, "x is not there"
    lacking = made_of(stored, (), (), (("x", col("x").value), ("y", col("y").value)), naming)
    assert lacking is not None
    assert [name for name, _ in lacking.columns] == ["y"]
    assert lacking.plain


def test_what_might_fail_is_not_computed_of_stored_columns() -> None:
    naming = Naming(0)
    stored = {naming(col("x").value): "x"}
    strict = (col("x").cast("int8") > 3).value
    assert made_of(stored, (), (strict,), (), naming) is None
    made = made_of(stored, (), (), (("a", col("x").cast("int8").value),), naming)
    assert made is not None
    assert not made.columns
