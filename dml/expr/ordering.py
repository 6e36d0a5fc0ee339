"""This file orders rows by values of columns: which come first, and where runs of equal ones begin.

Numbers by value, -0.0 as 0.0; texts by their bytes in UTF-8; False before True; moments by time.
Ascending or not, NaN comes after all numbers and null after NaN, or with ``nulls_last`` False null
first and NaN then. Rows of equal keys stay in the order in which they came.
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

from dml.errors import SchemaError
from dml.expr.block import Block, Values, concat, to_arrow
from dml.expr.schema import Schema, shape_of, short
from dml.expr.sorting import Head
from dml.kernels.arrow_ops import compute

# Where a key stands before its value is looked at.
NULL_FIRST, NAN_FIRST, VALUE, NAN, NULL = range(5)


def require_ordered(given: Schema, name: str, verb: str) -> pa.DataType:
    """The type of column ``name``; SchemaError unless its values have an order."""
    kind = given.require(name, verb)
    if shape_of(kind) or unordered(kind):
        raise SchemaError(
            f"{verb} cannot order by {name!r}, which is {short(kind)}",
            why="lists, structs and tensors have no order",
            try_="a column made of it, such as col(...).list.len()",
        )
    return kind


def unordered(kind: pa.DataType) -> bool:
    """True for types whose values cannot be compared."""
    types = pa.types
    return (
        types.is_nested(kind)
        or types.is_interval(kind)
        or types.is_dictionary(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )


def comparable(values: Values, kind: pa.DataType) -> pa.Array:
    """The same order and the same equal values in a type that Arrow sorts and Python compares."""
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
    """A text or bytes that comes the later, the less it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Down) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and bool(other.value == self.value)

    __hash__ = None  # type: ignore[assignment]


def _turned(value: Any) -> Any:
    """What is the greater, the less ``value`` is."""
    if isinstance(value, str | bytes):
        return _Down(value)
    # "-" would round a decimal to the digits of some context
    return value.copy_negate() if isinstance(value, decimal.Decimal) else -value


class Keyed:
    """The keys of the rows of a block."""

    def __init__(self, columns: list[pa.Array], ordering: Ordering) -> None:
        self.columns, self.ordering = columns, ordering

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        """What the row compares by: of two rows the lesser one comes first."""
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
    """Of each value but the last, if the next one is another; null is null, and NaN is NaN."""
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
    """True where it is true, False where it is not or null; may be written to."""
    filled = compute().fill_null(found, False)  # noqa: FBT003 - a value
    return np.array(filled.to_numpy(zero_copy_only=False))


@dataclasses.dataclass(frozen=True)
class Ordering:
    """By the columns ``names``, the first one first; ``descending`` says of each which way."""

    names: tuple[str, ...]
    descending: tuple[bool, ...]
    nulls_last: bool = True
    verb: str = "sort"
    label: str = ""

    def check(self, given: Schema) -> None:
        """SchemaError unless there are all columns, and their values have an order."""
        try:
            for name in self.names:
                require_ordered(given, name, self.verb)
        except SchemaError as error:
            raise error.located(self.label) from None

    def odd_place(self, value: Any) -> int:
        """Where null (None) and NaN stand."""
        if self.nulls_last:
            return NULL if value is None else NAN
        return NULL_FIRST if value is None else NAN_FIRST

    def keyed(self, block: Block) -> Keyed:
        """The keys of ``block``."""
        columns = [comparable(block[name], block.schema[name]) for name in self.names]
        return Keyed(columns, self)

    def order(self, block: Block) -> np.ndarray:
        """The order of the rows of ``block``."""
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

    def starts(self, block: Block, keys: Keyed) -> np.ndarray:
        """Rows of ``block`` (it has some) that do not equal the one before; not the first."""
        differs = np.zeros(max(block.n - 1, 0), bool)
        for column in keys.columns:
            differs |= _differing(column)
        return np.flatnonzero(differs) + 1

    def merged(self, runs: list[Iterator[Block]], at_once: int) -> Iterator[Block]:
        """Rows of sorted ``runs`` in one order, those of equal keys run by run.

        Each round takes from every run the rows that come no later than the last row at hand of
        some run: so no more than are at hand. Where rows of that key go on in a run's next block,
        those of later runs must wait for them. Before it, about ``at_once`` rows more than a block
        of each run are read, of those runs whose rows at hand end first.
        """
        found = (Head(run, self.keyed) for run in runs)
        heads = [head for head in found if head.block is not None]
        while heads:
            _read_ahead(heads, at_once)
            yield self.sorted(list(_round(heads)))
            heads = [head for head in heads if head.block is not None]

    def sorted(self, blocks: list[Block]) -> Block:
        """All rows of ``blocks`` in order."""
        whole = concat(blocks)
        return whole.take(self.order(whole)) if len(blocks) > 1 else whole


def _read_ahead(heads: list[Head], rows: int) -> None:
    """Read more of the runs that end the round, so that it has about ``rows``."""
    spare = rows + sum(head.size - head.rows for head in heads)
    going = [head for head in heads if not head.over]
    while going and spare > 0:
        # a run that is read again has twice as much at hand, so that rows are copied but twice
        head = min(going, key=lambda head: head.last)
        before = head.rows
        head.more(min(before, spare))
        spare -= head.rows - before
        going = [head for head in going if not head.over]


def _round(heads: list[Head]) -> Iterator[Block]:
    """The rows that no row which is not at hand comes before, run by run."""
    ends = [head.last for head in heads if not head.over]
    bound = min(ends) if ends else max(head.last for head in heads)
    find = bisect_right
    for head in heads:
        part = head.taken(find(head.keys, bound, head.start))
        if part is not None:
            yield part
        if part is not None and head.block is not None and head.fresh and head.keys[0] == bound:
            find = bisect_left
