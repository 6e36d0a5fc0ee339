"""Test arithmetic with Python's semantics, and the checks for rows where it differs."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.registers import FLOATS, answer, ints, same, vec


@pytest.mark.law
@given(st.lists(st.tuples(ints("i8"), ints("i8")), min_size=1, max_size=20))
def test_python_integers_or_a_check(pairs: list[tuple[int | None, int | None]]) -> None:
    left, right = vec([p[0] for p in pairs], "i8"), vec([p[1] for p in pairs], "i8")
    for name in ("add", "sub", "mul", "floordiv", "mod", "truediv"):
        function = getattr(operator, name)
        code = "f8" if name == "truediv" else "i8"
        got = answer(f"py_{name}", [left, right], code)
        outside = answer(f"overflow_{name}", [left, right], "b1")
        for (a, b), value, out in zip(pairs, got, outside, strict=True):
            if a is None or b is None or (b == 0 and name in ("floordiv", "mod", "truediv")):
                assert out, name
                continue
            exact = function(a, b)
            if not out:
                assert value == exact, name
            elif name != "truediv":
                assert not -(2**63) <= exact < 2**63, name


@pytest.mark.law
@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=20))
def test_python_floats_or_a_check(pairs: list[tuple[float, float]]) -> None:
    left, right = vec([p[0] for p in pairs], "f8"), vec([p[1] for p in pairs], "f8")
    for name in ("add", "mul", "floordiv", "mod", "truediv"):
        function = getattr(operator, name)
        got = answer(f"py_{name}", [left, right], "f8")
        outside = answer(f"overflow_{name}", [left, right], "b1")
        for (a, b), value, out in zip(pairs, got, outside, strict=True):
            assert out == (b == 0 and name in ("floordiv", "mod", "truediv"))
            assert out or same([value], [function(a, b)]), name


def test_python_sign_changes() -> None:
    x = vec([-(2**63), -3, None], "i8")
    assert answer("overflow_neg", [x], "b1") == [True, False, True]
    assert answer("overflow_abs", [x], "b1") == [True, False, True]
    assert answer("py_abs", [x], "i8")[1] == 3
    assert answer("py_neg", [x], "i8")[1] == 3
