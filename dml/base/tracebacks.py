"""Tracebacks that users see: their own lines, without those of dml.

With the environment variable ``DML_TRACEBACK=full``, tracebacks are left as they are.
"""

from __future__ import annotations

import inspect
import linecache
import os
import traceback
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

import numpy as np

from dml.errors import DmlError, InternalError, text_of

HERE: Final = __name__.partition(".")[0]
SWITCH, FULL = "DML_TRACEBACK", "full"
SHIPPED: Final = "<dynamic-code>"  # the file of a function that was sent to another process
# Longest chain of causes that is looked at; letters of a line and of a value; values of a row.
CAUSES, LETTERS, VALUES = 8, 80, 8


def concise(error: DmlError) -> DmlError:
    """Remove the frames of dml from ``error``, and those before the user's from its causes.

    Errors that are reported as faults of dml keep all of them.
    """
    if isinstance(error, InternalError) or os.environ.get(SWITCH) == FULL:
        return error
    kept, tb = list[TracebackType](), error.__traceback__
    while tb is not None:
        kept += [] if _own(tb.tb_frame) else [tb]
        tb = tb.tb_next
    above: TracebackType | None = None
    for each in reversed(kept):
        above = TracebackType(above, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = above
    if error.__cause__ is not None:
        trim(error.__cause__)
    return error


def trim(error: BaseException) -> None:
    """Remove the frames of dml that come before the user's from an exception and its causes.

    Attributes are those of ``BaseException``: a class of the user's may refuse to set them.
    """
    cause: BaseException | None = error
    for _ in range(0 if os.environ.get(SWITCH) == FULL else CAUSES):
        if cause is not None:
            tb = BaseException.__dict__["__traceback__"].__get__(cause)
            BaseException.with_traceback(cause, _users(tb) or tb)
            cause = BaseException.__dict__["__cause__"].__get__(cause)


def failed_at(
    error: BaseException, fn: object, what: str, line_name: Callable[[str, int], str]
) -> str:
    """Return where the user's function ``fn`` raised ``error``, and its row, a ``what``.

    The result is "" if the exception did not pass through a line of Python of the user's. Nothing
    is said of the row unless the first argument is a dict. ``line_name`` returns what users call a
    line of a file.
    """
    first = _users(BaseException.__dict__["__traceback__"].__get__(error))
    if first is None:
        return ""
    frames, code = [*traceback.walk_tb(first)], _code(fn)
    called = next((frame for frame, _ in frames if frame.f_code is code), None)
    file = (called or first.tb_frame).f_code.co_filename
    frame, line = [each for each in frames if each[0].f_code.co_filename == file][-1]
    text = linecache.getline(file, line, frame.f_globals).strip()
    shown = f": {_short(text)}" if text else ""
    name = f"line {line} of the function's file" if file == SHIPPED else line_name(file, line)
    given = None if called is None else _argument(called)
    row = f"; the {what} was then {_row(given)}" if isinstance(given, dict) and given else ""
    return f"at {name}{shown}{row}"


def _code(fn: Any) -> CodeType | None:
    """Return the code of a function that partial objects and decorators may wrap; None if unknown.

    Of a class, and of an object with ``__call__``, it is that of the method.
    """
    while isinstance(fn, partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not hasattr(fn, "__code__"):
        fn = (fn if isinstance(fn, type) else type(fn)).__call__
    found = getattr(fn, "__code__", None)
    return found if isinstance(found, CodeType) else None


def _users(tb: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from the first frame that is not dml's; None if all are."""
    while tb is not None and _own(tb.tb_frame):
        tb = tb.tb_next
    return tb


def _own(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", HERE)  # functions that dml compiles have no name
    return str(name).partition(".")[0] == HERE


def _argument(frame: FrameType) -> Any:
    """Return the first argument of a frame's function, except ``self``; None if it has none."""
    code = frame.f_code
    names = [name for name in code.co_varnames[: code.co_argcount] if name != "self"]
    return frame.f_locals.get(names[0]) if names else None


def _row(row: dict[Any, Any]) -> str:
    """Return a row or a batch on one line: its values, or what kinds of value they are."""
    shown = [f"{_short(str(name))}: {_value(row[name])}" for name in [*row][:VALUES]]
    more = ["..."] if len(row) > VALUES else []
    return "{" + ", ".join([*shown, *more]) + "}"


def _value(value: Any) -> str:
    kind = type(value)
    if kind in (int, float, bool, str, type(None)):
        return _short(text_of(value[: 2 * LETTERS] if kind is str else value, repr))
    if kind in (bytes, bytearray):
        return f"{len(value):,} bytes"
    if isinstance(value, np.ndarray | np.generic):
        return _short(f"{value.dtype}{[*value.shape]}" if value.ndim else str(value))
    if kind in (list, tuple, dict, set):
        return f"{kind.__name__} of {len(value)}"
    return _short(kind.__name__)


def _short(text: str) -> str:
    """Return a text on one line, shortened."""
    line = " ".join(text.splitlines())
    return line if len(line) <= LETTERS else f"{line[: LETTERS - 3]}..."
