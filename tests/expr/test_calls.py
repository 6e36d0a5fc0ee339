"""This file tests calls of users' functions: what was made before an exception is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dml.errors import FingerprintError
from dml.expr.calls import (
    Raised,
    UserFunction,
    blamed,
    caught,
    children,
    each,
    each_drawn,
    raised,
)
from dml.kernels.ids import RowIds


def failing(kind: type[Exception], at: int) -> Any:
    def call(x: int, *_: Any) -> int:
        if x == at:
            raise kind("on purpose")
        return 10 * x

    return call


@pytest.mark.parametrize("kind", [ValueError, StopIteration, RuntimeError, KeyError])
def test_results_before_an_exception(kind: type[Exception]) -> None:
    out: list[int] = []
    assert isinstance(each(failing(kind, 2), [0, 1, 2, 3], out), kind)
    assert out == [0, 10]
    out.clear()
    assert isinstance(each_drawn(failing(kind, 2), [0, 1, 2, 3], iter("abcd"), out), kind)
    assert out == [0, 10]
    assert each(failing(kind, 9), [0, 1], out) is None
    assert each_drawn(failing(kind, 9), [], iter(()), out) is None


@pytest.mark.parametrize("kind", [ValueError, StopIteration])
def test_children_before_an_exception(kind: type[Exception]) -> None:
    def lazy(x: int) -> Iterator[int]:
        yield x
        raise ValueError

    made = list(children(lazy, 3))
    assert made[0] == 3
    assert isinstance(made[1], Raised)
    (only,) = children(failing(kind, 3), 3)
    assert isinstance(only, Raised)
    assert isinstance(only.error, kind)
    (none,) = children(lambda _: None, 3)
    assert isinstance(none, Raised)


def test_a_keyboard_interrupt_passes() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        caught(interrupted)


def test_errors_name_function_and_row() -> None:
    function = UserFunction(len, b"", "len", reason="it is a builtin")
    error = raised(ValueError("no"), function, RowIds.run(4, 10, 5), 3)
    assert error.what == "len raised ValueError: no"
    assert isinstance(error.__cause__, ValueError)
    assert error.row_id.low().tolist() == [13]  # type: ignore[attr-defined]
    assert isinstance(function.refusal(), FingerprintError)
    assert blamed(error, RowIds.run(4, 0, 2), 1) is error
