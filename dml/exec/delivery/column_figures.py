"""Compute figures of columns in one pass: sums, extremes, distinct values, bytes.

The figures do not depend on how rows are divided into record batches, or on the number of workers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.display import Displayed, Grid
from dml.data.block import from_arrow
from dml.data.schema import CODES, Schema, shape_of, short
from dml.errors import MemoryContractError, SchemaError
from dml.kernels.arrow_ops import compute
from dml.kernels.math.exact_sums import ExactSums
from dml.ops.group.aggregate_functions import converted
from dml.udfs.calling.python_rows import to_list

Batches = Iterable[pa.RecordBatch]
Figure = Any

# Bytes of overhead of a distinct value: dict entry, count, and part of the result.
ENTRY_BYTES = 160


# ---------------------------------------------------------------------------- figures of a column


class Nulls:
    """Counts the values and the nulls of a column."""

    def __init__(self, kind: pa.DataType) -> None:
        self.count = self.nulls = 0

    def add(self, array: pa.Array) -> None:
        """Add the counts of ``array``."""
        self.nulls += array.null_count
        self.count += len(array) - array.null_count


class ColumnSums:
    """The exact sum of a column; its mean and standard deviation are derived from exact sums."""

    def __init__(self, kind: pa.DataType, *, squared: bool = True) -> None:
        self.exact = ExactSums(np.dtype(kind.to_pandas_dtype()), squared=squared)

    def add(self, array: pa.Array) -> None:
        """Add the values of ``array`` that are not null."""
        self.exact.add(array.drop_null().to_numpy(zero_copy_only=False))


class Ends:
    """The least and greatest value of a column; NaN if any value is NaN; -0.0 is less than 0.0."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.stored = pa.int64() if pa.types.is_duration(kind) else kind
        self.ends = pa.array([], self.stored)

    def add(self, array: pa.Array) -> None:
        """Include the values of ``array``."""
        values = array.drop_null()
        if not len(values):
            return
        least = _least_float if pa.types.is_floating(self.kind) else _min_max
        seen = pa.concat_arrays([self.ends, values.view(self.stored)])
        self.ends = pa.array(least(seen), self.stored)

    def end(self, place: int) -> Any:
        """Return the least (0) or greatest (-1) value as a Python object; None without values."""
        if not len(self.ends):
            return None
        return to_list(from_arrow(self.ends.view(self.kind)))[place]


def _min_max(values: pa.Array) -> list[Any]:
    found = compute().min_max(values)
    return [found["min"], found["max"]]


def _least_float(values: pa.Array) -> list[float]:
    array = values.to_numpy(zero_copy_only=False)
    ends = []
    for end, sign in ((array.min(), -1.0), (array.max(), 1.0)):
        zeros = array[array == 0] if end == 0 else array[:0]
        signed = np.copysign(1.0, zeros) == sign
        zero = math.copysign(0.0, sign if signed.any() else -sign)
        ends.append(zero if len(zeros) else math.nan if end != end else end)  # noqa: PLR0124
    return ends


def number(kind: pa.DataType) -> bool:
    """Return whether values of type ``kind`` can be added up: integers, floats and booleans."""
    return kind in CODES or pa.types.is_float16(kind)


def ordered(kind: pa.DataType) -> bool:
    """Return whether values of type ``kind`` have an order, and so a least and greatest value."""
    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind)
    data = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    moment = types.is_temporal(kind) and not types.is_interval(kind)
    return number(kind) or text or data or moment or types.is_decimal(kind) or types.is_null(kind)


_sums = partial(ColumnSums, squared=False)
# {verb: (class that accumulates a column, check of the column's type, function to the result)}.
FIGURES: dict[str, tuple[Callable[..., Any], Callable[..., bool], Callable[..., Figure]]] = {
    "sum": (_sums, number, lambda seen: seen.exact.total),
    "mean": (_sums, number, lambda seen: seen.exact.mean),
    "std": (ColumnSums, number, lambda seen: seen.exact.deviation(1)),
    "min": (Ends, ordered, lambda seen: seen.end(0)),
    "max": (Ends, ordered, lambda seen: seen.end(-1)),
}


