"""``FIGURES`` is the table of all aggregates; those whose states contain values follow here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.data.block import Values, from_arrow, length, to_arrow
from dml.data.list_marks import Mark
from dml.data.schema import code_of, shape_of
from dml.kernels.vec import Vec
from dml.ops.group.aggregate_functions import (
    Figure,
    Mean,
    Spread,
    Total,
    Truth,
    valid,
)
from dml.ops.sort.row_order import comparable, unordered

# Bytes of an entry of a set, without the letters of a text.
ENTRY_BYTES = 120


class End(Figure):
    """The minimum or maximum; NaN if any value is NaN, -0.0 is below 0.0; null without values."""

    def typed(self) -> pa.DataType:
        """Return the column's type; raise SchemaError unless its values have an order."""
        if shape_of(self.given) or unordered(self.given):
            raise self.refused("values that have an order", "lists, structs and tensors have none")
        return self.given

    def states(self, values: Values, starts: np.ndarray) -> list[Any]:
        """Return the minimum or maximum of each run, in Python's order; None without values."""
        if pa.types.is_float16(self.given):
            values = from_arrow(comparable(values, self.given))
        if isinstance(values, Vec) and values.values.dtype.kind in "iuf":
            return self._of_numbers(values, starts)
        array = comparable(values, self.given).to_pylist()
        runs = zip(starts.tolist(), [*starts[1:].tolist(), len(array)], strict=True)
        return [self._of_values(array[start:stop]) for start, stop in runs]

    def _of_values(self, values: list[Any]) -> Any:
        present = [value for value in values if value is not None]
        if any(value != value for value in present):  # noqa: PLR0124 - NaN is not itself
            return math.nan
        return None if not present else min(present) if self._least else max(present)

    @property
    def _least(self) -> bool:
        return self.part[1] == "min"

    def _of_numbers(self, values: Vec, starts: np.ndarray) -> list[Any]:
        array, present = values.values, valid(values)
        least = self._least
        if array.dtype.kind == "f":
            far: Any = math.inf if least else -math.inf
        else:
            limits = np.iinfo(array.dtype)
            far = limits.max if least else limits.min
        if present is not None:
            array = np.where(present, array, np.array(far, array.dtype))
        with np.errstate(invalid="ignore"):
            found = (np.minimum if least else np.maximum).reduceat(array, starts)
        if array.dtype.kind == "f" and (found == 0).any():
            signed = np.logical_or.reduceat((array == 0) & (np.signbit(array) == least), starts)
            zero = np.where(signed == least, np.array(-0.0, array.dtype), np.array(0.0))
            found = np.where(found == 0, zero, found)
        ends: list[Any] = found.tolist()
        if present is not None:
            some = np.logical_or.reduceat(present, starts).tolist()
            ends = [end if has else None for end, has in zip(ends, some, strict=True)]
        return ends

    def joined(self, a: Any, b: Any) -> Any:
        """Return the minimum or maximum of both states."""
        if a is None or b is None:
            return b if a is None else a
        if a != a or b != b:  # noqa: PLR0124
            return math.nan
        if a == 0 == b and isinstance(a, float):
            negative = [math.copysign(1, each) < 0 for each in (a, b)]
            return -0.0 if (any if self._least else all)(negative) else 0.0
        return min(a, b) if self._least else max(a, b)

    def nothing(self) -> Any:
        """Return None, the state of no values."""
        return None

    def to_column(self, states: list[Any]) -> Values:
        """Return the minima or maxima ``states`` as a column."""
        return _column(states, self.given)


class Edge(Figure):
    """The first or last value that is not null, in the order of rows; null if there is none."""

    def typed(self) -> pa.DataType:
        """Return the column's type; raise SchemaError for tensors."""
        if _is_shaped(self.given):
            raise self.refused("single values or lists", "a tensor cannot be null")
        return self.given

    def states(self, values: Values, starts: np.ndarray) -> list[Any]:
        """Return the first or last value of each run, as an Arrow scalar or None."""
        n = length(values)
        present = valid(values)
        stops = np.append(starts[1:], n)
        first = self.part[1] == "first"
        index = starts if first else stops - 1
        if present is not None:
            places = np.where(present, np.arange(n), n if first else -1)
            index = (np.minimum if first else np.maximum).reduceat(places, starts)
            index = np.where((index < n) & (index >= 0), index, starts)
        array = to_arrow(values, self.given).take(pa.array(index))
        return [scalar if scalar.is_valid else None for scalar in array]

    def joined(self, a: Any, b: Any) -> Any:
        """Return the first or last state that is not None; ``a`` is of earlier rows than ``b``."""
        if a is None or b is None:
            return b if a is None else a
        return a if self.part[1] == "first" else b

    def nothing(self) -> Any:
        """Return None, the state of no values."""
        return None

    def to_column(self, states: list[Any]) -> Values:
        """Return the values ``states`` as a column."""
        return _of_scalars(states, self.given)


