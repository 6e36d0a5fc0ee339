"""Test calls of users' functions: results before an exception are delivered."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from dml.errors import FingerprintError
from dml.expr.user_call import (
    Raised,
    UserFunction,
    blamed,
    caught,
    children,
    each,
    each_drawn,
    raised,
)
from dml.kernels.rows.ids import RowIds


def failing(kind: type[BaseException], at: int) -> Any:
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
    fn = UserFunction(failing(kind, 2), b"", "f")
    assert isinstance(fn.caught(each_drawn, fn.call, [0, 1, 2, 3], iter("abcd"), out), kind)
    assert out == [0, 10]
    assert each(failing(kind, 9), [0, 1], out) is None
    assert fn.caught(each_drawn, failing(kind, 9), [], iter(()), out) is None


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


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def told_to_go() -> None:
    signal.raise_signal(signal.SIGTERM)


def told_twice() -> None:
    try:
        ctrl_c()
    except KeyboardInterrupt:
        sys.exit(3)


@pytest.mark.parametrize("work", [ctrl_c, told_to_go, told_twice])
def test_what_a_signal_raises_passes(work: Any) -> None:
    def handler(*_: object) -> None:
        sys.exit(4)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            caught(work)
        assert list(children(lambda _: iter((1,)), 3)) == [1]
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            list(children(lambda _: work(), 3))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_handler_of_ones_own_for_ctrl_c_passes() -> None:
    def handler(*_: object) -> None:
        raise KeyboardInterrupt("asked to stop")

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt, match="asked"):
            caught(ctrl_c)
    finally:
        signal.signal(signal.SIGINT, before)


class Leaving:
    def __call__(self, *_: object) -> None:
        leaving("an object")


def leaving(_how: object, *_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [partial(leaving, 1), partial(Leaving(), 1), Leaving()])
def test_any_handler_of_a_signal_passes(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            caught(ctrl_c)
    finally:
        signal.signal(signal.SIGINT, before)


def test_exits_that_led_to_each_other_in_a_ring_have_an_end() -> None:
    one, two = SystemExit(1), SystemExit(2)
    one.__context__, two.__context__ = two, one

    def raising() -> None:
        raise one

    assert caught(raising) is one


EXITS = [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException]


@pytest.mark.parametrize("kind", EXITS)
def test_an_exit_that_a_function_raises_is_its_error(kind: Any) -> None:
    out: list[int] = []
    assert isinstance(each(failing(kind, 2), [0, 1, 2, 3], out), kind)
    assert out == [0, 10]
    (only,) = children(failing(kind, 3), 3)
    assert isinstance(only.error, kind)


def test_children_can_be_closed() -> None:
    ended = []

    def lazy(x: int) -> Iterator[int]:
        try:
            yield x
        finally:
            ended.append(x)

    made = children(lazy, 3)
    assert next(made) == 3
    made.close()  # type: ignore[attr-defined]
    assert ended == [3]


def test_errors_name_function_and_row() -> None:
    function = UserFunction(len, b"", "len", reason="it is a builtin")
    error = raised(ValueError("no"), function, RowIds.run(4, 10, 5), 3)
    assert error.what == "len raised ValueError: no"
    assert isinstance(error.__cause__, ValueError)
    assert error.row_id.low().tolist() == [13]  # type: ignore[attr-defined]
    assert isinstance(function.refusal(), FingerprintError)
    assert blamed(error, RowIds.run(4, 0, 2), 1) is error