def figure(batches: Batches, schema: Schema, name: str, verb: str) -> Figure:
    """Return figure ``verb`` of column ``name``; raise SchemaError if its type has none."""
    kind_of, able, asked = FIGURES[verb]
    seen = kind_of(_able(schema[name], name, verb, able)) if schema.known else None
    for batch in batches:
        array = batch.column(name)
        seen = seen or kind_of(_able(array.type, name, verb, able))
        seen.add(array)
    # no rows of an unknown type: every type gives the same result
    return asked(seen or kind_of(pa.int64()))


def _able(
    kind: pa.DataType, name: str, verb: str, able: Callable[[pa.DataType], bool]
) -> pa.DataType:
    if not able(kind):
        wanted = "numbers" if able is number else "single values that have an order"
        raise SchemaError(
            f"{verb} needs a column of {wanted}, and {name!r} is {short(kind)}",
            why="integers, floats and booleans are numbers"
            if able is number
            else "lists, structs and tensors have none",
            try_=f"{converted(name, kind)} if it holds numbers",
        )
    return kind


class Description(Displayed, dict[str, dict[str, Figure]]):
    """{column: {figure name: figure}}, displayed as a table with a row for each column."""

    def _parts(self) -> Iterator[str | Grid]:
        names = list(dict.fromkeys(name for figures in self.values() for name in figures))
        rows = [["column", *names]]
        for column, figures in self.items():
            rows.append([column, *(figure_text(figures.get(name, "")) for name in names)])
        yield Grid(rows, texts={0}) if self else "no column has numbers"


def figure_text(figure: Figure) -> str:
    """Format an exact integer in full, and a float with six significant digits."""
    if figure is None:
        return "null"
    return f"{figure:.6g}" if isinstance(figure, float) else str(figure)


def described(batches: Batches, schema: Schema) -> Description:
    """Return the figures of each column of integers or floats."""
    seen = {name: _Described(kind) for name, kind in schema.items() if measured(kind)}
    for batch in batches:
        for field, array in zip(batch.schema, batch.columns, strict=True):
            if field.name not in seen and measured(field.type):
                seen[field.name] = _Described(field.type)
            if field.name in seen:
                seen[field.name].add(array)
    return Description({name: column.figures() for name, column in seen.items()})


def measured(kind: pa.DataType) -> bool:
    """Return whether ``described`` includes columns of type ``kind``: integers and floats."""
    return number(kind) and not pa.types.is_boolean(kind)


class _Described:
    def __init__(self, kind: pa.DataType) -> None:
        self.nulls, self.sums, self.ends = Nulls(kind), ColumnSums(kind), Ends(kind)

    def add(self, array: pa.Array) -> None:
        """Include the values of ``array``."""
        for part in (self.nulls, self.sums, self.ends):
            part.add(array)

    def figures(self) -> dict[str, Figure]:
        """Return {name of a figure in ``Dataset.describe``: figure} of the column."""
        return {
            "count": self.nulls.count,
            "null_count": self.nulls.nulls,
            "mean": self.sums.exact.mean,
            "std": self.sums.exact.deviation(1),
            "min": self.ends.end(0),
            "max": self.ends.end(-1),
        }


# -------------------------------------------------------------------------------- distinct values


