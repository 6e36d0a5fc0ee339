"""This file holds what the namespaces of columns share: a column, and functions made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dml.errors import PlanError
from dml.expr.literal import plain, whole
from dml.expr.value import ELEMENT, Value, lit, shown
from dml.kernels.functions.formats import DIRECTIVE, DIRECTIVES

if TYPE_CHECKING:
    from dml.expr.column import Column

# Runs of more are no n-grams: a list of them is as long as all its texts, n times over.
WIDEST = 1 << 10


class Namespace:
    """Functions of one column."""

    __slots__ = ("_column",)

    def __init__(self, column: Column) -> None:
        self._column = column

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self._column!r}"

    def _made(self, op: str, *params: Any, others: tuple[Any, ...] = ()) -> Column:
        """The column of function ``op`` over this one and ``others``, columns or literals."""
        kind = type(self._column)
        args = tuple(o.value if isinstance(o, kind) else lit(plain(o)) for o in others)
        return kind(Value(op, (self._column.value, *args), params))

    def _cast(self, kind: Any, *, strict: bool) -> Column:
        return self._column.cast(kind, strict=strict)


def text(what: str, value: object) -> str:
    """A parameter that is text, or PlanError."""
    if isinstance(value, str):
        return value
    raise PlanError(
        f"{what} is text, got {value!r}",
        why=f"it is of type {type(value).__name__}; columns cannot stand here",
        try_='text in quotes, such as "a"',
    )


def filler(what: str, value: object) -> tuple[Any]:
    """A parameter that is put where an element lacks, alone in a tuple, or PlanError."""
    found = plain(value)
    if found is None:
        raise PlanError(f"{what} is None", why="tensors have no nulls inside", try_="a number")
    return (found,)


def over_element(value: Value) -> Value:
    """An expression over nothing but the elements of a list, or PlanError."""
    others = sorted(value.refs - {ELEMENT})
    if others or value.draws:
        raise PlanError(
            f"list.eval cannot take {shown(value)}",
            why=f"it reads column {others[0]!r}" if others else "it depends on the row",
            try_="an expression of dml.element() alone",
        )
    return value


def a_format(form: object, *, once: bool) -> str:
    """A format of moments: known directives, and each of them ``once`` where it is read."""
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
    """A parameter that is text and not empty, or PlanError."""
    found = text(what, value)
    if not found:
        raise PlanError(
            f"{what} is empty",
            why="an empty text is found before, between and after all characters",
            try_="at least one character",
        )
    return found


def widths(n: object, most: object) -> tuple[int, int]:
    """The least and the greatest width of n-grams, or PlanError."""
    least = whole("n of ngrams", n, 1, WIDEST)
    return least, least if most is None else whole("max_n of ngrams", most, least, WIDEST)
