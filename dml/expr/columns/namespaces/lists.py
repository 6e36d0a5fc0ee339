"""``col("x").list``: functions of lists, named as Polars names them."""

from __future__ import annotations

from typing import Any

from dml.base.user_line import door
from dml.expr.columns.literal import plain, whole
from dml.expr.columns.namespaces.encoders import WIDEST, looked_up
from dml.expr.columns.namespaces.namespace import Sliced, filler, over_element, text, widths
from dml.expr.columns.value import C, lit


class Lists(Sliced[C]):
    """Functions of a list column; a null list gives null, null elements are skipped by sums."""

    __slots__ = ()
    _family = "list"

    def len(self) -> C:
        """The number of elements, including nulls: ``len(x)``, int64."""
        return self._made("list.len")

    @door
    def get(self, index: int, *, null_on_oob: bool = False) -> C:
        """``x[index]``; CastError if the list is too short, or null with ``null_on_oob``."""
        return self._made("list.get", whole("index of get", index), bool(null_on_oob))

    def first(self) -> C:
        """The first element, null for an empty list."""
        return self._made("list.get", 0, True)  # noqa: FBT003 - null_on_oob

    def last(self) -> C:
        """The last element, null for an empty list."""
        return self._made("list.get", -1, True)  # noqa: FBT003 - null_on_oob

    def sum(self) -> C:
        """The sum, 0 if empty: int64 (wraps) for integers, in float64 from the left for floats.

        A sum of float32 is rounded to float32 once, at its end.
        """
        return self._made("list.sum")

    def mean(self) -> C:
        """The float64 sum from the left over the count, null if empty; float32 of float32."""
        return self._made("list.mean")

    def min(self) -> C:
        """The least element, null if empty; NaN if there is one, and -0.0 is below 0.0."""
        return self._made("list.min")

    def max(self) -> C:
        """The greatest element, null if empty; NaN if there is one, and 0.0 is above -0.0."""
        return self._made("list.max")

    @door
    def contains(self, item: Any) -> C:
        """True if an element ``==`` the item, a literal or column; null where the item is null."""
        return self._made("list.contains", others=(item,))

    @door
    def join(self, separator: str, *, ignore_nulls: bool = True) -> C:
        """``separator.join(x)`` of text; nulls are skipped, or else make the result null."""
        return self._made("list.join", text("the separator", separator), bool(ignore_nulls))

    def any(self) -> C:
        """``contains(True)``, for lists of booleans."""
        return self.contains(item=True)

    def all(self) -> C:
        """``~contains(False)``, for lists of booleans."""
        found: Any = self.contains(item=False)
        made: C = ~found
        return made

    def reverse(self) -> C:
        """``x[::-1]``."""
        return self._made("list.reverse")

    def sort(self, *, descending: bool = False) -> C:
        """The sorted elements: nulls last, NaN just before them; the sort is stable."""
        return self._made("list.sort", bool(descending))

    def unique(self) -> C:
        """The distinct elements in order of first occurrence; NaN is one value, null another."""
        return self._made("list.unique")

    def drop_nulls(self) -> C:
        """The elements that are not null."""
        return self._made("list.drop_nulls")

    def n_unique(self) -> C:
        """``unique().list.len()``: the number of distinct elements, counting null as one."""
        distinct: Any = self.unique()
        made: C = distinct.list.len()
        return made

    @door
    def eval(self, expression: Any) -> C:
        """The list of the results of ``expression``, over ``dml.element()`` alone, per element."""
        kind = type(self._column)
        inner = expression.value if isinstance(expression, kind) else lit(plain(expression))
        return self._made("list.eval", over_element(inner))

    @door
    def ngrams(self, n: int, max_n: int | None = None, *, separator: str = " ") -> C:
        """``separator.join`` of every run of ``n`` texts; then those of n + 1 to ``max_n``.

        Nulls are removed first; a list shorter than ``n`` has no n-grams.
        """
        return self._made("list.ngrams", *widths(n, max_n), text("the separator", separator))

    @door
    def to_tensor(self, width: int, pad_value: Any = 0, *, truncate: bool = False) -> C:
        """A tensor ``(width,)`` of the elements, ``pad_value`` behind; null where an element is.

        A longer list raises CastError, or is cut off at the end with ``truncate``.
        """
        size = whole("width of to_tensor", width, 1, WIDEST)
        fill = filler("pad_value of to_tensor", pad_value)
        return self._made("list.to_tensor", size, fill, bool(truncate))

    @door
    def lookup(self, vocabulary: Any, *, default: int | None = -1, buckets: int = 0) -> C:
        """``lookup`` of every element: its index in ``vocabulary``, int64; nulls stay."""
        return self._made("list.lookup", *looked_up(vocabulary, default, buckets))
