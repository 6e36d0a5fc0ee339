"""Verbs that batch, number, select, split and unpack elements are defined here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import pyarrow as pa

from dml.api.verbs.functions import FunctionVerbs
from dml.api.verbs.step import StepVerbs, a_test, function, name_of, names_of
from dml.base.user_line import door
from dml.checks import whole
from dml.data.schema import Schema
from dml.errors import PlanError, SchemaError
from dml.expr.columns.column import Column, col, random, wrap

# The name of the temporary key column.
KEY = "the key of group_by_window"
# The name of the temporary class column.
COUNTED = "the class of rejection_resample"
P = ParamSpec("P")
R = TypeVar("R")


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

        Tensors whose shapes differ, such as images and sounds, are padded on each of their axes.
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

        A row's length is that of its list, text or bytes in ``column``, or of the one axis of its
        tensor on which rows differ, or an integer in it.
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


class ElementVerbs(BatchVerbs, FunctionVerbs):
    """Verbs that depend on the positions, ids or contents of elements."""

    @door
    def with_row_index(self, name: str = "index", offset: int = 0) -> Self:
        """Add a first column ``name`` (int64) of row numbers, from ``offset`` in each pass."""
        from dml.ops.row.with_row_index import WithRowIndex

        return self._then(WithRowIndex, name, offset)

    @door
    def enumerate(self, start: int = 0, *, name: str = "index") -> Self:
        """Number the rows, as ``with_row_index(name, offset=start)``."""
        return self.with_row_index(name, start)

    @door
    def shard(self, num_shards: int, index: int, *, by: str = "rows") -> Self:
        """Take every ``num_shards``-th element (row or batch) from number ``index`` on.

        The shards 0 to ``num_shards - 1`` together have each element once. Each shard reads all
        elements, except if ``by`` is "units" or "files": then it reads only every ``num_shards``-th
        read unit (such as a row group) or file of the source. Raise PlanError if anything but
        ``filter``, ``with_columns`` and functions lies between the source and such a shard.
        """
        if by == "rows":
            from dml.ops.slice.shard import Shard

            return self._then(Shard, num_shards, index)
        from dml.io.unit_shard import FILES, UNITS, divided

        if by not in (UNITS, FILES):
            raise PlanError(
                f"shard by={by!r}",
                why="what is divided is rows, or the units or files that the source reads",
                try_=f'by="rows", by={UNITS!r} or by={FILES!r}',
            )
        return self._with(divided(self._node, num_shards, index, by), self._settings)

    def unbatch(self) -> Self:
        """Deliver the rows of each batch, one by one; this reverses ``batch``."""
        from dml.ops.batch.unbatch import Unbatch

        return self._then(Unbatch)

    @door
    def rebatch(self, n: int, *, drop_last: bool = False) -> Self:
        """Change the batch size to ``n`` rows, as ``unbatch().batch(n)``."""
        return self.unbatch().batch(n, drop_last=drop_last)

    @door
    def explode(self, *columns: str) -> Self:
        """Replace each row by one row per element of its lists (or tensors) in ``columns``.

        An empty list or null gives one row with null. Raise CastError if a row's lists differ in
        length.
        """
        from dml.ops.row.explode import Explode

        return self._then(Explode, tuple(dict.fromkeys(names_of(columns))))

    @door
    def take_while(
        self,
        predicate: Any,
        *,
        fingerprint: str | None = None,
        on_error: str = "raise",
        timeout: float | None = None,
    ) -> Self:
        """Take the rows before the first one for which ``predicate`` is false or null.

        ``predicate`` is an expression, or a function of a row's dict. Nothing is read after that
        row. For a function, ``on_error`` and ``timeout`` are as in ``map``: reading continues after
        a row that was skipped.
        """
        from dml.ops.slice.take_while import TakeWhile

        self._rows_only("take_while")
        if isinstance(predicate, Column):
            if timeout is not None:
                raise PlanError(
                    "take_while by an expression with timeout=",
                    why="it limits the calls of a function",
                    try_=".take_while(expression), or .take_while(function, timeout=...)",
                )
            return self._then(TakeWhile, predicate.value, on_error)
        a_test("take_while", predicate)
        fn = function(predicate, "take_while", fingerprint, timeout=timeout)
        return self._then(TakeWhile, fn, on_error)

    @door
    def drop_nulls(self, *columns: str) -> Self:
        """Drop rows with null in any of ``columns`` (none given: all columns); NaN is not null."""
        names = names_of(columns) or self._known_schema("drop_nulls").names
        present = [col(name).is_not_null() for name in names]
        return self.filter(_all_of(present)) if present else self

    @door
    def drop_nans(self, *columns: str) -> Self:
        """Drop rows with NaN in any of ``columns`` (none given: all floats); null is not NaN."""
        given = names_of(columns)
        kinds = {} if given else self._known_schema("drop_nans")
        names = given or [name for name, kind in kinds.items() if pa.types.is_floating(kind)]
        sound = [~col(name).is_nan().fill_null(value=False) for name in names]
        return self.filter(_all_of(sound)) if sound else self

    def _known_schema(self, verb: str) -> Schema:
        """Return the schema, for a verb without column names. Raise SchemaError if unknown."""
        if not self._node.schema.known:
            raise SchemaError(
                f"{verb} without names needs known columns",
                why="a function below decides them when it runs",
                try_=f'{verb}("x"), or schema={{...}} where the function is given',
            )
        return self._node.schema

    @door
    def remove(self, predicate: Column) -> Self:
        """Drop the rows for which ``predicate`` is true; rows with false or null stay."""
        return self.filter(~Column(wrap(predicate)).fill_null(value=False))

    @door
    def sample(self, fraction: float, *, seed: int | None = None) -> Self:
        """Keep about ``fraction`` of the rows by independent draws, different in every epoch.

        This is ``filter(dml.random(seed=seed) < fraction)``; for fixed parts see ``split``.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise _no_fraction("sample", fraction)
        if not 0 <= fraction <= 1:
            raise _no_fraction("sample", fraction)
        return self.filter(random(seed=seed) < float(fraction))

    random_sample = sample

    @door
    def rejection_resample(
        self,
        classes: str | Column | Callable[[dict[str, Any]], Any],
        target_dist: Any,
        initial_dist: Any = None,
        *,
        seed: int | None = None,
        fingerprint: str | None = None,
    ) -> Self:
        """Sample the rows so that their classes have the proportions ``target_dist``.

        ``classes`` is a column, an expression or a function of a row that gives the class.
        Proportions are a dict by class, or a list for the classes 0, 1, 2 ... Rows of classes
        without a target are dropped. The class that is rarest relative to its target keeps every
        row; rows of other classes are kept by random draws, as in ``sample``. ``initial_dist`` has
        the current proportions (or counts) of the classes. Without it, the rows of each class are
        counted now, which reads the column once.
        """
        from dml.api.verbs.resampling import VERB, accepted, draw_mask, shares_of

        self._rows_only(VERB)
        target = shares_of(target_dist, "target_dist")
        named = col(classes) if isinstance(classes, str) else classes
        if not isinstance(named, Column) and (isinstance(named, type) or not callable(named)):
            raise SchemaError(
                f"{VERB} needs a column, an expression or a function, got {classes!r}",
                why=f"a {type(classes).__name__} says nothing about a row",
                try_=f'.{VERB}("label", [0.5, 0.5])',
            )
        if initial_dist is None:
            initial_dist = self._counted(named)
        shares = accepted(target, shares_of(initial_dist, "initial_dist"))
        if isinstance(named, Column):
            return self.filter(draw_mask(named, shares, seed))
        fn = function(named, VERB, fingerprint)
        from dml.ops.row.resample import Resample

        return self._then(Resample, fn, tuple(shares.items()), seed)

    def _counted(self, classes: Column | Callable[[dict[str, Any]], Any]) -> dict[Any, int]:
        """Read all rows; return the number of rows of each class."""
        from dml.ops.row.with_columns import WithColumns

        self._must_end("rejection_resample without initial_dist")
        given: Any = (
            self._then(WithColumns, ((COUNTED, classes.value),))
            if isinstance(classes, Column)
            else self.map(partial(_classed, classes))
        )
        found = given.value_counts(COUNTED)
        return dict(zip(found[COUNTED].to_pylist(), found["count"].to_pylist(), strict=True))

    @door
    def split(
        self, fractions: Sequence[float], *, seed: int | None = None, stratify: str | None = None
    ) -> list[Self]:
        """Split into one pipeline for each of ``fractions``, which sum to 1, by random draws.

        Each row is in exactly one part, which depends on its id and ``seed`` alone: it is in the
        same part in every epoch, on every machine, after any shuffle, and when rows are added.
        Passes of an earlier ``repeat`` have different ids, so split before repeating.

        With ``stratify``, a column of classes, each part has its share of every class; with two
        parts, to within one row in any prefix. The part of a row then depends on its position among
        the rows of its class, so an earlier shuffle or random draw raises PlanError.
        """
        from dml.ops.slice.part import Part, bounds, splits_below

        edges, nth = pairwise(bounds(fractions)), splits_below(self._node)
        if stratify is not None:
            from dml.ops.slice.stratum import Stratum, strata

            whole = strata(fractions)
            return [self._then(Stratum, stratify, whole, i, seed, nth) for i in range(len(whole))]
        return [self._then(Part, low, high, seed, nth) for low, high in edges]

    random_split = split

    @door
    def train_test_split(
        self, test_size: float, *, seed: int | None = None, stratify: str | None = None
    ) -> tuple[Self, Self]:
        """Split into training and test rows, as ``split([1 - test_size, test_size])``."""
        if isinstance(test_size, bool) or not isinstance(test_size, int | float):
            raise _no_fraction("train_test_split", test_size)
        if not 0 <= test_size <= 1:
            raise _no_fraction("train_test_split", test_size)
        train, test = self.split([1 - test_size, test_size], seed=seed, stratify=stratify)
        return train, test

    def pipe(
        self, fn: Callable[Concatenate[Self, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return ``fn(self, *args, **kwargs)``, so that ``fn`` fits in a chain of verbs."""
        return fn(self, *args, **kwargs)

    apply = pipe

    @door
    def apply_op(self, name: str, **options: Any) -> Self:
        """Apply the function of pipelines that an installed package registers as ``name``.

        A name is that of an entry point of the group "dml.ops": a function, called with the
        pipeline and ``options``, that returns a pipeline. Raise PlanError if the name is unknown.
        """
        from dml.plugins import OPS, plugin

        made = plugin(OPS, name)(self, **options)
        if not isinstance(made, type(self)):
            raise PlanError(
                f"{name!r} of {OPS!r} gave {made!r}, which is no pipeline",
                why=f"it is of type {type(made).__name__}",
                try_="return what the verbs of the given pipeline return",
            )
        return made


def _classed(fn: Callable[[dict[str, Any]], Any], row: dict[str, Any]) -> dict[str, Any]:
    return {COUNTED: fn(row)}


def _all_of(parts: list[Column]) -> Column:
    whole = parts[0]
    for part in parts[1:]:
        whole &= part
    return whole


def _no_fraction(verb: str, given: object) -> PlanError:
    return PlanError(
        f"{verb} needs a fraction, got {given!r}",
        why="it is a share of the rows: a number from 0 to 1",
        try_=f"{verb}(0.1), or .shuffle(seed=1).take(n) for a number of rows",
    )
