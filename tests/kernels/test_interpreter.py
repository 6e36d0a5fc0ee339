"""Test the NumPy interpreter: every operation against plain Python, one value at a time."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels.interpreter import run
from dml.kernels.program import Program, Step
from dml.kernels.vec import CastFailure, Register, Vec
from tests.kernels.registers import FLOATS, INF, INTS, NAN, answer, compute, ints, items, same, vec


def wrap(value: int, code: str) -> int:
    bits = 8 * int(code[1])
    value %= 2**bits
    return value - 2**bits if code[0] == "i" and value >= 2 ** (bits - 1) else value


def shift_left(a: int, b: int, bits: int) -> int:
    return a << b if 0 <= b < bits else 0


def shift_right(a: int, b: int, bits: int) -> int:
    return a >> b if 0 <= b < bits else (-1 if a < 0 else 0)


PYTHON: dict[str, Callable[[int, int], int | None]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b if b else None,
    "mod": lambda a, b: a % b if b else None,
    "bit_and": operator.and_,
    "bit_or": operator.or_,
    "bit_xor": operator.xor,
    "minimum": min,
    "maximum": max,
}


@pytest.mark.law
@given(st.data(), st.sampled_from(sorted(INTS)))
def test_integers_wrap_and_floor(data: st.DataObject, code: str) -> None:
    pairs = data.draw(st.lists(st.tuples(ints(code), ints(code)), min_size=1, max_size=20))
    left, right = vec([p[0] for p in pairs], code), vec([p[1] for p in pairs], code)
    bits = 8 * int(code[1])
    functions = PYTHON | {
        "shift_left": lambda a, b: shift_left(a, b, bits),
        "shift_right": lambda a, b: shift_right(a, b, bits),
    }
    for op, function in functions.items():
        expected = [None if None in p else function(*p) for p in pairs]
        wrapped = [None if v is None else wrap(v, code) for v in expected]
        assert answer(op, [left, right], code) == wrapped, op


def python_float(function: Callable[[float, float], float]) -> Callable[[Any, Any], float | None]:
    def guarded(a: float, b: float) -> float | None:
        return function(a, b) if b != 0 else None

    return guarded


def least(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return NAN
    return a if (a, math.copysign(1, a)) <= (b, math.copysign(1, b)) else b


def greatest(a: float, b: float) -> float:
    return -least(-a, -b)


@pytest.mark.law
@given(st.lists(st.tuples(FLOATS | st.none(), FLOATS | st.none()), min_size=1, max_size=20))
def test_floats_follow_ieee_and_python(pairs: list[tuple[float | None, float | None]]) -> None:
    left, right = vec([p[0] for p in pairs], "f8"), vec([p[1] for p in pairs], "f8")
    functions: dict[str, Callable[[Any, Any], float | None]] = {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "floordiv": python_float(operator.floordiv),
        "mod": python_float(operator.mod),
        "minimum": least,
        "maximum": greatest,
    }
    for op, function in functions.items():
        expected = [None if None in p else function(*p) for p in pairs]
        assert same(answer(op, [left, right], "f8"), expected), op
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        function = getattr(operator, op)
        expected = [None if None in p else function(*p) for p in pairs]
        assert answer(op, [left, right], "b1") == expected, op


def test_zero_literals_keep_their_sign() -> None:
    column = vec([0.0, -0.0, NAN, -1.0, 1.0], "f4")
    for op, function in (("minimum", least), ("maximum", greatest)):
        for zero in (0.0, -0.0, 1.0):
            program = Program(
                ("f4",), (Step("lit", (), "f4", (zero,)), Step(op, (0, 1), "f4")), (2,)
            )
            expected = [function(v, zero) for v in column.values.tolist()]
            assert same(items(run(program, [column], 5).outputs[0]), expected)


THREE = [True, False, None]


def test_logic_has_three_values() -> None:
    pairs = [(a, b) for a in THREE for b in THREE]
    left, right = vec([p[0] for p in pairs], "b1"), vec([p[1] for p in pairs], "b1")

    def both(a: bool | None, b: bool | None) -> bool | None:
        return False if a is False or b is False else (None if None in (a, b) else True)

    def either(a: bool | None, b: bool | None) -> bool | None:
        return True if a or b else (None if None in (a, b) else False)

    assert answer("and", [left, right], "b1") == [both(*p) for p in pairs]
    assert answer("or", [left, right], "b1") == [either(*p) for p in pairs]
    assert answer("not", [vec(THREE, "b1")], "b1") == [False, True, None]
    assert answer("is_null", [vec(THREE, "b1")], "b1") == [False, False, True]


def test_filling_and_choosing() -> None:
    x, y = vec([1.0, None, NAN, None], "f8"), vec([5.0, 6.0, 7.0, None], "f8")
    assert same(answer("fill_null", [x, y], "f8"), [1.0, 6.0, NAN, None])
    assert same(answer("fill_nan", [x, y], "f8"), [1.0, None, 7.0, None])
    assert answer("is_nan", [x], "b1") == [False, None, True, None]
    condition = vec([True, None, False, False], "b1")
    assert same(answer("if_else", [condition, x, y], "f8"), [1.0, None, 7.0, None])


def test_fill_nan_with_null_gives_null() -> None:
    assert answer("fill_nan", [vec([NAN, 1.0], "f8"), vec([None, None], "f8")], "f8") == [None, 1.0]


def test_rounding() -> None:
    x = vec([2.5, -0.5, 0.125, 1e308, INF, NAN, None], "f8")
    assert same(answer("round", [x], "f8", 0), [2.0, -0.0, 0.0, 1e308, INF, NAN, None])
    assert same(answer("round", [x], "f8", 2), [2.5, -0.5, 0.12, 1e308, INF, NAN, None])
    numbers = [-128, -15, -5, 5, 14, 15, 25, 124]
    assert answer("round", [vec(numbers, "i2")], "i2", -1) == [round(v, -1) for v in numbers]
    assert answer("round", [vec([120, None], "i1")], "i1", -3) == [0, None]
    assert same(answer("floor", [vec([-0.5, 1.5], "f4")], "f4"), [-1.0, 1.0])
    assert same(answer("ceil", [vec([-0.5, 1.5], "f4")], "f4"), [-0.0, 2.0])
    assert answer("trunc", [vec([3], "i4")], "i4") == [3]


def fits(value: Any, code: str) -> bool:
    if not math.isfinite(value):
        return False
    return INTS[code][0] <= int(value) <= INTS[code][1]


@pytest.mark.law
@given(st.data(), st.sampled_from(["f4", "f8", "i8", "u8"]), st.sampled_from(list(INTS)))
def test_casts_to_integers_are_checked(data: st.DataObject, source: str, target: str) -> None:
    numbers = [-0.9, 127.9, 128.0, 255.5, 2.0**63, -(2.0**63), 2.0**64, NAN, INF]
    edges = st.sampled_from(numbers)
    if source[0] == "f":
        drawn: st.SearchStrategy[Any] = (
            edges | st.floats(width=32 if source == "f4" else 64) | st.none()
        )
    else:
        drawn = ints(source)
    column = vec(data.draw(st.lists(drawn, min_size=1, max_size=20)), source)
    values = items(column)
    bad = [row for row, v in enumerate(values) if v is not None and not fits(v, target)]
    expected = [None if v is None or r in bad else int(v) for r, v in enumerate(values)]
    assert answer("cast", [column], target, False) == expected
    if not bad:
        assert answer("cast", [column], target, True) == expected
        return
    with pytest.raises(CastFailure) as caught:
        compute("cast", [column], target, True)
    assert caught.value.row == bad[0]
    assert same([caught.value.value], [values[bad[0]]])


def test_casts_between_floats_booleans_and_integers() -> None:
    x = vec([1e300, INF, NAN, 1.5, None], "f8")
    assert same(answer("cast", [x], "f4", False), [None, INF, NAN, 1.5, None])
    assert answer("cast", [vec([2.0, 0.0], "f8")], "b1", True) == [True, False]
    assert answer("cast", [vec([True, None], "b1")], "f4", True) == [1.0, None]
    assert answer("cast", [vec([2**53 + 1], "i8")], "f8", True) == [float(2**53)]


def test_a_failed_cast_names_the_row_of_the_input() -> None:
    program = Program(("i8",), (Step("cast", (0,), "i1", (True,)),), (1,))
    with pytest.raises(CastFailure) as caught:
        run(program, [Vec(np.array([999, 1, 2, 500]))], 4, np.array([1, 3]))
    assert (caught.value.row, caught.value.value) == (3, 500)


def test_stacked_columns_are_rows_of_a_matrix() -> None:
    columns: list[Register] = [vec([1, 2, None], "i4"), vec([3, 4, 5], "i4")]
    result = compute("stack", columns, "i4").outputs[0]
    assert isinstance(result, Vec)
    assert result.values.shape == (3, 2)
    assert result.values.flags.c_contiguous
    assert items(result)[:2] == [[1, 3], [2, 4]]
    assert items(result)[2] is None


def test_checks_say_that_the_block_failed() -> None:
    program = Program(
        ("i8", "i8"),
        (Step("py_add", (0, 1), "i8"), Step("overflow_add", (0, 1), "b1")),
        (2,),
        (3,),
    )
    calm, wild = vec([1, 2], "i8"), vec([1, 2**63 - 1], "i8")
    assert not run(program, [calm, calm], 2).failed
    assert run(program, [calm, wild], 2).failed
    assert not run(program, [calm, wild], 2, np.array([0])).failed


def test_strings_go_through_arrow() -> None:
    a, b = pa.array(["x", None, "z"]), pa.array(["x", "y", "a"])
    assert answer("eq", [a, b], "b1") == [True, None, False]
    assert answer("gt", [a, b], "b1") == [False, None, True]
    assert answer("is_null", [a], "b1") == [False, True, False]
    assert answer("fill_null", [a, b], "arrow") == ["x", "y", "z"]
    condition = vec([True, False, None], "b1")
    assert answer("if_else", [condition, a, b], "arrow") == ["x", "y", None]


def test_arrow_casts() -> None:
    text = pa.array(["1", "x", None])
    assert answer("cast", [text], "i4", False) == [1, None, None]
    with pytest.raises(CastFailure, match="row 1: 'x'"):
        compute("cast", [text], "i4", True)
    days = pa.array([86_400_000_000], pa.timestamp("us"))
    program = Program(("arrow",), (Step("cast", (0,), "arrow", (True, pa.date32())),), (1,))
    (cast,) = run(program, [days], 1).outputs
    assert isinstance(cast, pa.Array)
    assert cast.type == pa.date32()
    assert answer("cast", [vec([7, None], "i8")], "arrow", True, pa.string()) == ["7", None]


def test_literals_fill_the_rows() -> None:
    program = Program(
        ("i8",),
        (
            Step("lit", (), "f4", (1.5,)),
            Step("lit", (), "i4", (None,)),
            Step("lit", (), "arrow", ("a",)),
            Step("add", (1, 1), "f4"),
        ),
        (1, 2, 3, 4),
    )
    results = [items(r) for r in run(program, [vec([1, 2], "i8")], 2).outputs]
    assert results == [[1.5, 1.5], [None, None], ["a", "a"], [3.0, 3.0]]


@pytest.mark.parametrize("n", [0, 5])
def test_selected_rows_only(n: int) -> None:
    x = Vec(np.arange(n * 1.0), np.arange(n) % 2 == 0)
    text = pa.array([str(i) for i in range(n)])
    sel = np.arange(1, n, 2)
    program = Program(("f8", "arrow"), (Step("add", (0, 0), "f8"),), (2, 1))
    added, kept = run(program, [x, text], n, sel).outputs
    assert items(added) == [None] * len(sel)
    assert items(kept) == [str(i) for i in sel]


def test_outputs_are_the_callers_own() -> None:
    x = np.array([1.0, 2.0])
    program = Program(
        ("f8",), (Step("lit", (), "f8", (0.0,)), Step("fill_null", (0, 1), "f8")), (2, 2, 0)
    )
    first, second, untouched = run(program, [Vec(x)], 2).outputs
    assert isinstance(first, Vec)
    assert isinstance(second, Vec)
    assert isinstance(untouched, Vec)
    assert not np.shares_memory(first.values, x)
    assert not np.shares_memory(first.values, second.values)
    assert untouched.values is x


def test_nan_has_one_bit_pattern() -> None:
    odd = np.array([0xFFF8000000000001], "u8").view("f8")
    (out,) = compute("add", [Vec(odd), Vec(odd)], "f8").outputs
    assert isinstance(out, Vec)
    assert out.values.view("u8").tolist() == [0x7FF8000000000000]


def test_tensors_and_columns_broadcast_by_row() -> None:
    images = Vec(np.arange(12).reshape(2, 2, 3), np.array([True, False]))
    offsets = Vec(np.array([10, 0]))
    (out,) = compute("add", [images, offsets], "i8").outputs
    assert items(out) == [[[10, 11, 12], [13, 14, 15]], None]
    (out,) = compute("floordiv", [images, Vec(np.array([1, 0]))], "i8").outputs
    assert items(out)[1] is None
