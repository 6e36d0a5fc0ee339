"""``Figure`` is the base of all aggregates; those of numbers and booleans are defined here.

An aggregate computes a state for each run of consecutive rows, combines two states of one group,
and converts the states of many groups to a column. Nulls are ignored, except by ``implode``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dml.data.block import Values, length
from dml.data.schema import code_of, shape_of, short
from dml.errors import CastError, SchemaError
from dml.kernels.functions.function import is_text
from dml.kernels.vec import Vec

# The result's name, the operation, the column that it reads (None: it counts rows), parameters.
Part: TypeAlias = "tuple[str, str, str | None, tuple[Any, ...]]"


class Figure:
    """An aggregate over a column of type ``given``; the base counts values that are not null."""

    def __init__(self, part: Part, given: pa.DataType) -> None:
        self.part, self.given = part, given
        self.kind = self.typed()

    def typed(self) -> pa.DataType:
        """Return the type of the result; raise SchemaError if ``given`` has no such aggregate."""
        return pa.int64()

    def states(self, values: Values, starts: np.ndarray) -> list[Any]:
        """Return the state of each run of ``values``; run i ends where run i + 1 starts."""
        present = np.ones(length(values), bool) if (v := valid(values)) is None else v
        found: list[Any] = np.add.reduceat(present.astype(np.int64), starts).tolist()
        return found

    def joined(self, a: Any, b: Any) -> Any:
        """Return one state for the rows of states ``a`` and ``b`` together; may change ``a``."""
        return a + b

    def nothing(self) -> Any:
        """Return the state of no rows."""
        return 0

    def to_column(self, states: list[Any]) -> Values:
        """Return the results of groups with ``states``, as a column."""
        return Vec(np.array(states, dtype=np.int64), None)

    def state_bytes(self, state: Any) -> int:
        """Return the bytes of ``state`` if they grow with the rows of its group, else 0."""
        return 0

    def refused(self, wanted: str, why: str) -> SchemaError:
        """Return the error for a column of a wrong type; ``wanted`` names the allowed types."""
        name, verb, column, _ = self.part
        return SchemaError(
            f"{verb} needs a column of {wanted}, and {column!r} is {short(self.given)}",
            at=f"the aggregate {name!r}",
            why=why,
            try_=f"{converted(str(column), self.given)}, or another column",
        )


def converted(name: str, kind: pa.DataType) -> str:
    """Return user code that converts column ``name`` of ``kind``, for the hint of an error."""
    if is_text(kind):
        return f"col({name!r}).str.to_float()"
    if code_of(kind) != "arrow" and not shape_of(kind):
        return f".cast({{{name!r}: ...}})"
    return f".map(f) with a function that converts {name!r}"


class Total(Figure):
    """The exact sum: int64 for signed integers and booleans, uint64 for unsigned, else float64."""

    squared = False

    def typed(self) -> pa.DataType:
        """Return the type of the result; raise SchemaError unless the column has numbers."""
        if not (
            (code_of(self.given) != "arrow" and not shape_of(self.given))
            or pa.types.is_float16(self.given)
            or pa.types.is_null(self.given)
        ):
            raise self.refused("numbers", "integers, floats and booleans are numbers")
        return self.result_type()

    def result_type(self) -> pa.DataType:
        """Return the type of the result."""
        if pa.types.is_floating(self.given):
            return pa.float64()
        return pa.uint64() if pa.types.is_unsigned_integer(self.given) else pa.int64()

    def states(self, values: Values, starts: np.ndarray) -> list[Any]:
        """Return the exact sum of each run."""
        from dml.kernels.math.exact_sums import sums_by_run  # noqa: PLC0415

        numbers = numbers_of(values)
        return sums_by_run(numbers.values, numbers.valid, starts, squared=self.squared)

    def joined(self, a: Any, b: Any) -> Any:
        """Return the sum of both states."""
        return a.join(b)

    def nothing(self) -> Any:
        """Return the sum of no numbers."""
        from dml.kernels.math.exact_sums import ExactSums  # noqa: PLC0415

        floats = pa.types.is_floating(self.given)
        return ExactSums(np.dtype("f8" if floats else "i8"), squared=self.squared)

    def to_column(self, states: list[Any]) -> Values:
        """Return the sums, rounded once; raise CastError if an integer sum exceeds 64 bits."""
        if pa.types.is_floating(self.kind):
            return Vec(np.array([state.total for state in states], np.float64), None)
        code = code_of(self.kind)
        limits = np.iinfo(code)
        for state in states:
            if not limits.min <= state.total <= limits.max:
                raise CastError(
                    f"the sum of {self.part[2]!r} is {state.total}",
                    at=f"the aggregate {self.part[0]!r}",
                    why=f"{short(self.kind)} cannot hold it",
                    try_='.cast("float64") before .sum()',
                )
        return Vec(np.array([state.total for state in states], code), None)


class Mean(Total):
    """The exact mean, rounded once; null without values."""

    def result_type(self) -> pa.DataType:
        """Return float64."""
        return pa.float64()

    def to_column(self, states: list[Any]) -> Values:
        """Return the means as a column."""
        return floats_of([state.mean for state in states])


class Spread(Mean):
    """The exact standard deviation or variance, rounded once; null for too few values."""

    squared = True

    def to_column(self, states: list[Any]) -> Values:
        """Return the deviations or variances as a column."""
        ddof = self.part[3][0]
        if self.part[1] == "std":
            return floats_of([state.deviation(ddof) for state in states])
        return floats_of([state.variance(ddof) for state in states])


class Truth(Figure):
    """Whether any value is true ("any"), or all are ("all"); without values, False or True."""

    def typed(self) -> pa.DataType:
        """Return bool; raise SchemaError unless the column has booleans."""
        if self.given not in (pa.bool_(), pa.null()):
            raise self.refused("booleans", "compare it, for instance col(...) > 0")
        return pa.bool_()

    def states(self, values: Values, starts: np.ndarray) -> list[Any]:
        """Return for each run whether any value is true ("any"), or all are ("all")."""
        numbers = numbers_of(values, "b1")
        any_ = self.part[1] == "any"
        array = numbers.values
        if numbers.valid is not None:
            array = np.where(numbers.valid, array, not any_)
        found = (np.logical_or if any_ else np.logical_and).reduceat(array, starts)
        return list(found.tolist())

    def joined(self, a: Any, b: Any) -> Any:
        """Return whether either state is true ("any"), or both are ("all")."""
        return (a or b) if self.part[1] == "any" else (a and b)

    def nothing(self) -> Any:
        """Return False for "any", True for "all"."""
        return self.part[1] == "all"

    def to_column(self, states: list[Any]) -> Values:
        """Return ``states`` as a column of booleans."""
        return Vec(np.array(states, bool), None)


def valid(values: Values) -> np.ndarray | None:
    """Return which values are not null, (n,) bool; None if no value is null."""
    if isinstance(values, Vec):
        return values.valid
    return values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None


def numbers_of(values: Values, code: str = "i8") -> Vec:
    """Return a column of numbers as ``Vec``; a column of type null gets the type ``code``."""
    if isinstance(values, Vec):
        return values
    if pa.types.is_null(values.type):
        return Vec(np.zeros(len(values), code), np.zeros(len(values), bool))
    filled = values.fill_null(0.0) if values.null_count else values
    return Vec(filled.to_numpy(zero_copy_only=False), valid(values))


def floats_of(found: Sequence[float | None]) -> Vec:
    """Return a float64 column, null where ``found`` has None."""
    present = np.array([each is not None for each in found], bool)
    array = np.array([0.0 if each is None else each for each in found], np.float64)
    return Vec(array, None if present.all() else present)
