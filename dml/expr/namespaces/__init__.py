"""This file hangs namespaces and aggregates on columns; each namespace is loaded by its first use.

They are in a class of their own, since ``str`` and ``list`` inside ``Column`` would hide the types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dml.expr.literal import whole
from dml.expr.value import Value

if TYPE_CHECKING:
    from dml.expr.column import Column
    from dml.expr.namespaces.lists import Lists
    from dml.expr.namespaces.moments import Moments
    from dml.expr.namespaces.strings import Strings
    from dml.expr.namespaces.structs import Structs


class Namespaced:
    """A column as its namespaces see it."""

    __slots__ = ()

    @property
    def str(self) -> Strings:
        """Functions of text."""
        from dml.expr.namespaces.strings import Strings  # noqa: PLC0415

        return Strings(cast("Column", self))

    @property
    def list(self) -> Lists:
        """Functions of lists."""
        from dml.expr.namespaces.lists import Lists  # noqa: PLC0415

        return Lists(cast("Column", self))

    @property
    def dt(self) -> Moments:
        """Functions of dates and times."""
        from dml.expr.namespaces.moments import Moments  # noqa: PLC0415

        return Moments(cast("Column", self))

    @property
    def struct(self) -> Structs:
        """Functions of structs."""
        from dml.expr.namespaces.structs import Structs  # noqa: PLC0415

        return Structs(cast("Column", self))


class Aggregated:
    """Figures of a column over many rows, for ``agg`` and ``group_by``: nulls are left out."""

    __slots__ = ()

    def sum(self) -> Column:
        """The exact sum, rounded once; 0 of no values. CastError if 64 bits cannot hold it."""
        return _figure(self, "sum")

    def mean(self) -> Column:
        """The exact mean, rounded once (float64); null of no values."""
        return _figure(self, "mean")

    def min(self) -> Column:
        """The least value; NaN if one is, null of no values."""
        return _figure(self, "min")

    def max(self) -> Column:
        """The greatest value; NaN if one is, null of no values."""
        return _figure(self, "max")

    def std(self, ddof: int = 1) -> Column:
        """The standard deviation, divided by n - ``ddof``; null of no more values than that."""
        return _figure(self, "std", _whole(ddof))

    def var(self, ddof: int = 1) -> Column:
        """The variance, divided by n - ``ddof``; null of no more values than that."""
        return _figure(self, "var", _whole(ddof))

    def count(self) -> Column:
        """How many values are not null (int64)."""
        return _figure(self, "count")

    def n_unique(self) -> Column:
        """How many different values; all NaNs are one, -0.0 is 0.0. Holds those of a group."""
        return _figure(self, "n_unique")

    def first(self) -> Column:
        """The first value in the order of rows that is not null; null if there is none."""
        return _figure(self, "first")

    def last(self) -> Column:
        """The last value in the order of rows that is not null; null if there is none."""
        return _figure(self, "last")

    def any(self) -> Column:
        """True if a boolean is; False of no values."""
        return _figure(self, "any")

    def all(self) -> Column:
        """True if all booleans are; True of no values."""
        return _figure(self, "all")

    def implode(self) -> Column:
        """The values as a list in the order of rows, nulls too. Holds those of a group."""
        return _figure(self, "implode")


def _figure(column: Any, op: Any, *params: Any) -> Column:
    kind = type(column)
    made: Column = kind(Value(f"{op}_of", (column.value,), params))
    return made


def _whole(ddof: Any) -> Any:
    return whole("ddof", ddof, 0)
