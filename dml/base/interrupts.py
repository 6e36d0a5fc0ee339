"""Interrupts, such as Ctrl-C, are distinguished from exits that a user's function raises.

Signal handlers run in the main thread, between any two instructions. Their exceptions are intended
by the user and propagate; ``raise SystemExit`` in a function is an error of that function.
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
    """Return True if a signal raised ``error`` in this thread, or an exception in its context."""
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    handlers, seen = _handlers(), set[int]()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if _by_signal(found, handlers):
            return True
        seen.add(id(found))  # users may tie contexts into a ring
        found = found.__context__
    return False


def closes(error: BaseException) -> bool:
    """Return True for a GeneratorExit thrown into the caller itself, not raised in its callees."""
    place = traceback_of(error)
    return isinstance(error, GeneratorExit) and (place is None or place.tb_next is None)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the true traceback of an exception, even if its class overrides the attribute."""
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return found


def _handlers() -> set[CodeType]:
    """Return the code of all signal handlers: functions, partials, and other callables."""
    known = (_code(signal.getsignal(n)) for n in signal.valid_signals())
    return {code for code in known if code is not None}


def _code(handler: Any) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    called = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004
    return getattr(called, "__code__", None)


def _by_signal(error: BaseException, handlers: set[CodeType]) -> bool:
    """Return True if a signal handler raised ``error``: one in Python, or Python's for Ctrl-C.

    Python's own handler has no frame: the last frame is at the interrupted instruction, which is
    not a ``raise``.
    """
    place, last = traceback_of(error), None
    while place is not None:
        if place.tb_frame.f_code in handlers:
            return True
        place, last = place.tb_next, place
    if last is None or not isinstance(error, KeyboardInterrupt):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] != RAISE
