"""Test expression trees: fingerprints, substitution, one canonical form of equal expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.expr.columns.value import (
    Value,
    bind_draws,
    canonical,
    col,
    joined,
    lit,
    operands,
    rebuilt,
    substitute,
    value_text,
)

LEAVES = st.one_of(st.sampled_from("xyz").map(col), st.integers(-3, 3).map(lit), st.just(lit(None)))
TREES = st.recursive(
    LEAVES,
    lambda parts: st.builds(
        lambda op, a, b: Value(op, (a, b)), st.sampled_from(["add", "lt", "gt", "and", "sub"]),
        parts, parts,
    ),
    max_leaves=8,
)  # fmt: skip


def test_equality_is_the_digest() -> None:
    assert lit(1) != lit(1.0)
    assert lit(True) != lit(1)
    assert lit(0.0) != lit(-0.0)
    assert lit(float("nan")) == lit(float("nan"))
    assert col("x") == col("x") != lit("x")
    assert len({col("x"), col("x"), col("y")}) == 2
    assert Value("sub", (col("x"), col("y"))) != Value("sub", (col("y"), col("x")))


def test_what_a_value_knows_of_itself() -> None:
    draw = Value("random", (), (None, 0, None))
    value = Value("add", (Value("cast", (col("a"),), ("kind", True)), draw))
    assert value.refs == {"a"}
    assert value.draws
    assert not value.total
    assert value.depth == 3
    assert Value("cast", (col("a"),), ("kind", False)).total


def test_substitution_is_at_once_and_shares() -> None:
    swapped = substitute(Value("sub", (col("x"), col("y"))), {"x": col("y"), "y": col("x")}, {})
    assert swapped == Value("sub", (col("y"), col("x")))
    value = col("x")
    for _ in range(60):  # 2**60 parts, were they not shared
        value = Value("add", (value, value))
    assert substitute(value, {"x": col("y")}, {}).refs == {"y"}
    assert substitute(value, {"z": col("y")}, {}) is value


@pytest.mark.law
@given(TREES)
def test_canonical_settles_and_keeps_columns(value: Value) -> None:
    once = canonical(value, {})
    assert canonical(once, {}) is once or canonical(once, {}) == once
    assert once.refs == value.refs
    assert "gt" not in ops(once)


@given(TREES)
def test_rebuilding_with_nothing_changed_is_the_same_object(value: Value) -> None:
    assert rebuilt(value, lambda arg: arg) is value


def ops(value: Value) -> set[str]:
    return {value.op}.union(*map(ops, value.args))


def test_one_spelling() -> None:
    x, y = col("x"), col("y")
    assert canonical(Value("gt", (x, y)), {}) == canonical(Value("lt", (y, x)), {})
    assert canonical(Value("add", (x, y)), {}) == canonical(Value("add", (y, x)), {})
    assert canonical(Value("sub", (x, y)), {}) != canonical(Value("sub", (y, x)), {})


def test_draws_are_bound_once() -> None:
    draw = Value("random", (), (7, 3, None))
    bound = bind_draws(Value("neg", (draw,)), 2, 5)
    assert bound.args[0].params == (7, 3, (2, 5))
    assert bind_draws(bound, 9, 9) is bound
    plain = Value("neg", (col("x"),))
    assert bind_draws(plain, 1, 1) is plain


def test_conjunctions_come_apart_in_order() -> None:
    parts = [col("a"), col("b"), col("c")]
    assert list(operands([joined("and", parts)], "and")) == parts
    assert list(operands([col("a")], "and")) == [col("a")]


def test_text() -> None:
    assert value_text(Value("add", (col("x"), lit(1)))) == "(x + 1)"
    assert value_text(Value("not", (col("x"),))) == "~x"
    deep = col("x")
    for _ in range(500):
        deep = Value("neg", (deep,))
    assert value_text(deep) == "------..."
    assert len(value_text(lit("a" * 1000))) == 160
