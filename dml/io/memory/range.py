"""The range source generates integers from start to stop."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import PlanError
from dml.expr.node import op
from dml.io.random_access import Addressed, check_atom_rows
from dml.io.source import ATOM_ROWS
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

INT64 = np.iinfo(np.int64)


@op
class Range(Addressed):
    """The integers from ``start`` (included) to ``stop`` (excluded) by ``step``, as Python's range.

    One column "id" (int64). Nothing is stored, so planning costs the same for any length. Raises
    PlanError if a bound is not an integer, a value does not fit int64, or ``step`` is 0.
    """

    start: int
    stop: int
    step: int = 1
    atom_rows: int = ATOM_ROWS

    id_name: ClassVar[str] = "range"
    row_bytes = 8.0
    side_by_side: ClassVar[bool] = True

    def check(self) -> None:
        """Raise PlanError unless bounds and step are valid integers, and all values fit int64."""
        check_atom_rows(self.atom_rows, "range")
        for name in ("start", "stop", "step"):
            if type(value := getattr(self, name)) is not int:
                raise PlanError(
                    f"range needs whole numbers, {name} is {value!r}",
                    why=f"it is of type {type(value).__name__}",
                    try_="range(0, 1000)",
                )
        if self.step == 0:
            raise PlanError(
                "range cannot go by steps of 0",
                why="it would never arrive",
                try_="a step of 1, or -1 downwards",
            )
        if self.row_count and not (self._fits(self.start) and self._fits(self.last)):
            raise PlanError(
                f"range({self.start}, {self.stop}, {self.step}) does not fit int64",
                why=f"its values go from {self.start} to {self.last}",
            )

    @staticmethod
    def _fits(value: int) -> bool:
        return int(INT64.min) <= value <= int(INT64.max)

    @cached_property
    def row_count(self) -> int:
        """Number of values."""
        return max(0, -((self.start - self.stop) // self.step))

    @property
    def last(self) -> int:
        """The last value; defined only if there are values."""
        return self.start + (self.row_count - 1) * self.step

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Return the minimum and maximum value; None without values."""
        if not self.row_count or column not in self.schema:
            return None
        return min(self.start, self.last), max(self.start, self.last)

    def infer(self) -> Schema:
        """Return a schema of one int64 column."""
        return Schema({"id": pa.int64()})

    def identity(self) -> bytes:
        """Return the digest of the parameters, which determine the content."""
        return self.digest

    def part(self, start: int, stop: int, columns: tuple[str, ...], ids: RowIds) -> Block:
        """Return the block of values ``start`` to ``stop`` (exclusive), counted from 0."""
        first = self.start + start * self.step
        end = self.start + stop * self.step
        if not (self._fits(end) and self._fits(self.step)):
            return super().part(start, stop, columns, ids)
        values = tuple(Vec(np.arange(first, end, self.step, dtype=np.int64)) for _ in columns)
        return Block(self.schema.select(columns), values, ids)

    def picked(self, index: np.ndarray, columns: tuple[str, ...], ids: RowIds) -> Block:
        """Return the block of the values at positions ``index`` (n,) int64."""
        # Modulo 2**64: a step may be wider than int64, but every value fits.
        step, start = np.uint64(self.step % 2**64), np.uint64(self.start % 2**64)
        values = (index.astype(np.uint64) * step + start).view(np.int64)
        return Block(self.schema.select(columns), tuple(Vec(values) for _ in columns), ids)

    def parameters_text(self) -> str:
        """Return the arguments as written."""
        rest = "" if self.step == 1 else f", {self.step}"
        atoms = "" if self.atom_rows == ATOM_ROWS else f", atom_rows={self.atom_rows}"
        return f"{self.start}, {self.stop}{rest}{atoms}"