class Distinct:
    """The distinct values of a column, in order of first appearance, with their counts.

    Null counts as a value, all NaNs as one, whatever their bits, and -0.0 and 0.0 as one, 0.0.
    """

    def __init__(self, name: str, kind: pa.DataType, most_bytes: int) -> None:
        if pa.types.is_nested(kind) or shape_of(kind) or not _one(kind):
            raise SchemaError(
                f"the distinct values of {name!r} cannot be told, since it is {short(kind)}",
                why="values of lists, structs, tensors and calendar intervals are not compared",
                try_="a column of numbers, texts or moments made of it",
            )
        self.name, self.kind, self.most_bytes = name, kind, most_bytes
        self.counts: dict[Any, int] = {}
        self.rows = self.nbytes = 0

    def add(self, array: pa.Array) -> None:
        """Count the values of ``array``; raise MemoryContractError if too many are distinct."""
        self.rows += len(array)
        found = compute().value_counts(array.view(_stored(self.kind)))
        pairs = zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True)
        for given, count in pairs:
            # a dict finds NaN only if it is the same object
            value = math.nan if given != given else given  # noqa: PLR0124
            value = abs(value) if isinstance(value, float) and not value else value
            if value not in self.counts:
                self.nbytes += ENTRY_BYTES + 2 * sys.getsizeof(value)
            self.counts[value] = self.counts.get(value, 0) + count
        if self.nbytes > self.most_bytes:
            raise self._too_many()

    def _too_many(self) -> MemoryContractError:
        return MemoryContractError(
            f"the distinct values of {self.name!r} do not fit into the memory number",
            why=f"{len(self.counts)} in {self.rows} rows, take {self.nbytes} bytes,"
            f" and their part of memory_limit is {self.most_bytes}",
            try_="a larger memory_limit=, or fewer values: .hash(n) or .round() first",
        )

    def values(self) -> pa.Array:
        """Return the distinct values, in order of first appearance."""
        return self._array(list(self.counts))

    def table(self, counts: str) -> pa.Table:
        """Return a table of values and their counts in a column named ``counts``.

        The most frequent value is first; values of equal counts are in order of first appearance.
        """
        pairs = sorted(self.counts.items(), key=lambda pair: -pair[1])
        values = self._array([value for value, _ in pairs])
        numbers = pa.array([count for _, count in pairs], pa.int64())
        return pa.table({self.name: values, counts: numbers})

    def _array(self, values: list[Any]) -> pa.Array:
        return pa.array(values, _stored(self.kind)).view(self.kind)


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values are compared: for temporal types, integers of equal width."""
    if not pa.types.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _one(kind: pa.DataType) -> bool:
    return not (pa.types.is_interval(kind) or isinstance(kind, pa.BaseExtensionType))


def distinct(batches: Batches, schema: Schema, name: str, most_bytes: int) -> Distinct:
    """Return the distinct values of column ``name``; they may take at most ``most_bytes``."""
    seen = Distinct(name, schema[name], most_bytes) if schema.known else None
    for batch in batches:
        array = batch.column(name)
        seen = seen or Distinct(name, array.type, most_bytes)
        seen.add(array)
    return seen or Distinct(name, pa.null(), most_bytes)


def listed(seen: Distinct) -> list[Any]:
    """Return the distinct values as the Python objects that rows of a pipeline would have."""
    return to_list(from_arrow(seen.values()))


# ------------------------------------------------------------------------------------------ bytes


def size_of(batches: Batches) -> int:
    """Return the bytes of all values, including nulls, without validity masks and padding."""
    return sum(bytes_of(array) for batch in batches for array in batch.columns)


def row_bytes(schema: Schema) -> int | None:
    """Return the bytes of one row's values; None if their number may vary or types are unknown."""
    if not schema.known:
        return None
    none = [bytes_of(pa.nulls(1, kind)) for kind in schema.values() if fixed(kind)]
    return sum(none) if len(none) == len(schema) else None


def fixed(kind: pa.DataType) -> bool:
    """Return whether all values of type ``kind`` take the same number of bytes."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return fixed(kind.storage_type)
    if types.is_fixed_size_list(kind):
        return fixed(kind.value_type)
    one = types.is_primitive(kind) or types.is_decimal(kind)
    return bool(one or types.is_fixed_size_binary(kind))


def bytes_of(array: pa.Array) -> int:
    """Return the bytes of the values of ``array``, however it is sliced from larger buffers."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    types = pa.types
    if types.is_struct(kind):
        return sum(map(bytes_of, array.flatten()))
    if types.is_fixed_size_list(kind):
        elements = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return bytes_of(elements)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return bytes_of(array.flatten()) + len(array) * _offset_bytes(kind)
    if types.is_null(kind):
        return 0
    if fixed(kind):
        return len(array) * max(8, int(kind.bit_width)) // 8
    if types.is_binary_view(kind) or types.is_string_view(kind):
        array = array.cast(pa.large_binary())
    letters: int = compute().sum(compute().binary_length(array)).as_py() or 0
    return letters + len(array) * _offset_bytes(kind)


def _offset_bytes(kind: pa.DataType) -> int:
    return 8 if str(kind).startswith("large_") else 4
