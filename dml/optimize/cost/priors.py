"""A table gives prior costs of operators that were never measured.

Costs are nanoseconds per row and per byte, of one core of the machine that ``REFERENCE`` of
``dml/fleet/calibration.py`` describes; the table also has the shares of rows that predicates keep.
The figures are rounded guesses: one run outweighs them, so an error of a factor of three is
harmless.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.data.schema import Schema
from dml.expr.columns.value import Value, walk
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.io.source import Source, read_of
from dml.ops.row.lifted import LiftedNode
from dml.ops.row.segment import Segment
from dml.optimize.search.dynamic_programme import DriverCosts
from dml.profile import Speed


class Prior(NamedTuple):
    """A prior cost: nanoseconds per row, and per byte of the rows."""

    row_ns: float
    byte_ns: float = 0.0


# Sources by their kind; a source that is not listed is a user's own.
SOURCES: Final = {
    "Memory": Prior(0.5),
    "Range": Prior(10),
    "ParquetSource": Prior(1, 1),
    "ArrowSource": Prior(0.5, 0.3),
    "NumpySource": Prior(0.5, 0.3),
    "OrcSource": Prior(2, 2),
    "CsvSource": Prior(30, 2),
    "JsonSource": Prior(100, 15),
    "TextSource": Prior(30, 2),
    "BinarySource": Prior(20_000, 0.5),
    "RecordSource": Prior(500, 2),
    "SampleSource": Prior(5_000, 1),
}
USERS_SOURCE: Final = Prior(200, 2)

# Operators by their effect on rows.
MOVING: Final = {
    Rows.SAME: Prior(5, 0.5),
    Rows.FEWER: Prior(5, 0.5),
    Rows.MORE: Prior(50, 2),
    Rows.ATOMS: Prior(20, 1),
    Rows.RUNS: Prior(150, 1),
    Rows.SLICE: Prior(0.5, 0.05),
    Rows.PERMUTED: Prior(120, 1),
    Rows.GROUPED: Prior(2, 0.1),
    Rows.WINDOWS: Prior(30, 1),
    Rows.REGROUPED: Prior(200, 1),
    Rows.PACKED: Prior(1_000, 1),
    Rows.REPEATED: Prior(0.2),
    Rows.KEPT: Prior(1, 0.3),
    Rows.STORED: Prior(1, 0.5),
    Rows.MERGED: Prior(5, 0.5),
    Rows.WOVEN: Prior(80, 1),
    Rows.ALL: Prior(200, 2),
}
# The cost of a batch, in addition to that of its rows.
BATCH_NS: Final = 6_000
CALLED_PER_ROW: Final = Prior(2_000)
CALLED_PER_BLOCK: Final = Prior(20, 1)

# One operation on one value, compiled; NumPy takes several passes over memory instead of one.
KEPT_NS, LIFTED_NS = 8.0, 5.0
CHEAP_NS, NUMPY_FACTOR = 1.0, 3.0
OPERATIONS_NS: Final = {
    "cast": 1, "hash": 4, "random": 6, "row_id": 4, "is_in": 6, "bucketize": 8,
    "exp": 8, "log": 12, "log1p": 15, "expm1": 10, "pow": 15, "sin": 8, "cos": 8, "tanh": 8,
    "sqrt": 2, "truediv": 1.5, "floordiv": 4, "mod": 4, "col": 0, "lit": 0,
    "image.decode": 1_200_000, "image.encode": 3_000_000, "image.size": 5_000,
    "image.resize": 700_000, "image.random_resized_crop": 700_000, "image.crop": 2_000,
    "audio.decode": 1_000_000, "audio.info": 50_000, "audio.mel": 1_000_000,
    "video.info": 1_000_000,
}  # fmt: skip
FAMILIES_NS: Final = {
    "str": 90, "list": 60, "tokens": 300, "dt": 10, "struct": 2, "tensor": 30, "image": 100_000,
    "audio": 200_000, "video": 30_000_000,
}  # fmt: skip
OTHER_FAMILY_NS: Final = 60

# Shares of rows that a comparison keeps, where nothing is known of the values.
KEPT_BY: Final = {
    "eq": 0.1, "ne": 0.9, "lt": 0.4, "le": 0.4, "gt": 0.4, "ge": 0.4,
    "is_null": 0.1, "is_nan": 0.05, "is_in": 0.2,
}  # fmt: skip
KEPT_BY_OTHERS: Final = 0.5

TEXT_BYTES, LIST_ITEMS = 24, 8
# The length of a tensor's axis, such as the height of an image, where rows differ.
OPEN_AXIS = 256

# Drivers: seconds to start, per partition and per byte of it (benchmarks/bench_processes.py).
DRIVERS: Final = {
    "threads": DriverCosts("threads", 0.0, 150e-6, 0.0, shares_lock=True),
    "processes": DriverCosts("processes", 0.75, 1e-3, 1.3e-9),
}


def prior_s(
    node: Node, row_bytes: float, speed: Speed, *, compiled: bool = True, moved: bool = False
) -> float:
    """Return the seconds that ``node`` takes for a row of ``row_bytes``, according to the table.

    ``moved`` is True if ``node`` is a source that is not read in its own order.
    """
    found = _prior(node, compiled=compiled)
    if moved:
        found = Prior(*(sum(both) for both in zip(found, MOVING[Rows.PERMUTED], strict=True)))
    return (found.row_ns * speed.work + found.byte_ns * row_bytes * speed.copying) * 1e-9


def _prior(node: Node, *, compiled: bool) -> Prior:
    if isinstance(node, Source):
        return SOURCES.get(type(read_of(node)).__name__, USERS_SOURCE)
    if isinstance(node, Segment):
        values = (*node.predicate, *(value for _, value in node.env))
        kept_ns = KEPT_NS if node.predicate else 0.0
        return _of_values(values, kept_ns, compiled=compiled)
    if isinstance(node, LiftedNode):
        return _of_values(node.outputs, LIFTED_NS, compiled=compiled)
    if node.calls is not None:
        return CALLED_PER_BLOCK if node.by_atom or node.batched else CALLED_PER_ROW
    if node.rows is Rows.GROUPED:
        return Prior(MOVING[node.rows].row_ns + BATCH_NS / max(1, node.batch_rows))
    return MOVING[node.rows]


def driver(name: str, speed: Speed) -> DriverCosts:
    """Return the costs of the driver ``name`` on a machine of this speed."""
    found = DRIVERS[name]
    return dataclasses.replace(
        found,
        start_s=found.start_s * speed.work,
        partition_s=found.partition_s * speed.work,
        byte_s=found.byte_s * speed.copying,
    )


def keeping_s(speed: Speed) -> float:
    """Return the seconds to write one byte to a cache, or to read one byte from it."""
    return MOVING[Rows.KEPT].byte_ns * speed.copying * 1e-9


def values_s(values: Sequence[Value], speed: Speed) -> float:
    """Return the seconds that ``values`` take per row; shared parts count once."""
    return _of_values(tuple(values), 0.0, compiled=True).row_ns * speed.work * 1e-9


def _of_values(values: tuple[Value, ...], fixed_ns: float, *, compiled: bool) -> Prior:
    cheap = costly = 0.0
    for value in walk(values):
        ns = _operation_ns(value)
        if "." in value.op:
            costly += ns
        else:
            cheap += ns
    return Prior(fixed_ns + costly + cheap * (1.0 if compiled else NUMPY_FACTOR), 0.1)


def _operation_ns(value: Value) -> float:
    family, dot, _ = value.op.partition(".")
    usual = FAMILIES_NS.get(family, OTHER_FAMILY_NS) if dot else CHEAP_NS
    return OPERATIONS_NS.get(value.op, usual)


def kept_share(node: Node) -> float:
    """Return the number of rows that ``node`` outputs per input row, according to the table."""
    if isinstance(node, Segment):
        return math.prod(map(kept_by, node.predicate))
    if node.rows is Rows.FEWER:
        return KEPT_BY_OTHERS
    more = node.rows is Rows.MORE and node.length(1) is None
    return float(LIST_ITEMS) if more else 1.0


def kept_by(part: Value) -> float:
    """Return the share of rows for which ``part`` is true, according to the table."""
    if part.op == "and":
        return math.prod(map(kept_by, part.args))
    if part.op == "or":
        return 1 - math.prod(1 - kept_by(arg) for arg in part.args)
    if part.op == "not":
        return 1 - kept_by(part.args[0])
    return KEPT_BY.get(part.op, KEPT_BY_OTHERS)


def row_bytes(schema: Schema, columns: tuple[str, ...] | None = None) -> float:
    """Return the bytes of a row by the types of its columns; texts and lists are guessed."""
    if not schema.known:
        return float(TEXT_BYTES)
    names = schema.names if columns is None else columns
    return float(sum(_value_bytes(schema[name]) for name in names)) or 1.0


def _value_bytes(kind: pa.DataType) -> float:
    if isinstance(kind, pa.FixedShapeTensorType):
        return float(math.prod(kind.shape)) * _value_bytes(kind.value_type)
    if isinstance(kind, OpenTensor):
        axes = (OPEN_AXIS if length is None else length for length in kind.shape)
        return float(math.prod(axes)) * _value_bytes(kind.value_type)
    if isinstance(kind, pa.StructType):
        return sum(_value_bytes(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4 + LIST_ITEMS * _value_bytes(kind.value_type)
    if pa.types.is_boolean(kind):
        return 1.0
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return float(TEXT_BYTES)
