"""Test the time limit of calls: a call that takes too long is abandoned."""

from __future__ import annotations

import contextvars
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from dml.base.single_thread import SINGLE, single_threaded
from dml.base.thread_seconds import thread_seconds
from dml.expr.user_call import TimedOutError
from dml.udfs.calling import time_limit
from dml.udfs.calling.instances import Stateful
from dml.udfs.calling.time_limit import GIVEN_UP, TimeLimited
from tests.hangs import (
    RELEASED,
    TIMEOUT_S,
    eventually,
    hang,
    only_hanging_calls_are_late,
    threads,
)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(time_limit, "answered", time_limit.answered)
    with only_hanging_calls_are_late():
        yield


def limited(fn: Any, **how: Any) -> TimeLimited:
    return TimeLimited(fn, TIMEOUT_S, **how)


def test_a_call_returns_its_result() -> None:
    assert limited(lambda x, y: x + y)(2, 3) == 5


class SlowToShare(list[time_limit.CallThread]):
    """Helper threads that another thread takes before the one that puts them back goes on."""

    def append(self, helper: time_limit.CallThread) -> None:
        super().append(helper)
        time.sleep(0.005)


def test_a_helper_is_shared_once_its_result_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "IDLE", SlowToShare())
    call, wrong = limited(lambda x: x), list[tuple[int, Any]]()

    def calls(first: int) -> None:
        for x in range(first, first + 50):
            if (found := call(x)) != x:
                wrong.append((x, found))

    both = [threading.Thread(target=calls, args=(first,)) for first in (0, 1000)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert not wrong


def test_a_call_raises_its_exception() -> None:
    error = LookupError()

    def fails() -> None:
        raise error

    with pytest.raises(LookupError) as raised:
        limited(fails)()
    assert raised.value is error


def test_a_call_that_hangs_is_given_up() -> None:
    with pytest.raises(TimedOutError) as raised:
        limited(hang)()
    assert raised.value.seconds == TIMEOUT_S
    assert not raised.value.too_many
    assert limited(len)("abc") == 3  # in another thread


def test_the_clock_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(TimedOutError):
        TimeLimited(RELEASED.wait, 0.01)()


def test_a_second_call_that_hangs_at_once_is_one_too_many() -> None:
    with pytest.raises(TimedOutError):
        limited(hang)()
    with pytest.raises(TimedOutError) as raised:
        limited(hang)()
    assert raised.value.too_many


def test_each_thread_may_give_up_a_call() -> None:
    found: list[TimedOutError] = []

    def wait() -> None:
        with pytest.raises(TimedOutError) as raised:
            limited(hang)()
        found.append(raised.value)

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for each in waiting:
        each.start()
    for each in waiting:
        each.join()
    assert [each.too_many for each in found] == [False] * 3


def test_a_call_that_returned_late_does_not_count() -> None:
    before = set(threads())
    with pytest.raises(TimedOutError):
        limited(hang)()
    RELEASED.set()
    assert eventually(lambda: before.issuperset(threads()))
    RELEASED.clear()
    with pytest.raises(TimedOutError) as raised:
        limited(hang)()
    assert not raised.value.too_many


def test_a_worker_process_is_spent_by_any_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GIVEN_UP, "count", 0)
    assert not GIVEN_UP.spent
    monkeypatch.setattr(GIVEN_UP, "most", None)
    for _ in range(3):
        with pytest.raises(TimedOutError) as raised:
            limited(hang)()
        assert not raised.value.too_many
    assert GIVEN_UP.spent


def test_a_call_sees_the_context_of_its_caller() -> None:
    value = contextvars.ContextVar("value", default=0)
    value.set(7)
    assert limited(value.get)() == 7


def test_libraries_have_one_thread_where_the_caller_has() -> None:
    assert not limited(SINGLE.get)()
    with single_threaded():
        assert limited(SINGLE.get)()


def test_nothing_refers_to_the_argument_of_a_call_that_is_over() -> None:
    class Argument:
        pass

    given = Argument()
    kept = weakref.ref(given)
    limited(lambda _: None)(given)
    del given
    assert kept() is None


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_forked_child_that_returns_from_a_call_is_ended() -> None:
    mine = os.getpid()

    def forks() -> int:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return os.getpid()

    assert limited(forks)() == mine
    assert os.getpid() == mine


def test_a_loop_of_calls_stops_at_the_one_that_is_given_up() -> None:
    threads_of_calls, out = set[int](), list[int]()

    def fn(x: int) -> int:
        threads_of_calls.add(threading.get_ident())
        if x == 3:
            hang()
        return x

    call = limited(fn)

    def loop(rows: range) -> None:
        for row in rows:
            out.append(call(row))

    with pytest.raises(TimedOutError) as raised:
        call.loop(loop, range(9))
    assert raised.value.seconds == TIMEOUT_S
    assert out == [0, 1, 2]
    RELEASED.set()
    assert eventually(lambda: not threads())
    assert out == [0, 1, 2]  # a result that comes too late is dropped
    call.loop(loop, range(4, 6))
    assert out == [0, 1, 2, 4, 5]
    assert len(threads_of_calls) <= 2


def test_a_loop_raises_its_exception() -> None:
    call = limited(int)
    with pytest.raises(ValueError, match="invalid literal"):
        call.loop(lambda texts: [call(each) for each in texts], ["1", "x"])


def test_a_limited_call_inside_of_another_has_its_own_limit() -> None:
    inner = TimeLimited(hang, 50.0)
    outer = limited(inner)
    with pytest.raises(TimedOutError) as raised:
        outer.loop(outer)
    assert raised.value.seconds == 50.0


def test_time_of_a_processor_is_that_of_the_caller() -> None:
    def work() -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    call, before = limited(work), thread_seconds()
    call()
    call.loop(call)
    assert thread_seconds() - before >= 0.1


def test_items_of_an_iterator_are_a_part_of_the_call() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        hang()
        yield 3

    found: list[int] = []
    with pytest.raises(TimedOutError):
        found.extend(limited(items)())
    assert found == [1, 2]
    made = limited(items)()
    assert next(made) == 1
    made.close()
    assert list(made) == []


def test_an_iterable_of_many_is_iterated_in_time() -> None:
    class Slow:
        def __iter__(self) -> Iterator[int]:
            hang()
            return iter(())

    assert isinstance(limited(Slow)(), Slow)
    with pytest.raises(TimedOutError):
        limited(Slow, many=True)()
    assert limited(lambda: [1, 2], many=True)() == [1, 2]


class Model:
    """An object that hangs for 7, and counts the calls of its instances."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.calls = 0

    def __call__(self, x: int) -> int:
        self.calls += 1
        if x == 7:
            hang()
        return self.calls


def test_the_object_whose_call_is_given_up_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "made", 0)
    call = Stateful(Model, (), {}, b"replaced", most=1, limit_s=TIMEOUT_S)
    assert [call(1), call(2)] == [1, 2]
    with pytest.raises(TimedOutError):
        call(7)
    assert [call(1), call(2)] == [1, 2]
    assert Model.made == 2


class ChildModel:
    """An object that yields two rows, and hangs before a third."""

    def __call__(self, x: int) -> Iterator[int]:
        yield x
        yield x
        hang()


def test_rows_that_an_object_yielded_before_stay() -> None:
    call = Stateful(ChildModel, (), {}, b"children", many=True, most=1, limit_s=TIMEOUT_S)
    found: list[int] = []
    with pytest.raises(TimedOutError):
        found.extend(call(4))
    assert found == [4, 4]
