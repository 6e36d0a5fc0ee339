"""Row-wise operators compute their output columns from each row alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.base.cached_property import remembered
from dml.data.block import Block
from dml.data.schema import Schema, code_of
from dml.errors import InternalError
from dml.expr.columns.computation import ComputedSegment
from dml.expr.columns.value import Value, bind_draws
from dml.expr.facts import Rows
from dml.expr.node import Node

if TYPE_CHECKING:
    from dml.expr.flow import At

Env = tuple[tuple[str, Value], ...]


def growing(env: Env, schema: Schema) -> bool:
    """Return True if ``env`` computes text or list columns, and not only passes them on."""
    return any(value.op != "col" and code_of(schema[name]) == "arrow" for name, value in env)


class RowWise(Node):
    """RowWise makes one row per input row; ``columns`` has the output columns as expressions."""

    rows: ClassVar[Rows] = Rows.SAME

    def columns(self, given: Schema) -> Env:
        """Return the output columns in order, as expressions over the columns of ``given``."""
        raise InternalError(f"{type(self).__name__} computes no columns")

    def env(self, given: Schema) -> Env:
        """Return ``columns`` with random draws bound to this operator and their output column."""
        made = self._segment(given)
        return tuple(zip(made.names, made.programs.values, strict=True))

    def schema_over(self, given: Schema) -> Schema:
        """Return the names and types of the computed columns."""
        return self._segment(given).schema(given)

    @remembered
    def _segment(self, given: Schema) -> ComputedSegment:
        columns = self.columns(given)
        bound = [bind_draws(v, self.ordinal, place) for place, (_, v) in enumerate(columns)]
        return ComputedSegment((), [name for name, _ in columns], bound)

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the computed columns of one block."""
        if not block.n and not self.schema.known:
            return iter(())  # without types, errors belong to the first row that gets here
        return self._segment(block.schema).run(block, at)
