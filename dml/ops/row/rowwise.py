"""Row-wise operators compute their output columns from each row alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.base.cached_property import cached_property
from dml.data.block import Block
from dml.data.schema import UNKNOWN, Schema, code_of
from dml.errors import InternalError
from dml.expr.columns.computation import ComputedSegment
from dml.expr.columns.value import Value, bind_draws
from dml.expr.facts import Rows
from dml.expr.node import Node

if TYPE_CHECKING:
    from dml.expr.flow import At

Env = tuple[tuple[str, Value], ...]


def growing(env: Env, schema: Schema) -> bool:
    """Return True if ``env`` computes text or list columns, instead of passing them on."""
    return any(value.op != "col" and code_of(schema[name]) == "arrow" for name, value in env)


class RowWise(Node):
    """Outputs one row per input row; ``columns`` has the output columns as expressions."""

    rows: ClassVar[Rows] = Rows.SAME

    def columns(self, given: Schema) -> Env:
        """Return the output columns in order, as expressions over the columns of ``given``."""
        raise InternalError(f"{type(self).__name__} computes no columns")

    def env(self, given: Schema) -> Env:
        """Return ``columns`` with random draws bound to this operator and their output column."""
        made = self._segment(given)
        return tuple(zip(made.names, made.programs.values, strict=True))

    def infer(self) -> Schema:
        """Return the names and types of the computed columns."""
        given = self.inputs[0].schema
        return self._segment(given).schema(given) if given.known else UNKNOWN

    @cached_property
    def _segments(self) -> dict[Schema, ComputedSegment]:
        return {}

    def _segment(self, given: Schema) -> ComputedSegment:
        found = self._segments.get(given)
        if found is None:
            columns = self.columns(given)
            bound = [bind_draws(v, self.ordinal, place) for place, (_, v) in enumerate(columns)]
            found = ComputedSegment((), [name for name, _ in columns], bound)
            self._segments[given] = found
        return found

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the computed columns of one block."""
        if not block.n and not self.schema.known:
            return iter(())  # without types, errors belong to the first row that gets here
        return self._segment(block.schema).run(block, at)
