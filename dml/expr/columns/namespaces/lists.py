"""``col("x").list`` has functions of lists, with the names that Polars uses."""

from __future__ import annotations

from typing import Any

from dml.base.user_line import door
from dml.expr.columns.literal import plain, whole
from dml.expr.columns.namespaces.encoders import WIDEST, looked_up
from dml.expr.columns.namespaces.namespace import Sliced, filler, over_element, text, widths
from dml.expr.columns.value import C, lit


class Lists(Sliced[C]):
    """Functions of a list column: a null list gives null; sums skip null elements."""

    __slots__ = ()
    _title, _place = ".list", "list"

    def len(self) -> C:
        """Return the number of elements, including nulls (int64)."""
        return self._apply("list.len")

    @door
    def get(self, index: int, *, null_on_oob: bool = False) -> C:
        """Return ``x[index]``; for a short list raise CastError, or null with ``null_on_oob``."""
        return self._apply("list.get", whole("index of get", index), bool(null_on_oob))

    def first(self) -> C:
        """Return the first element, null for an empty list."""
        return self._apply("list.get", 0, True)  # noqa: FBT003 - null_on_oob

    def last(self) -> C:
        """Return the last element, null for an empty list."""
        return self._apply("list.get", -1, True)  # noqa: FBT003 - null_on_oob

    def sum(self) -> C:
        """Return the sum, 0 if empty: int64 with overflow, or float64 added from left to right.

        The sum of float32 elements is rounded to float32 once, at the end.
        """
        return self._apply("list.sum")

    def mean(self) -> C:
        """Return the float64 sum divided by the count, float32 for float32; null if empty."""
        return self._apply("list.mean")

    def min(self) -> C:
        """Return the least element; null if empty, NaN if any is NaN; -0.0 is below 0.0."""
        return self._apply("list.min")

    def max(self) -> C:
        """Return the greatest element; null if empty, NaN if any is NaN; 0.0 is above -0.0."""
        return self._apply("list.max")

    @door
    def contains(self, item: Any) -> C:
        """Return True if an element equals ``item``, a literal or column; null for a null item."""
        return self._apply("list.contains", others=(item,))

    @door
    def join(self, separator: str, *, ignore_nulls: bool = True) -> C:
        """Return the elements joined by ``separator``, skipping nulls.

        If not ``ignore_nulls``, a list with a null gives null.
        """
        return self._apply("list.join", text("the separator", separator), bool(ignore_nulls))

    def any(self) -> C:
        """Return True if any element is True, in a list of booleans: ``contains(True)``."""
        return self.contains(item=True)

    def all(self) -> C:
        """Return True if no element is False, in a list of booleans: ``~contains(False)``."""
        found: Any = self.contains(item=False)
        made: C = ~found
        return made

    def reverse(self) -> C:
        """Return ``x[::-1]``."""
        return self._apply("list.reverse")

    def sort(self, *, descending: bool = False) -> C:
        """Sort the elements, stably: nulls come last, NaN just before them."""
        return self._apply("list.sort", bool(descending))

    def unique(self) -> C:
        """Return the distinct elements by first occurrence; NaN is one value, null another."""
        return self._apply("list.unique")

    def drop_nulls(self) -> C:
        """Return the elements that are not null."""
        return self._apply("list.drop_nulls")

    def n_unique(self) -> C:
        """Return ``unique().list.len()``: the number of distinct elements, counting null as one."""
        distinct: Any = self.unique()
        made: C = distinct.list.len()
        return made

    @door
    def eval(self, expression: Any) -> C:
        """Return the list of values of ``expression``, where ``dml.element()`` is each element."""
        kind = type(self._column)
        inner = expression.value if isinstance(expression, kind) else lit(plain(expression))
        return self._apply("list.eval", over_element(inner))

    @door
    def ngrams(self, n: int, max_n: int | None = None, *, separator: str = " ") -> C:
        """Return the joined n-grams (``n`` consecutive texts), then those of n + 1 up to ``max_n``.

        Nulls are removed first; a list shorter than ``n`` has no n-grams.
        """
        return self._apply("list.ngrams", *widths(n, max_n), text("the separator", separator))

    @door
    def to_tensor(self, width: int, pad_value: Any = 0, *, truncate: bool = False) -> C:
        """Return the elements as a tensor ``(width,)``, filled up with ``pad_value``.

        A row with a null element is null. A longer list raises CastError, or is truncated with
        ``truncate``.
        """
        size = whole("width of to_tensor", width, 1, WIDEST)
        fill = filler("pad_value of to_tensor", pad_value)
        return self._apply("list.to_tensor", size, fill, bool(truncate))

    @door
    def lookup(self, vocabulary: Any, *, default: int | None = -1, buckets: int = 0) -> C:
        """Return the index of every element in ``vocabulary``, as ``lookup`` does; nulls stay."""
        return self._apply("list.lookup", *looked_up(vocabulary, default, buckets))
