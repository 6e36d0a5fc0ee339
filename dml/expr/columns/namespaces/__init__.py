"""``Column`` inherits its namespaces, encoders and aggregates from here; most load on first use.

The methods are in base classes, since methods ``str`` and ``list`` of ``Column`` itself would hide
the builtin types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from dml.expr.columns.literal import whole
from dml.expr.columns.value import C, Value

if TYPE_CHECKING:
    from dml.expr.columns.namespaces.audio import Audio
    from dml.expr.columns.namespaces.boxes import Boxes
    from dml.expr.columns.namespaces.encoders import Encoders
    from dml.expr.columns.namespaces.images import Images
    from dml.expr.columns.namespaces.lists import Lists
    from dml.expr.columns.namespaces.moments import Moments
    from dml.expr.columns.namespaces.strings import Strings
    from dml.expr.columns.namespaces.structs import Structs
    from dml.expr.columns.namespaces.tensors import Tensors
    from dml.expr.columns.namespaces.video import Video


class Namespaced:
    """The base of ``Column`` with its namespaces (``.str``, ``.list`` ...) and encoders."""

    __slots__ = ()

    @property
    def str(self) -> Strings[Self]:
        """Return the namespace of functions of text."""
        from dml.expr.columns.namespaces.strings import Strings  # noqa: PLC0415

        return Strings(self)

    @property
    def list(self) -> Lists[Self]:
        """Functions of lists."""
        from dml.expr.columns.namespaces.lists import Lists  # noqa: PLC0415

        return Lists(self)

    @property
    def dt(self) -> Moments[Self]:
        """Functions of dates and times."""
        from dml.expr.columns.namespaces.moments import Moments  # noqa: PLC0415

        return Moments(self)

    @property
    def struct(self) -> Structs[Self]:
        """Functions of structs."""
        from dml.expr.columns.namespaces.structs import Structs  # noqa: PLC0415

        return Structs(self)

    @property
    def tensor(self) -> Tensors[Self]:
        """Functions of tensors."""
        from dml.expr.columns.namespaces.tensors import Tensors  # noqa: PLC0415

        return Tensors(self)

    @property
    def image(self) -> Images[Self]:
        """Functions of images, encoded as bytes or decoded."""
        from dml.expr.columns.namespaces.images import Images  # noqa: PLC0415

        return Images(self)

    @property
    def audio(self) -> Audio[Self]:
        """Functions of sounds, encoded as bytes or decoded, and of their spectra."""
        from dml.expr.columns.namespaces.audio import Audio  # noqa: PLC0415

        return Audio(self)

    @property
    def video(self) -> Video[Self]:
        """Functions of encoded videos."""
        from dml.expr.columns.namespaces.video import Video  # noqa: PLC0415

        return Video(self)

    @property
    def boxes(self) -> Boxes[Self]:
        """Functions of lists of boxes, which follow the images that they mark."""
        from dml.expr.columns.namespaces.boxes import Boxes  # noqa: PLC0415

        return Boxes(self)

    def one_hot(self, size: int, dtype: Any = "float32") -> Self:
        """Return a vector ``(size,)`` with 1 at the index that the integer gives, and 0 elsewhere.

        As in tf.one_hot, an integer outside 0 to ``size`` - 1 gives zeros. Null gives null.
        """
        return self._encoders().one_hot(size, dtype)

    def multi_hot(self, size: int, dtype: Any = "float32") -> Self:
        """Return a vector ``(size,)`` with 1 at each index in the list of integers, 0 elsewhere.

        Nulls in the list and indices out of range are ignored. An empty list gives zeros, a null
        list gives null.
        """
        return self._encoders().multi_hot(size, dtype)

    def normalize(self, mean: float, std: float) -> Self:
        """Return ``(x - mean) / std``: float32 for float32, else float64."""
        return self._encoders().normalize(mean, std)

    def replace(self, mapping: Any) -> Self:
        """Replace values that are keys of ``mapping`` and keep all others; the type stays."""
        return self._encoders().replace(mapping)

    def replace_strict(self, mapping: Any, *, default: Any = ..., return_dtype: Any = None) -> Self:
        """Return ``mapping[value]``, in the common type of the mapped values; null for null.

        A value without an entry becomes ``default``; without a default it raises CastError.
        """
        return self._encoders().replace_strict(mapping, default, return_dtype)

    def lookup(self, vocabulary: Any, *, default: int | None = -1, buckets: int = 0) -> Self:
        """Return the index (int64) of the value in the list ``vocabulary``; null for null.

        A value that is not in the list becomes ``default`` (None: null); with ``buckets``, it
        becomes ``len(vocabulary) + hash(buckets)``.
        """
        return self._encoders().lookup(vocabulary, default, buckets)

    def _encoders(self) -> Encoders[Self]:
        from dml.expr.columns.namespaces.encoders import Encoders  # noqa: PLC0415

        return Encoders(self)


class Aggregated:
    """Aggregates of a column over many rows, for ``agg`` and ``group_by``; all ignore nulls."""

    __slots__ = ()

    def sum(self) -> Self:
        """Return the exact sum, rounded once; 0 for no values. Raise CastError on overflow."""
        return _figure(self, "sum")

    def mean(self) -> Self:
        """Return the exact mean, rounded once (float64); null for no values."""
        return _figure(self, "mean")

    def min(self) -> Self:
        """Return the least value; NaN if any value is NaN, null for no values."""
        return _figure(self, "min")

    def max(self) -> Self:
        """Return the greatest value; NaN if any value is NaN, null for no values."""
        return _figure(self, "max")

    def std(self, ddof: int = 1) -> Self:
        """Return the standard deviation with divisor n - ``ddof``; null for n <= ``ddof``."""
        return _figure(self, "std", _whole(ddof))

    def var(self, ddof: int = 1) -> Self:
        """Return the variance with divisor n - ``ddof``; null for n <= ``ddof``."""
        return _figure(self, "var", _whole(ddof))

    def count(self) -> Self:
        """Return the number of values that are not null (int64)."""
        return _figure(self, "count")

    def n_unique(self) -> Self:
        """Return the number of distinct values; all NaNs count as one value, and -0.0 as 0.0.

        The distinct values of each group are held in memory.
        """
        return _figure(self, "n_unique")

    def first(self) -> Self:
        """Return the first value in the order of rows that is not null; null if there is none."""
        return _figure(self, "first")

    def last(self) -> Self:
        """Return the last value in the order of rows that is not null; null if there is none."""
        return _figure(self, "last")

    def any(self) -> Self:
        """Return True if any value is true; False for no values."""
        return _figure(self, "any")

    def all(self) -> Self:
        """Return True if all values are true; True for no values."""
        return _figure(self, "all")

    def implode(self) -> Self:
        """Return the values, including nulls, as a list in the order of rows, held in memory."""
        return _figure(self, "implode")


def _figure(column: C, op: Any, *params: Any) -> C:
    given: Any = column
    made: C = type(given)(Value(f"{op}_of", (given.value,), params))
    return made


def _whole(ddof: Any) -> Any:
    return whole("ddof", ddof, 0)
