"""This file hangs namespaces, encoders and aggregates on columns; most are loaded by their use.

They are in a class of their own, since ``str`` and ``list`` inside ``Column`` would hide the types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dml.expr.literal import whole
from dml.expr.value import Value

if TYPE_CHECKING:
    from dml.expr.column import Column
    from dml.expr.namespaces.encoders import Encoders
    from dml.expr.namespaces.lists import Lists
    from dml.expr.namespaces.moments import Moments
    from dml.expr.namespaces.strings import Strings
    from dml.expr.namespaces.structs import Structs
    from dml.expr.namespaces.tensors import Tensors


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

    @property
    def tensor(self) -> Tensors:
        """Functions of tensors."""
        from dml.expr.namespaces.tensors import Tensors  # noqa: PLC0415

        return Tensors(cast("Column", self))

    def one_hot(self, size: int, dtype: Any = "float32") -> Column:
        """A vector ``(size,)`` with 1 at the place that the integer names, and 0 elsewhere.

        Nothing but zeros where it is negative, or ``size`` or more, as in tf.one_hot; null of null.
        """
        return self._encoders().one_hot(size, dtype)

    def multi_hot(self, size: int, dtype: Any = "float32") -> Column:
        """A vector ``(size,)`` with 1 at each place that the list of integers names.

        Nulls in the list and places outside are left out; an empty list gives zeros, null null.
        """
        return self._encoders().multi_hot(size, dtype)

    def normalize(self, mean: float, std: float) -> Column:
        """``(x - mean) / std``, float64, or float32 of float32; integers become floats before."""
        return self._encoders().normalize(mean, std)

    def replace(self, mapping: Any) -> Column:
        """Values that are keys of the dict replaced, others kept; the type stays, null of null."""
        return self._encoders().replace(mapping)

    def replace_strict(
        self, mapping: Any, *, default: Any = ..., return_dtype: Any = None
    ) -> Column:
        """What the dict has for the value, in the common type of its values; null of null.

        A value that it does not name is ``default``; without one it raises CastError.
        """
        return self._encoders().replace_strict(mapping, default, return_dtype)

    def lookup(self, vocabulary: Any, *, default: int | None = -1, buckets: int = 0) -> Column:
        """The place of the value in the list ``vocabulary``, int64 from 0 on; null of null.

        Others are ``default`` (None: null); with ``buckets``, ``len(vocabulary) + hash(buckets)``.
        """
        return self._encoders().lookup(vocabulary, default, buckets)

    def _encoders(self) -> Encoders:
        from dml.expr.namespaces.encoders import Encoders  # noqa: PLC0415

        return Encoders(cast("Column", self))


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
