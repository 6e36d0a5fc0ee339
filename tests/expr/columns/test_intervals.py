"""Test bounds of integer expressions against exact Python integers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.data.schema import Schema
from dml.expr.columns.intervals import Interval, interval, left, passed_on
from dml.expr.columns.value import Value, col, lit

NAMES = ("a", "b")
PYTHON: dict[str, Callable[..., int]] = {
    "py_add": operator.add,
    "py_sub": operator.sub,
    "py_mul": operator.mul,
    "py_neg": operator.neg,
    "py_abs": abs,
    "py_floordiv": operator.floordiv,
    "py_mod": operator.mod,
}
NEAR = st.integers(-5, 5)
WIDE = st.integers(-(2**63), 2**63 - 1)
EDGES = st.sampled_from([-(2**63), 2**63 - 1, -(2**53), 2**53, 2**32, -(2**31)])
NUMBERS = NEAR | EDGES | WIDE


def python(value: Value, row: Mapping[str, int]) -> int:
    """The value of a row; ZeroDivisionError as in Python."""
    if value.op == "col":
        return row[value.params[0]]
    if value.op == "lit":
        return int(value.params[0])
    return PYTHON[value.op](*(python(arg, row) for arg in value.args))


def outside(check: Value, row: Mapping[str, int]) -> bool:
    """Whether a check holds: Python raises, or gives a number beyond 64 bits."""
    if check.op in ("or", "and"):
        held = [outside(arg, row) for arg in check.args]
        return any(held) if check.op == "or" else all(held)
    given = [python(arg, row) for arg in check.args]
    name = check.op.removeprefix("overflow_")
    if name == "truediv":
        return given[1] == 0 or any(abs(each) > 2**53 for each in given)
    try:
        return not -(2**63) <= PYTHON[f"py_{name}"](*given) < 2**63
    except ZeroDivisionError:
        return True


@st.composite
def values(draw: st.DrawFn, depth: int = 3) -> Value:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        number = lit(draw(NUMBERS), pa.int64())
        return draw(st.sampled_from([col("a"), col("b"), number]))
    op = draw(st.sampled_from(sorted(PYTHON)))
    count = 1 if op in ("py_neg", "py_abs") else 2
    return Value(op, tuple(draw(values(depth - 1)) for _ in range(count)))


@st.composite
def checks(draw: st.DrawFn, depth: int = 2) -> Value:
    if depth and draw(st.booleans()):
        op = draw(st.sampled_from(["or", "and"]))
        return Value(op, (draw(checks(depth - 1)), draw(checks(depth - 1))))
    op = draw(st.sampled_from([*sorted(PYTHON), "py_truediv"]))
    count = 1 if op in ("py_neg", "py_abs") else 2
    args = tuple(draw(values(2)) for _ in range(count))
    return Value(f"overflow_{op[3:]}", args)


@st.composite
def columns(draw: st.DrawFn) -> dict[str, Interval]:
    ends = {name: sorted((draw(NUMBERS), draw(NUMBERS))) for name in NAMES}
    return {name: Interval(low, high) for name, (low, high) in ends.items()}


@st.composite
def rows(draw: st.DrawFn, known: Mapping[str, Interval]) -> dict[str, int]:
    numbers = {
        name: st.sampled_from([each.low, each.high]) | st.integers(each.low, each.high)
        for name, each in known.items()
    }
    return {name: draw(drawn) for name, drawn in numbers.items()}


@pytest.mark.law
@given(st.data(), values(), columns())
def test_every_value_lies_between_its_bounds(
    data: st.DataObject, value: Value, known: dict[str, Interval]
) -> None:
    found = interval(value, known)
    row = data.draw(rows(known))
    if found is not None:
        assert found.low <= python(value, row) <= found.high


@pytest.mark.law
@given(st.data(), checks(), columns())
def test_what_is_left_of_a_check_holds_where_it_held(
    data: st.DataObject, check: Value, known: dict[str, Interval]
) -> None:
    rest = left([check], known)
    row = data.draw(rows(known))
    try:
        held = outside(check, row)
    except ZeroDivisionError:  # an operand is none: an earlier check holds in such a row
        return
    assert held == any(outside(part, row) for part in rest)


def test_bounds_are_tight_where_they_can_be() -> None:
    known = {"a": Interval(0, 99), "b": Interval(-3, 4)}
    twice = Value("py_mul", (col("a"), lit(2, pa.int64())))
    assert interval(twice, known) == Interval(0, 198)
    assert interval(Value("py_mod", (col("a"), lit(7, pa.int64()))), known) == Interval(0, 6)
    assert interval(Value("py_mod", (col("a"), lit(100, pa.int64()))), known) == Interval(0, 99)
    assert interval(Value("py_abs", (col("b"),)), known) == Interval(0, 4)
    assert interval(Value("py_floordiv", (col("a"), col("b"))), known) is None
    assert left([Value("overflow_mul", (twice, twice))], known) == ()
    assert left([Value("overflow_mod", (col("a"), col("b")))], known) != ()
    assert left([Value("is_null", (col("a"),)), Value("is_null", (col("c"),))], known) == (
        Value("is_null", (col("c"),)),
    )


def test_of_floats_and_unknown_columns_nothing_is_known() -> None:
    known = {"a": Interval(0, 9)}
    assert interval(Value("py_add", (col("a"), lit(0.5, pa.float64()))), known) is None
    assert interval(Value("cast", (col("a"),), (pa.float64(), False)), known) is None
    assert interval(Value("py_add", (col("a"), col("c"))), known) is None
    whole = (("x", Value("py_neg", (col("a"),))), ("y", col("c")))
    schema = Schema({"x": pa.int64(), "y": pa.int64()})
    assert passed_on(whole, schema, known) == {"x": Interval(-9, 0)}


@pytest.mark.law
def test_long_and_deep_checks_are_looked_at() -> None:
    deep = col("a")
    for _ in range(5000):
        deep = Value("py_add", (deep, lit(1, pa.int64())))
    assert interval(deep, {"a": Interval(0, 9)}) is None
    never = Value("overflow_neg", (col("a"),))
    check = never
    for _ in range(5000):
        check = Value("or", (check, never))
    assert left([check], {"a": Interval(0, 9)}) == ()
