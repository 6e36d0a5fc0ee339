"""Send exceptions between processes, including those of users' own classes.

An exception is sent by value with its cause and its traceback. If it cannot be pickled within ten
seconds, or would be larger than a megabyte, it arrives as an exception with its text. An error of
dml keeps its type and all its text in either case.
"""

from __future__ import annotations

import os
import pickle
import threading
import traceback
from contextlib import suppress

import cloudpickle

from dml.base.tracebacks import trim
from dml.errors import MOST_LETTERS, DmlError, text_of, worded
from dml.kernels.rows.ids import RowIds

MOST_BYTES = 1 << 20
# The longest wait for pickling an exception, which may run users' code.
MOST_S = 10.0
SIMPLE = (str, int, bool, type(None), RowIds)


def shipped(error: BaseException) -> bytes:
    """Return an exception, its cause and its traceback as bytes; never raise an error."""
    cause = error.__cause__
    described = (_described(error), None if cause is None else _described(cause))
    return pickle.dumps((_whole(error), described, _trace(error)), protocol=5)


def received(sent: bytes) -> BaseException:
    """Return the exception that ``shipped`` sent, as far as it can be restored here."""
    whole, described, trace = pickle.loads(sent)  # noqa: S301 (written by a worker of this run)
    error, cause = _opened(whole) or described
    error.__cause__ = cause
    if trace:
        told: BaseException = error if cause is None else cause
        with suppress(Exception):  # a user's class may refuse notes
            BaseException.add_note(told, trace)
    return error


def _opened(whole: bytes) -> tuple[BaseException, BaseException | None] | None:
    """Return the exception and its cause; None if this process cannot restore them."""
    if not whole:
        return None
    try:
        error, cause = pickle.loads(whole)  # noqa: S301 (written by a worker of this run)
    except BaseException:  # noqa: BLE001 (a user's exception may do anything when it is made again)
        return None
    fits = isinstance(error, BaseException) and isinstance(cause, BaseException | None)
    return (error, cause) if fits else None


def _whole(error: BaseException) -> bytes:
    """Return the exception and its cause by value; b"" if pickling fails or takes too long."""
    made: list[bytes] = []
    thread = threading.Thread(target=lambda: made.append(_pickled(error)), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads can be started
        return b""
    thread.join(MOST_S)
    return made[0] if made else b""


def _pickled(error: BaseException) -> bytes:
    try:
        sent = cloudpickle.dumps((error, error.__cause__), protocol=5)
    except BaseException:  # noqa: BLE001 (a user's exception may do anything when it is pickled)
        return b""
    # some exceptions can be written and not read
    return bytes(sent) if len(sent) <= MOST_BYTES and _opened(sent) is not None else b""


def _described(error: BaseException) -> BaseException:
    """Return an exception with the same message that is certain to be picklable."""
    if isinstance(error, DmlError):
        kind = type(error) if type(error).__module__ == DmlError.__module__ else DmlError
        plain = {k: v for k, v in error.__dict__.items() if isinstance(v, SIMPLE)}
        found = kind.__new__(kind)
        DmlError.__init__(found, text_of(error.what))
        found.__dict__.update(plain)
        return found
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return (
            type(error)(text_of(error)) if type(error).__module__ == "builtins" else SystemExit(1)
        )
    return RuntimeError(worded(error))


def _trace(error: BaseException) -> str:
    """Return the traceback as text; "" for an error that dml raised on purpose."""
    cause = error.__cause__
    told = error if cause is None else cause
    if isinstance(told, DmlError):
        return ""
    try:
        trim(told)
        lines = "".join(traceback.format_exception(told))
    except BaseException:  # noqa: BLE001 (it calls the exception's own __str__)
        return ""
    return f"in worker process {os.getpid()}:\n{lines[-MOST_LETTERS:].rstrip()}"