class Unique(Figure):
    """The number of distinct values; all NaNs count as one, and -0.0 as 0.0."""

    def typed(self) -> pa.DataType:
        """Return int64; raise SchemaError unless the column's values can be compared."""
        if shape_of(self.given) or unordered(self.given):
            raise self.refused("values that can be compared", "lists, structs and tensors cannot")
        return pa.int64()

    def states(self, values: Values, starts: np.ndarray) -> list[Any]:
        """Return the set of distinct values of each run, without null."""
        found = comparable(values, self.given).to_pylist()
        # NaN does not equal itself: a text stands for NaN among numbers
        array = ["NaN" if value != value else value for value in found]  # noqa: PLR0124
        runs = zip(starts.tolist(), [*starts[1:].tolist(), len(array)], strict=True)
        return [set(array[start:stop]) - {None} for start, stop in runs]

    def joined(self, a: Any, b: Any) -> Any:
        """Return the union of ``a`` and ``b``; ``a`` is modified."""
        a |= b
        return a

    def nothing(self) -> Any:
        """Return an empty set."""
        return set()

    def to_column(self, states: list[Any]) -> Values:
        """Return the numbers of distinct values as a column."""
        return Vec(np.array([len(state) for state in states], np.int64), None)

    def state_bytes(self, state: Any) -> int:
        """Return the bytes of a set, estimated from one of its values."""
        some = next(iter(state), None)
        long = len(some) if isinstance(some, str | bytes) else 0
        return len(state) * (ENTRY_BYTES + long)


def _is_shaped(kind: pa.DataType) -> bool:
    """Return True for tensors, and for lists that are delivered as arrays."""
    return bool(shape_of(kind) or isinstance(kind, Mark | OpenTensor))


class Listed(Figure):
    """All values, nulls included, as a list in the order of rows."""

    def typed(self) -> pa.DataType:
        """Return the list type; raise SchemaError for tensors."""
        if _is_shaped(self.given):
            raise self.refused("single values or lists", "a list of tensors is no column")
        return pa.list_(self.given)

    def states(self, values: Values, starts: np.ndarray) -> list[Any]:
        """Return the values of each run, as a list of one Arrow array."""
        array = to_arrow(values, self.given)
        runs = zip(starts.tolist(), [*starts[1:].tolist(), len(array)], strict=True)
        return [[array.slice(start, stop - start)] for start, stop in runs]

    def nothing(self) -> Any:
        """Return an empty list, the state of no rows."""
        return []

    def to_column(self, states: list[Any]) -> Values:
        """Return the values of each group as one list of a list column."""
        parts = [part for state in states for part in state]
        lengths = [sum(len(part) for part in state) for state in states]
        offsets = np.cumsum([0, *lengths]).astype(np.int32)
        values = pa.concat_arrays(parts) if parts else pa.array([], self.given)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=self.kind)

    def state_bytes(self, state: Any) -> int:
        """Return the bytes of all values in ``state``."""
        return sum(part.nbytes for part in state)


FIGURES: dict[str, type[Figure]] = {
    "len": Figure,
    "count": Figure,
    "sum": Total,
    "mean": Mean,
    "std": Spread,
    "var": Spread,
    "min": End,
    "max": End,
    "any": Truth,
    "all": Truth,
    "first": Edge,
    "last": Edge,
    "n_unique": Unique,
    "implode": Listed,
}

# The aggregates whose states grow with the rows of a group.
KEEPS = {"n_unique", "implode"}


def _column(found: list[Any], kind: pa.DataType) -> Values:
    """Return a column of ``kind`` from Python values as ``comparable`` gives them; None is null."""
    if code_of(kind) != "arrow":
        present = np.array([each is not None for each in found], bool)
        array = np.array([0 if each is None else each for each in found], code_of(kind))
        return Vec(array, None if present.all() else present)
    if pa.types.is_temporal(kind):
        return pa.array(found, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if pa.types.is_float16(kind):
        found = [None if each is None else np.float16(each) for each in found]
    return pa.array(found, kind)


def _of_scalars(found: list[Any], kind: pa.DataType) -> Values:
    """Return a column of ``kind`` from Arrow scalars; None is null."""
    if code_of(kind) != "arrow":
        return _column([None if each is None else each.as_py() for each in found], kind)
    return pa.array(found, kind)
