"""Rows are ordered by values of columns, and runs of rows with equal keys are found.

Numbers compare by value, -0.0 as 0.0; texts by their bytes in UTF-8; False before True; dates and
times by time. Ascending or descending, NaN comes after all numbers and null after NaN; with
``nulls_last`` False null comes first, then NaN. Rows of equal keys keep their order.
"""

from __future__ import annotations

import dataclasses
import decimal
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import total_ordering
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.block import Block, Values, concat, to_arrow
from dml.data.schema import Schema, shape_of, short
from dml.errors import SchemaError
from dml.kernels.arrow_ops import compute
from dml.ops.sort.external_sort import RunHead

# The first part of a key: values are only compared where this part is equal.
NULL_FIRST, NAN_FIRST, VALUE, NAN, NULL = range(5)


def require_ordered(given: Schema, name: str, verb: str) -> pa.DataType:
    """Return the type of column ``name``; raise SchemaError unless its values have an order."""
    kind = given.require(name, verb)
    if shape_of(kind) or unordered(kind):
        raise SchemaError(
            f"{verb} cannot order by {name!r}, which is {short(kind)}",
            why="lists, structs and tensors have no order",
            try_="a column made of it, such as col(...).list.len()",
        )
    return kind


def unordered(kind: pa.DataType) -> bool:
    """Return True for types whose values cannot be compared."""
    types = pa.types
    return (
        types.is_nested(kind)
        or types.is_interval(kind)
        or types.is_dictionary(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )


def comparable(values: Values, kind: pa.DataType) -> pa.Array:
    """Return ``values`` in a type that Arrow sorts and Python compares, in the same order."""
    array = to_arrow(values, kind)
    if pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return array.cast(pa.decimal128(kind.precision, kind.scale))
    return array


@total_ordering
class _Down:
    """A text or bytes value that compares in descending order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Down) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and bool(other.value == self.value)

    __hash__ = None  # type: ignore[assignment]


def _turned(value: Any) -> Any:
    """Return an object that compares with others of its kind in the reverse order of values."""
    if isinstance(value, str | bytes):
        return _Down(value)
    # "-" would round a decimal to the digits of some context
    return value.copy_negate() if isinstance(value, decimal.Decimal) else -value


class KeyedBlock:
    """The sort keys of the rows of a block, as a sequence of tuples."""

    def __init__(self, columns: list[pa.Array], ordering: Ordering) -> None:
        self.columns, self.ordering = columns, ordering

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        """Return the sort key of a row; rows are sorted by ascending sort keys."""
        found: list[Any] = []
        for column, down in zip(self.columns, self.ordering.descending, strict=True):
            value = column[row].as_py()
            if value is None or value != value:  # noqa: PLR0124 - NaN is not itself
                found.append((self.ordering.odd_place(value), 0))
            elif down:
                found.append((VALUE, _turned(value)))
            else:
                found.append((VALUE, value))
        return tuple(found)


def _differing(column: pa.Array) -> np.ndarray:
    """Return a mask (n - 1,) of values that differ from the next; nulls equal, NaNs equal."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column) - 1, bool)
    before, after = column.slice(0, len(column) - 1), column.slice(1)
    found = _flags(compute().not_equal(before, after))
    if pa.types.is_floating(column.type):
        found &= ~(_flags(compute().is_nan(before)) & _flags(compute().is_nan(after)))
    if column.null_count:
        found |= _flags(compute().is_null(before)) != _flags(compute().is_null(after))
    return found


def _flags(found: pa.Array) -> np.ndarray:
    """Return a writable array, True where ``found`` is true, False where it is false or null."""
    filled = compute().fill_null(found, False)  # noqa: FBT003 - a value
    return np.array(filled.to_numpy(zero_copy_only=False))


@dataclasses.dataclass(frozen=True)
class Ordering:
    """The order by the columns ``names``, by priority, with ``descending`` for each.

    ``verb`` and ``label`` are the user's verb and the operator's label, for errors.
    """

    names: tuple[str, ...]
    descending: tuple[bool, ...]
    nulls_last: bool = True
    verb: str = "sort"
    label: str = ""

    def check(self, given: Schema) -> None:
        """Raise SchemaError unless all columns exist, and their values have an order."""
        try:
            for name in self.names:
                require_ordered(given, name, self.verb)
        except SchemaError as error:
            raise error.located(self.label) from None

    def odd_place(self, value: Any) -> int:
        """Return the number by which null (``value`` None) or NaN sorts before or after others."""
        if self.nulls_last:
            return NULL if value is None else NAN
        return NULL_FIRST if value is None else NAN_FIRST

    def keyed(self, block: Block) -> KeyedBlock:
        """Return the sort keys of the rows of ``block``."""
        columns = [comparable(block[name], block.schema[name]) for name in self.names]
        return KeyedBlock(columns, self)

    def order(self, block: Block) -> np.ndarray:
        """Return the indices (n,) that sort the rows of ``block``."""
        columns = self.keyed(block).columns
        place = "at_end" if self.nulls_last else "at_start"
        ways = ["descending" if down else "ascending" for down in self.descending]
        if len(columns) == 1:
            keys = [("", ways[0], place)]
            return np.asarray(compute().sort_indices(columns[0], sort_keys=keys))
        names = [str(number) for number in range(len(columns))]
        keys = [(name, way, place) for name, way in zip(names, ways, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, names)
        return np.asarray(compute().sort_indices(batch, sort_keys=keys))

    def starts(self, block: Block, keys: KeyedBlock) -> np.ndarray:
        """Return the indices of the rows of ``block`` whose ``keys`` differ from the row before.

        The indices ascend, without that of the first row. ``block`` must not be empty.
        """
        differs = np.zeros(max(block.n - 1, 0), bool)
        for column in keys.columns:
            differs |= _differing(column)
        return np.flatnonzero(differs) + 1

    def merged(self, runs: list[Iterator[Block]], at_once: int) -> Iterator[Block]:
        """Yield the rows of sorted ``runs`` merged in this order; equal keys in the order of runs.

        Each round takes, from every run, the rows up to a bound: the least of the last keys of the
        runs' current blocks. If a run's next block begins with the bound, rows with that key in
        later runs follow in a later round. Before a round, about ``at_once`` rows more than a block
        of each run are read, from the runs whose current blocks end first.
        """
        found = (RunHead(run, self.keyed) for run in runs)
        heads = [head for head in found if head.block is not None]
        while heads:
            _read_ahead(heads, at_once)
            yield self.sorted(list(_round(heads)))
            heads = [head for head in heads if head.block is not None]

    def sorted(self, blocks: list[Block]) -> Block:
        """Return the rows of sorted ``blocks`` as one sorted block."""
        whole = concat(blocks)
        return whole.take(self.order(whole)) if len(blocks) > 1 else whole


def _read_ahead(heads: list[RunHead], rows: int) -> None:
    """Read more of the runs whose blocks end first: one block per run, and ``rows`` rows more."""
    spare = rows + sum(head.size - head.rows for head in heads)
    going = [head for head in heads if not head.over]
    while going and spare > 0:
        # each read doubles a run's current rows, so that a row is copied about twice
        head = min(going, key=lambda head: head.last)
        before = head.rows
        head.more(min(before, spare))
        spare -= head.rows - before
        going = [head for head in going if not head.over]


def _round(heads: list[RunHead]) -> Iterator[Block]:
    """Take and yield, run by run, the rows that come before all unread rows."""
    ends = [head.last for head in heads if not head.over]
    bound = min(ends) if ends else max(head.last for head in heads)
    find = bisect_right
    for head in heads:
        part = head.take(find(head.keys, bound, head.start))
        if part is not None:
            yield part
        if part is not None and head.block is not None and head.fresh and head.keys[0] == bound:
            find = bisect_left
