"""Users' functions, which may raise any exception, are called only here.

A function is called once per row, in order, and never with zero rows. If it raises, earlier rows
keep their results, and the error that follows them names the row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dml.base.fork_guard import end_copy
from dml.base.interrupts import closes, interrupts
from dml.errors import (
    CastError,
    DmlError,
    FingerprintError,
    FunctionTimeoutError,
    UDFError,
    worded,
)
from dml.kernels.rows.ids import RowIds


@dataclasses.dataclass(frozen=True, eq=False)
class UserFunction:
    """A callable and its fingerprint ``digest``; if there is a ``reason``, only for this run.

    ``purity`` is "" if the function is proven to be a pure function of its row, else the reason why
    it could not be proven. ``declared`` is the value of ``pure=``, which overrides ``purity``;
    False also means that no call is repeated in a run. ``nonce`` is new for each function that is
    declared with ``pure=False``. ``lookups`` are the keys that the function looks up in the dict of
    its row, if it does nothing else with that dict; None if it might. ``fresh`` is n if every call
    returns a new dict of n items, else 0. ``asserted`` is True if the user gave the fingerprint,
    ``stateful`` if ``call`` constructs an instance of the user's class for each concurrent call.
    With a ``timeout``, calls that take more seconds raise TimedOutError; ``unlimited`` is then the
    user's callable, for readers of its code, and ``loop`` runs a loop of calls at less cost.
    """

    call: Callable[..., Any]
    digest: bytes
    name: str
    reason: str = ""
    purity: str = "not examined"
    lookups: frozenset[object] | None = None
    fresh: int = 0
    asserted: bool = False
    declared: bool | None = None
    nonce: bytes = b""
    stateful: bool = False
    timeout: float | None = None
    unlimited: Callable[..., Any] | None = None
    loop: Callable[..., Any] | None = None

    @property
    def code(self) -> Callable[..., Any]:
        """The user's callable, without the time limit."""
        return self.unlimited or self.call

    @property
    def may_hold(self) -> bool:
        """Whether ``call`` may keep what it returns, and change it: unless proven, not declared."""
        return bool(self.purity) or self.declared is True

    def caught(self, work: Callable[..., None], *args: Any) -> BaseException | None:
        """Return ``caught(work, *args)``, where ``work`` is a loop that calls this function."""
        return caught(work, *args) if self.loop is None else caught(self.loop, work, *args)

    @property
    def timeout_text(self) -> str:
        """The ``timeout`` parameter as text for an operator's title; "" if none was given."""
        return "" if self.timeout is None else f", timeout={self.timeout:g}"

    def __repr__(self) -> str:
        return self.name

    def refusal(self) -> FingerprintError:
        """Return the error for a caller that needs a fingerprint valid in other processes."""
        return FingerprintError(
            f"{self.name} has no fingerprint",
            why=self.reason,
            try_='fingerprint="..." where the function is given',
        )


def caught(work: Callable[..., None], *args: Any) -> BaseException | None:
    """Call ``work``, which calls a user's function; return the exception that stopped it, or None.

    SystemExit is returned as well, but the exception of a signal such as Ctrl-C is raised again.
    """
    try:
        work(*args)
    except BaseException as error:
        if interrupts(error):
            raise
        end_copy()
        return error
    end_copy()
    return None


def each(fn: Callable[[Any], Any], rows: Sequence[Any], out: list[Any]) -> BaseException | None:
    """Append ``fn(row)`` of every row to ``out``; return the exception that stopped it, or None."""
    return caught(_each, fn, rows, out)


def _each(fn: Callable[[Any], Any], rows: Sequence[Any], out: list[Any]) -> None:
    for row in rows:  # not ``extend(map(...))``, which takes a StopIteration of fn's for the end
        out.append(fn(row))  # noqa: PERF401


def each_drawn(
    fn: Callable[[Any, Any], Any], rows: Sequence[Any], draws: Iterator[Any], out: list[Any]
) -> None:
    """Append ``fn(row, draw)`` for every row and its generator to ``out``."""
    for row, draw in zip(rows, draws, strict=True):
        out.append(fn(row, draw))


