"""Every error of dml states the problem, its location, the reason and a remedy.

An error has four short lines. ``what`` is the message, ``at`` names the operator and the user's
source line (and the file, row group and row if a value is the cause), ``why`` quotes the actual
values, and ``try_`` says what to do next. Errors survive pickling with all four parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

MOST_LETTERS = 20_000


def worded(error: BaseException) -> str:
    """Return any exception as ``Type: text``; never raise, whatever its ``__str__`` does."""
    name = type.__dict__["__name__"].__get__(type(error))  # whatever its metaclass says
    return f"{name}: {text_of(error)}"


def text_of(value: object, how: Callable[[object], str] = str) -> str:
    """Return ``how(value)``, at most 20,000 characters; never raise, whatever ``how`` raises."""
    try:
        return str.__getitem__(how(value), slice(MOST_LETTERS))
    except BaseException:  # noqa: BLE001 - a user's object may raise anything, and return anything
        return "(it cannot be shown)"


class DmlError(Exception):
    """Base class of all errors that dml raises on purpose."""

    def __init__(self, what: str, *, at: str = "", why: str = "", try_: str = "") -> None:
        super().__init__(what)
        self.what, self.at, self.why, self.try_ = what, at, why, try_

    def located(self, at: str) -> Self:
        """Set the location ``at`` if the error has none yet; return the error itself."""
        self.at = self.at or at
        return self

    def under(self, label: str) -> Self:
        """Put ``label``, an operator, before ``at`` unless ``at`` names one; return the error."""
        if "written in" not in self.at and label not in self.at:
            self.at = f"{label}; {self.at}" if self.at else label
        return self

    def __str__(self) -> str:
        rest = (("at   ", self.at), ("why  ", self.why), ("try  ", self.try_))
        return "\n".join([self.what, *(f"  {word} {text}" for word, text in rest if text)])

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.__dict__.copy())


def _rebuild(kind: type[DmlError], what: str, state: dict[str, object]) -> DmlError:
    """Rebuild an unpickled error from its parts, whatever the signature of its constructor."""
    error = kind.__new__(kind)
    Exception.__init__(error, what)
    error.__dict__.update(state)
    return error


class PlanError(DmlError):
    """The pipeline or an option is invalid, such as a negative size or an impossible order."""


class UnknownNameError(DmlError, AttributeError):
    """No verb, function or method of dml has this name; ``try_`` says what was meant."""


class ArgumentError(DmlError, TypeError):
    """A verb has no argument of this name, or needs one that was not given."""


class SchemaError(DmlError):
    """A column is missing, or has a type that the operator does not accept."""


class SourceError(DmlError):
    """Input cannot be read: it is missing, empty, truncated, damaged, or its schema changes."""

    # Bytes from the start of an unterminated row to the quote that is never closed.
    offset = 0


class UDFError(DmlError):
    """A user's function raised (``__cause__``), or returned a value that cannot be a row."""

    def __init__(
        self,
        what: str,
        *,
        at: str = "",
        why: str = "",
        try_: str = "",
        operator: str = "",
        file: str = "",
        row_group: int | None = None,
        row: int | None = None,
    ) -> None:
        super().__init__(what, at=at, why=why, try_=try_)
        self.operator, self.file, self.row_group, self.row = operator, file, row_group, row


class FunctionTimeoutError(UDFError):
    """A call of a user's function took longer than its ``timeout=`` and was abandoned."""

    # The limit.
    seconds = 0.0


class CastError(DmlError):
    """A strict cast found a value that the target type cannot represent."""


class NullValueError(DmlError):
    """A delivered batch has a null in an integer or boolean column."""


class MatchError(DmlError):
    """A row has more matches in a join than ``validate=`` allows."""


class ResumeMismatchError(DmlError):
    """A saved state belongs to another pipeline, other data, or another version."""


class FingerprintError(DmlError):
    """A value or function has no fingerprint that would be equal in another process."""


class NonDeterminismError(DmlError):
    """Running the same work twice gave different results."""


class MemoryContractError(DmlError):
    """One row, or one indivisible piece of work, does not fit into the memory limit."""


class CacheError(DmlError):
    """The cached or materialized rows of a pipeline cannot be read or written."""


class WorkerLostError(DmlError):
    """Workers died more often than retries allow; ``__cause__`` is the last failure."""


class ReplayError(WorkerLostError):
    """A worker died with results of a ``pure=False`` function, which must not be called again."""


class VerificationError(DmlError):
    """With ``verify="sample"``, the optimized and the written plan gave different rows."""


class VerificationWarning(UserWarning):
    """With ``verify="sample"``, rows differed, and the run continues with the written plan."""


class QuarantineWarning(UserWarning):
    """Cached rows differ from newly computed ones, so their cache entry is no longer read."""


class InternalError(DmlError):
    """A bug of dml itself; please report it with the complete error text."""
