"""This file holds ``col("x").list``: functions of lists, named as Polars names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dml.expr.doors import door
from dml.expr.literal import plain, whole
from dml.expr.namespaces.encoders import WIDEST, looked_up
from dml.expr.namespaces.namespace import Namespace, filler, over_element, text, widths
from dml.expr.value import lit

if TYPE_CHECKING:
    from dml.expr.column import Column


class Lists(Namespace):
    """Functions of a list column; a null list gives null, nulls inside are skipped by sums."""

    __slots__ = ()

    def len(self) -> Column:
        """How many elements, nulls among them: ``len(x)``, int64."""
        return self._made("list.len")

    @door
    def get(self, index: int, *, null_on_oob: bool = False) -> Column:
        """``x[index]``; where the list is too short CastError, or null with ``null_on_oob``."""
        return self._made("list.get", whole("index of get", index), bool(null_on_oob))

    def first(self) -> Column:
        """The first element, null of an empty list."""
        return self._made("list.get", 0, True)  # noqa: FBT003 - null_on_oob

    def last(self) -> Column:
        """The last element, null of an empty list."""
        return self._made("list.get", -1, True)  # noqa: FBT003 - null_on_oob

    def sum(self) -> Column:
        """The sum, 0 of none: of integers in 64 bits (wraps), of floats from the left in float64.

        A sum of float32 is rounded to float32 once, at its end.
        """
        return self._made("list.sum")

    def mean(self) -> Column:
        """The sum in float64 from the left by the count, null of none; float32 of float32."""
        return self._made("list.mean")

    def min(self) -> Column:
        """The least element, null of none; NaN if there is one, and -0.0 is below 0.0."""
        return self._made("list.min")

    def max(self) -> Column:
        """The greatest element, null of none; NaN if there is one, and 0.0 is above -0.0."""
        return self._made("list.max")

    @door
    def contains(self, item: Any) -> Column:
        """True where an element ``==`` the item, a literal or column; null where the item is."""
        return self._made("list.contains", others=(item,))

    @door
    def join(self, separator: str, *, ignore_nulls: bool = True) -> Column:
        """``separator.join(x)`` of text, without its nulls; or null where one is null."""
        return self._made("list.join", text("the separator", separator), bool(ignore_nulls))

    @door
    def slice(self, offset: int, length: int | None = None) -> Column:
        """``x[offset:][:length]``; a negative offset counts from the end."""
        size = None if length is None else whole("length of slice", length, 0)
        return self._made("list.slice", whole("offset of slice", offset), size)

    def head(self, n: int = 5) -> Column:
        """The first ``n`` elements."""
        return self.slice(0, n)

    @door
    def tail(self, n: int = 5) -> Column:
        """The last ``n`` elements."""
        size = whole("n of tail", n, 0)
        return self.slice(-size if size else 0, size)

    def any(self) -> Column:
        """``contains(True)``, of lists of booleans."""
        return self.contains(item=True)

    def all(self) -> Column:
        """``~contains(False)``, of lists of booleans."""
        return ~self.contains(item=False)

    def reverse(self) -> Column:
        """``x[::-1]``."""
        return self._made("list.reverse")

    def sort(self, *, descending: bool = False) -> Column:
        """The elements in order: nulls last, NaN just before them; equal ones stay as they were."""
        return self._made("list.sort", bool(descending))

    def unique(self) -> Column:
        """Each element once, at its first place; NaN is one value, null another."""
        return self._made("list.unique")

    def drop_nulls(self) -> Column:
        """The elements that are not null."""
        return self._made("list.drop_nulls")

    def n_unique(self) -> Column:
        """``unique().list.len()``: how many different elements, null among them."""
        return self.unique().list.len()

    @door
    def eval(self, expression: Any) -> Column:
        """The list of what ``expression``, over ``dml.element()`` alone, is for each element."""
        kind = type(self._column)
        inner = expression.value if isinstance(expression, kind) else lit(plain(expression))
        return self._made("list.eval", over_element(inner))

    @door
    def ngrams(self, n: int, max_n: int | None = None, *, separator: str = " ") -> Column:
        """``separator.join`` of every run of ``n`` texts; then those of n + 1 to ``max_n``.

        Nulls are left out before; a list that is shorter than ``n`` has none.
        """
        return self._made("list.ngrams", *widths(n, max_n), text("the separator", separator))

    @door
    def to_tensor(self, width: int, pad_value: Any = 0, *, truncate: bool = False) -> Column:
        """A tensor ``(width,)`` of the elements, ``pad_value`` behind; null where an element is.

        A longer list raises CastError, or loses its end with ``truncate``.
        """
        size = whole("width of to_tensor", width, 1, WIDEST)
        fill = filler("pad_value of to_tensor", pad_value)
        return self._made("list.to_tensor", size, fill, bool(truncate))

    @door
    def lookup(self, vocabulary: Any, *, default: int | None = -1, buckets: int = 0) -> Column:
        """``lookup`` of every element: its place in ``vocabulary``, int64; nulls stay."""
        return self._made("list.lookup", *looked_up(vocabulary, default, buckets))
