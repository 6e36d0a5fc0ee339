"""Tracebacks that users see: their own lines, without those of dml.

With the environment variable ``DML_TRACEBACK=full``, tracebacks are left as they are.
"""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, Final

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
    error.__traceback__ = None
    if error.__cause__ is not None:
        trim(error.__cause__)
    return error


def trim(error: BaseException) -> None:
    """Remove the frames of dml that come before the user's from an exception and its causes."""
    cause: BaseException | None = error
    for _ in range(0 if os.environ.get(SWITCH) == FULL else CAUSES):
        if cause is not None:
            cause.__traceback__ = _users(cause.__traceback__) or cause.__traceback__
            cause = cause.__cause__


def failed_at(error: BaseException, what: str, line_name: Callable[[str, int], str]) -> str:
    """Return where a user's function raised ``error``, and its first argument, a ``what``.

    The result is "" if the exception did not pass through a line of Python of the user's.
    ``line_name`` returns what users call a line of a file.
    """
    first = _users(error.__traceback__)
    if first is None:
        return ""
    own = first.tb_frame.f_code.co_filename
    frames = traceback.walk_tb(first)
    frame, line = [each for each in frames if each[0].f_code.co_filename == own][-1]
    text = linecache.getline(own, line, frame.f_globals).strip()
    code = f": {_short(text)}" if text else ""
    given = _argument(first.tb_frame)
    shown = "" if given is None else f"; the {what} was {_row(given)}"
    name = f"line {line} of the function's file" if own == SHIPPED else line_name(own, line)
    return f"at {name}{code}{shown}"


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


def _row(value: Any) -> str:
    """Return a row or a batch on one line: its values, or what kinds of value they are."""
    if not isinstance(value, Mapping):
        return _value(value)
    shown = [f"{name!s}: {_value(value[name])}" for name in [*value][:VALUES]]
    more = ["..."] if len(value) > VALUES else []
    return "{" + ", ".join([*shown, *more]) + "}"


def _value(value: Any) -> str:
    kind = type(value)
    if kind in (int, float, bool, str, type(None)):
        return _short(text_of(value[: 2 * LETTERS] if kind is str else value, repr))
    if kind in (bytes, bytearray):
        return f"{len(value):,} bytes"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{dtype}{list(shape)}" if shape else _short(str(value))
    if kind in (list, tuple, dict, set):
        return f"{kind.__name__} of {len(value)}"
    return kind.__name__


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."
