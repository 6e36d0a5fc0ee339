"""Compare the oracle's scalar operations with the NumPy tier, value by value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels.interpreter import run
from dml.kernels.program import Program, Step
from dml.kernels.vec import CastFailure, Vec
from dml.testing.scalars.floats import INTEGER_LIMITS, from_integer, rounded
from dml.testing.scalars.operations import CastFailed, apply_scalar, fit

NUMBERS = (*INTEGER_LIMITS, "f4", "f8")
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -7.0, math.inf, -math.inf, math.nan, 2.0**31, -(2.0**63)]


def values_of(code: str) -> st.SearchStrategy[Any]:
    if code == "b1":
        return st.booleans() | st.none()
    if code in INTEGER_LIMITS:
        low, high = INTEGER_LIMITS[code]
        edges = [
            v for v in (0, 1, 2, 3, -1, -2, 7, low, low + 1, high, high - 1) if low <= v <= high
        ]
        return st.sampled_from(edges) | st.integers(low, high) | st.none()
    floats = st.floats(width=32 if code == "f4" else 64) | st.sampled_from(EDGES)
    return floats | st.none()


def vec(values: list[Any], code: str) -> Vec:
    present = np.array([value is not None for value in values])
    return Vec(np.array([0 if value is None else value for value in values], dtype=code), present)


def engine(
    op: str, rows: list[tuple[Any, ...]], given: tuple[str, ...], code: str, *params: Any
) -> list[Any]:
    columns = [
        vec(list(column), kind) for column, kind in zip(zip(*rows, strict=True), given, strict=True)
    ]
    step = Step(op, tuple(range(len(given))), code, params)
    found = run(Program(given, (step,), (len(given),)), columns, len(rows)).outputs[0]
    assert isinstance(found, Vec)
    valid = np.ones(len(rows), bool) if found.valid is None else found.valid
    return [value if ok else None for value, ok in zip(found.values.tolist(), valid, strict=True)]


def shown(value: Any) -> str:
    """repr tells zeros apart and finds NaN equal to itself."""
    return repr(math.nan) if isinstance(value, float) and math.isnan(value) else repr(value)


def check(op: str, row: tuple[Any, ...], given: tuple[str, ...], code: str, *params: Any) -> None:
    expected = apply_scalar(op, row, code, params, given[0])
    assert shown(engine(op, [row], given, code, *params)[0]) == shown(expected), (op, row, params)


BOTH = ("add", "sub", "mul", "floordiv", "mod", "minimum", "maximum")
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
WHOLE = ("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right")


@pytest.mark.law
@given(
    st.sampled_from(BOTH + COMPARED + WHOLE + ("fill_null", "fill_nan")),
    st.sampled_from(NUMBERS),
    st.data(),
)
def test_two_operands(op: str, code: str, data: st.DataObject) -> None:
    if op in WHOLE and code[0] == "f":
        return
    row = (data.draw(values_of(code)), data.draw(values_of(code)))
    check(op, row, (code, code), "b1" if op in COMPARED else code)


@pytest.mark.law
@given(st.sampled_from(NUMBERS), st.sampled_from(["f4", "f8"]), st.data())
def test_true_division(given: str, code: str, data: st.DataObject) -> None:
    check(
        "truediv", (data.draw(values_of(given)), data.draw(values_of(given))), (given, given), code
    )


@given(
    st.sampled_from(["neg", "abs", "floor", "ceil", "trunc", "is_null", "is_nan"]),
    st.sampled_from(NUMBERS),
    st.data(),
)
def test_one_operand(op: str, code: str, data: st.DataObject) -> None:
    check(op, (data.draw(values_of(code)),), (code,), "b1" if op.startswith("is_") else code)


@given(
    st.sampled_from(["sqrt", "exp", "log1p", "sin", "tanh"]),
    st.sampled_from(["f4", "f8"]),
    st.data(),
)
def test_functions(op: str, code: str, data: st.DataObject) -> None:
    check(op, (data.draw(values_of(code)),), (code,), code)


@given(st.sampled_from(NUMBERS), st.integers(-4, 4), st.data())
def test_rounding(code: str, digits: int, data: st.DataObject) -> None:
    if digits < 0 and code in INTEGER_LIMITS and 10**-digits > INTEGER_LIMITS[code][1]:
        return
    check("round", (data.draw(values_of(code)),), (code,), code, digits)


@given(st.sampled_from(["and", "or"]), values_of("b1"), values_of("b1"))
def test_three_valued_logic(op: str, a: bool | None, b: bool | None) -> None:
    check(op, (a, b), ("b1", "b1"), "b1")


@given(values_of("b1"), values_of("f8"), values_of("f8"))
def test_choice(condition: bool | None, a: float | None, b: float | None) -> None:
    check("if_else", (condition, a, b), ("b1", "f8", "f8"), "f8")


@pytest.mark.law
@given(st.sampled_from(("b1", *NUMBERS)), st.sampled_from(("b1", *NUMBERS)), st.data())
def test_casts(given: str, code: str, data: st.DataObject) -> None:
    row = (data.draw(values_of(given)),)
    check("cast", row, (given,), code, False)
    try:
        expected = apply_scalar("cast", row, code, (True,))
    except CastFailed:
        with pytest.raises(CastFailure):
            engine("cast", [row], (given,), code, True)
    else:
        assert shown(engine("cast", [row], (given,), code, True)[0]) == shown(expected)


@pytest.mark.law
@given(st.sampled_from(("b1", *NUMBERS)), st.integers(-3, 2**64), st.data())
def test_hashes(code: str, seed: int, data: st.DataObject) -> None:
    check("hash", (data.draw(values_of(code)),), (code,), "u8", seed)


@pytest.mark.law
@given(st.sampled_from(NUMBERS), st.data())
def test_buckets_and_members(code: str, data: st.DataObject) -> None:
    literal = st.integers(-300, 300) if code in INTEGER_LIMITS else st.floats(-300, 300)
    params = tuple(sorted(set(data.draw(st.lists(literal, max_size=5)))))
    row = (data.draw(values_of(code)),)
    check("bucketize", row, (code,), "i8", params)
    check("is_in", row, (code,), "b1", params)


@given(values_of("u8"), values_of("u8"), st.integers(0, 2**64 - 1), st.integers(0, 5))
def test_uniform(hi: int | None, lo: int | None, key: int, draw: int) -> None:
    check("uniform", (hi, lo), ("u8", "u8"), "f8", key, draw)


@given(st.lists(values_of("f8"), min_size=1, max_size=4))
def test_stack(row: list[float | None]) -> None:
    check("stack", tuple(row), ("f8",) * len(row), "f8")


@pytest.mark.law
@given(
    st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "truediv"]),
    st.sampled_from(["i8", "f8"]),
    st.data(),
)
def test_pythons_meaning_where_the_check_is_silent(op: str, code: str, data: st.DataObject) -> None:
    row = (data.draw(values_of(code)), data.draw(values_of(code)))
    check(f"overflow_{op}", row, (code, code), "b1")
    if not apply_scalar(f"overflow_{op}", row, "b1"):
        check(f"py_{op}", row, (code, code), "f8" if op == "truediv" else code)


@given(st.sampled_from(["neg", "abs"]), values_of("i8"))
def test_pythons_meaning_of_one_operand(op: str, value: int | None) -> None:
    check(f"overflow_{op}", (value,), ("i8",), "b1")
    if not apply_scalar(f"overflow_{op}", (value,), "b1"):
        check(f"py_{op}", (value,), ("i8",), "i8")


@given(st.integers(-(2**63), 2**64 - 1))
def test_integers_are_rounded_once(value: int) -> None:
    assert from_integer(value, "f8") == float(value)
    kind = np.int64 if value < 2**63 else np.uint64
    assert from_integer(value, "f4") == float(np.float32(kind(value)))


def test_literals_and_text() -> None:
    assert apply_scalar("lit", (), "i1", (200,)) == -56
    assert apply_scalar("lit", (), "f4", (0.1,)) == rounded(0.1, "f4") == fit(0.1, "f4")
    assert apply_scalar("lit", (), "f4", (None,)) is None
    assert apply_scalar("lt", ("a", "é"), "b1") is True
    assert apply_scalar("hash", ("abc",), "u8", (0,)) == 0x44BC2CF5AD770999
    assert apply_scalar("hash", (b"abc",), "u8", (0,)) == 0x44BC2CF5AD770999
    with pytest.raises(KeyError):
        apply_scalar("gamma", (1.0,), "f8")