def each_apart(
    fn: Callable[..., Any],
    given: Iterable[tuple[Any, ...]],
    out: list[Any],
    lost: Callable[[int, BaseException], None],
) -> list[int]:
    """Append ``fn(*arguments)`` to ``out`` for all ``arguments`` in ``given``.

    If a call raises, call ``lost`` with its index and the exception, and continue. Return the
    indices of the calls that did not raise.
    """
    kept = []
    for place, arguments in enumerate(given):
        error = caught(_appended, fn, arguments, out)
        if error is None:
            kept.append(place)
        else:
            lost(place, error)
    return kept


def _appended(fn: Callable[..., Any], arguments: tuple[Any, ...], out: list[Any]) -> None:
    out.append(fn(*arguments))


def children(fn: Callable[[Any], Any], row: Any) -> Iterator[Any]:
    """Yield the rows of ``fn(row)``; an exception of the function is yielded as a ``Raised``."""
    try:
        yield from fn(row)
    except BaseException as error:
        if interrupts(error) or closes(error):
            raise
        end_copy()
        yield Raised(error)


class UnreadableError(CastError):
    """A value of a row has no Python form, so no function can be called with that row."""


class NotConstructedError(Exception):
    """The constructor of a user's class raised; ``__cause__`` is its exception."""


class TimedOutError(Exception):
    """A call took longer than ``seconds``, its limit, and was abandoned.

    ``too_many`` is True if the calling thread has too many abandoned calls that still run.
    """

    def __init__(self, seconds: float, *, too_many: bool = False) -> None:
        super().__init__(seconds)
        self.seconds, self.too_many = seconds, too_many


@dataclasses.dataclass(frozen=True, slots=True)
class Raised:
    """An exception that is yielded in place of a row."""

    error: BaseException


def raised(
    error: BaseException,
    fn: UserFunction,
    ids: RowIds,
    row: int,
    what: str = "row",
    *,
    place: bool = True,
) -> DmlError:
    """Return the UDFError for an exception of ``fn`` on row ``row`` of a block with ``ids``.

    With ``place``, a note says at which line, and what the row was, which takes some 20 us. It is
    no part of the message, which is the same wherever the function runs.
    """
    if isinstance(error, TimedOutError):
        return blamed(_timed_out(error, fn, what), ids, row)
    cause = error
    if isinstance(error, NotConstructedError):
        cause = error.__cause__ or error
        found = UDFError(
            f"{fn.name} cannot be constructed: {worded(cause)}",
            why="the exception came from the constructor of your class",
            try_="construct it alone, with the same arguments and where it would run",
            operator=fn.name,
        )
    elif isinstance(error, UnreadableError):
        what = f"{fn.name} cannot be called: {error.what}"
        found = UDFError(what, why=error.why, try_=error.try_, operator=fn.name)
    else:
        found = UDFError(
            f"{fn.name} raised {worded(error)}",
            why=f"the exception came from your function {fn.name!r}",
            try_=f"call it on this {what} alone, outside of the pipeline",
            operator=fn.name,
        )
        if place and (told := _place(cause, fn, what)):
            found.add_note(told)
    found.__cause__ = cause
    return blamed(found, ids, row)


def _place(cause: BaseException, fn: UserFunction, what: str) -> str:
    from dml.base.tracebacks import failed_at  # noqa: PLC0415 - only where a function raised
    from dml.base.user_line import line_name  # noqa: PLC0415

    try:
        found = failed_at(cause, fn.code, what, line_name)
    except BaseException as error:  # a value of the user's may do anything if it is looked at
        if interrupts(error):
            raise
        found = ""
    if not found and isinstance(cause, TypeError):  # no line of the function ran: the call failed
        return f"a {what} is one argument, a dict by column"
    return found


def _timed_out(error: TimedOutError, fn: UserFunction, what: str) -> FunctionTimeoutError:
    why = f"a call of {fn.name!r} may take timeout={error.seconds:g} s; it was given up"
    found = FunctionTimeoutError(
        f"{fn.name} did not return within {error.seconds:g} s",
        why=why,
        try_=f"call it on this {what} alone; a larger timeout=, or on_error='skip'",
        operator=fn.name,
    )
    found.seconds = error.seconds
    return found


def blamed(error: DmlError, ids: RowIds, row: int) -> DmlError:
    """Set ``error.row_id`` to the id of row ``row``, which caused the error; return the error.

    Readers derive file and row number from the id.
    """
    error.row_id = ids.slice(row, row + 1)  # type: ignore[attr-defined]
    return error
