"""The base of the column namespaces, and the validation of their parameters."""

from __future__ import annotations

from typing import Any, Generic

from dml.base.user_line import Answering, door
from dml.errors import PlanError
from dml.expr.columns.literal import plain, whole
from dml.expr.columns.value import ELEMENT, C, Value, lit, value_text
from dml.kernels.functions.formats import DIRECTIVE, DIRECTIVES

# Maximum n of n-grams: together they have n times the bytes of the texts.
WIDEST = 1 << 10


class Namespace(Answering, Generic[C]):
    """A group of functions of one column."""

    __slots__ = ("_column",)

    def __init__(self, column: C) -> None:
        self._column: Any = column

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self._column!r}"

    def _apply(self, op: str, *params: Any, others: tuple[Any, ...] = ()) -> C:
        """Return function ``op`` of this column and ``others``, which are columns or literals."""
        kind = type(self._column)
        args = tuple(o.value if isinstance(o, kind) else lit(plain(o)) for o in others)
        made: C = kind(Value(op, (self._column.value, *args), params))
        return made

    def _cast(self, kind: Any, *, strict: bool) -> C:
        cast: C = self._column.cast(kind, strict=strict)
        return cast


class Sliced(Namespace[C]):
    """The base of the namespaces of text and lists, which can slice characters or elements."""

    __slots__ = ()

    @door
    def slice(self, offset: int, length: int | None = None) -> C:
        """Return ``x[offset:][:length]``; a negative offset counts from the end."""
        size = None if length is None else whole("length of slice", length, 0)
        return self._apply(f"{self._place}.slice", whole("offset of slice", offset), size)

    def head(self, n: int = 5) -> C:
        """Return the first ``n`` characters or elements."""
        return self.slice(0, n)

    @door
    def tail(self, n: int = 5) -> C:
        """Return the last ``n`` characters or elements."""
        size = whole("n of tail", n, 0)
        return self.slice(-size if size else 0, size)


def text(what: str, value: object) -> str:
    """Return ``value``; raise PlanError, which calls it ``what``, unless it is text."""
    if isinstance(value, str):
        return value
    raise PlanError(
        f"{what} is text, got {value!r}",
        why=f"it is of type {type(value).__name__}; columns cannot stand here",
        try_='text in quotes, such as "a"',
    )


def filler(what: str, value: object) -> tuple[Any]:
    """Return the padding value ``value`` in a tuple of one; raise PlanError for None."""
    found = plain(value)
    if found is None:
        raise PlanError(f"{what} is None", why="tensors have no nulls inside", try_="a number")
    return (found,)


def over_element(value: Value) -> Value:
    """Return ``value``; raise PlanError unless it reads only the elements of a list."""
    others = sorted(value.refs - {ELEMENT})
    if others or value.draws:
        raise PlanError(
            f"list.eval cannot take {value_text(value)}",
            why=f"it reads column {others[0]!r}" if others else "it depends on the row",
            try_="an expression of dml.element() alone",
        )
    return value


def a_format(form: object, *, once: bool) -> str:
    """Return the time format ``form``; raise PlanError if it has unknown directives or none.

    With ``once``, as for parsing, each directive may occur once.
    """
    found = text("the format", form)
    used = [part for part in DIRECTIVE.findall(found) if part != "%%"]
    odd = [part for part in used if part not in DIRECTIVES or (once and used.count(part) > 1)]
    if odd or not used or found.replace("%%", "").count("%") > len(used):
        raise PlanError(
            f"{found!r} is not a format that dml knows",
            why=f"it has {odd[0]}" + " twice" * (odd[0] in DIRECTIVES)
            if odd
            else "of no directive",
            try_=f"{' '.join(DIRECTIVES)} and %%",
        )
    return found


def some_text(what: str, value: object) -> str:
    """Return ``value``; raise PlanError, which calls it ``what``, unless it is non-empty text."""
    found = text(what, value)
    if not found:
        raise PlanError(
            f"{what} is empty",
            why="an empty text is found before, between and after all characters",
            try_="at least one character",
        )
    return found


def widths(n: object, most: object) -> tuple[int, int]:
    """Return the least and the greatest length of n-grams; raise PlanError for invalid lengths."""
    least = whole("n of ngrams", n, 1, WIDEST)
    return least, least if most is None else whole("max_n of ngrams", most, least, WIDEST)
