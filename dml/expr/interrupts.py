"""This file tells an interrupt, such as Ctrl-C, from an exit that a user's function raises itself.

Signals come to the main thread, between two instructions of whatever it does. What they raise is
the user's own wish, and passes; ``raise SystemExit`` in a function is an error of that function.
"""

from __future__ import annotations

import opcode
import signal
import threading
from functools import partial
from types import CodeType, TracebackType
from typing import Any

RAISE = opcode.opmap["RAISE_VARARGS"]


def interrupts(error: BaseException) -> bool:
    """True for what a signal raised in this thread, and for what was raised because of that."""
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    handlers, seen = _handlers(), set[int]()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if _by_signal(found, handlers):
            return True
        seen.add(id(found))  # users may tie what led to what into a ring
        found = found.__context__
    return False


def closes(error: BaseException) -> bool:
    """True for what closes a generator: it comes to that one itself, out of nothing below."""
    place = traceback_of(error)
    return isinstance(error, GeneratorExit) and (place is None or place.tb_next is None)


def traceback_of(error: BaseException) -> TracebackType | None:
    """The traceback of an exception, whatever its class says that it is."""
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return found


def _handlers() -> set[CodeType]:
    """The code of what Python calls for signals: functions, parts of them, and other objects."""
    known = (_code(signal.getsignal(n)) for n in signal.valid_signals())
    return {code for code in known if code is not None}


def _code(handler: Any) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    called = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004
    return getattr(called, "__code__", None)


def _by_signal(error: BaseException, handlers: set[CodeType]) -> bool:
    """True if a handler of a signal raised it: one in Python, or Python's own for Ctrl-C.

    Python's own has no frame: the last one is that of the instruction it came behind, which
    raises nothing.
    """
    place, last = traceback_of(error), None
    while place is not None:
        if place.tb_frame.f_code in handlers:
            return True
        place, last = place.tb_next, place
    if last is None or not isinstance(error, KeyboardInterrupt):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] != RAISE
