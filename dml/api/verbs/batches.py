"""Verbs that combine several rows into one element, a batch, are defined here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from dml.api.verbs.step import StepVerbs, name_of
from dml.base.user_line import door
from dml.checks import whole
from dml.errors import PlanError

if TYPE_CHECKING:
    from dml.expr.columns.column import Column

# The name of the temporary key column.
KEY = "the key of group_by_window"


class BatchVerbs(StepVerbs):
    """Verbs that make batches of rows."""

    def batch(self, n: int, *, drop_last: bool = False) -> Self:
        """Join each ``n`` rows into a dict of arrays; ``drop_last`` omits a smaller last batch."""
        from dml.ops.batch.batch import Batch

        return self._then(Batch, n, drop_last)

    @door
    def padded_batch(
        self,
        n: int,
        *,
        padding_values: Any = None,
        pad_to: int | Mapping[str, int] | None = None,
        drop_last: bool = False,
    ) -> Self:
        """Batch as ``batch`` does, with lists of numbers padded to the longest list of the batch.

        ``padding_values`` is the value to pad with, or a dict of values by column; None is 0.
        ``pad_to`` is the width of all batches, or a dict by column; raise CastError for longer
        lists.
        """
        from dml.ops.batch.pad import Pad, frozen

        return self._then(Pad, frozen(padding_values), frozen(pad_to)).batch(n, drop_last=drop_last)

    @door
    def ragged_batch(self, n: int, *, drop_last: bool = False) -> Self:
        """Batch as ``batch`` does, with lists of numbers as two arrays: ``x`` and ``x_offsets``.

        Row i has the values ``x[x_offsets[i] : x_offsets[i + 1]]``; a null list has none.
        """
        from dml.ops.batch.pad import Unpad

        return self._then(Unpad).batch(n, drop_last=drop_last)

    @door
    def bucket_by_length(
        self,
        column: str,
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        *,
        pad: bool = True,
        padding_values: Any = None,
        drop_last: bool = False,
    ) -> Self:
        """Batch rows of similar length: bucket i has lengths below ``boundaries[i]``.

        A row's length is that of its list, text or bytes in ``column``, or an integer in it.
        ``batch_sizes`` is one size for all buckets, or a list with one size per bucket, which is
        one more than there are boundaries. A bucket becomes a batch as soon as it is full;
        incomplete buckets follow at the end, in order. ``pad`` pads lists as ``padded_batch`` does.
        """
        from dml.ops.batch.bucket_by_length import BucketByLength
        from dml.ops.batch.pad import Pad, frozen

        bounds = _numbers("boundaries", boundaries)
        if isinstance(batch_sizes, int):
            batch_sizes = (batch_sizes,) * (len(bounds) + 1)
        sizes = _numbers("batch_sizes", batch_sizes)
        rows = self._then(Pad, frozen(padding_values), None) if pad else self
        return rows._then(  # noqa: SLF001 - a handle of this class
            BucketByLength, name_of(column), bounds, sizes, drop_last
        )

    bucket_by_sequence_length = bucket_by_length

    @door
    def group_by_window(
        self, key: str | Column, window_size: int, *, drop_last: bool = False
    ) -> Self:
        """Make batches of ``window_size`` rows with the same ``key``, a column or an expression.

        A batch is delivered as soon as it is full; incomplete batches follow at the end, by key.
        """
        from dml.ops.batch.group_by_window import GroupByWindow

        if isinstance(key, str):
            return self._then(GroupByWindow, key, window_size, drop_last)
        keyed = self.with_columns(**{KEY: key})  # type: ignore[attr-defined]
        then = keyed._then  # noqa: SLF001 - a handle of this class
        grouped = then(GroupByWindow, KEY, window_size, drop_last)
        return cast("Self", grouped.drop(KEY))

    @door
    def pack(
        self,
        max_tokens: int,
        column: str,
        strategy: str = "first_fit",
        *,
        bins: int = 16,
        long: str = "error",
        pad_value: Any = None,
    ) -> Self:
        """Pack the lists of several rows into rows with lists of at most ``max_tokens``.

        Every column is a list, as long as that in ``column``. A bin collects rows that become one
        packed row. A row is added to the first open bin with enough space ("first_fit"), or to the
        one with the least sufficient space ("best_fit"). A row that fits in none opens another bin,
        and a bin is closed when ``bins`` more have been opened after it. "concat_split" fills one
        bin after the other and splits rows. ``long`` says what happens to a row that is too long
        for any bin: "error" (CastError), "truncate" or "drop". An empty list adds nothing.

        Adds ``segment_ids`` (1 for the first row in a bin, 2 for the second ...) and ``positions``
        (0, 1, ... in each row). ``pad_value``, a value or a dict by column, makes every list a
        tensor of ``max_tokens``; ``segment_ids`` and ``positions`` are 0 in the padding.
        """
        from dml.ops.batch.pack import Pack
        from dml.ops.batch.pad import frozen

        most = 1 if strategy == "concat_split" else bins
        fill = frozen(pad_value)
        return self._then(Pack, column, max_tokens, strategy, most, long, fill)

    @door
    def window(
        self, size: int, shift: int | None = None, stride: int = 1, *, drop_last: bool = True
    ) -> Self:
        """Batch sliding windows: window w has the rows ``w * shift + i * stride``, i < ``size``.

        ``shift`` None is ``size``, so that windows do not overlap. ``drop_last=False`` also
        delivers the incomplete windows at the end.
        """
        from dml.ops.batch.window import Window

        return self._then(Window, size, size if shift is None else shift, stride, drop_last)


def _numbers(name: str, given: Any) -> tuple[Any, ...]:
    """Return a list of numbers as Python integers where possible; the operator checks them."""
    if isinstance(given, list | tuple | range) and not any(map(_no_number, given)):
        return tuple(map(whole, given))
    raise PlanError(
        f"bucket_by_length with {name}={given!r}",
        why="it is a list of whole numbers, one for each bucket",
        try_=f"{name}=[16, 32]",
    )


def _no_number(given: Any) -> bool:
    return isinstance(given, list | tuple | dict | set)
