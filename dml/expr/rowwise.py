"""This file is the base of operators that compute output columns from each row alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.errors import InternalError
from dml.expr.block import Block
from dml.expr.compute import Segment
from dml.expr.computed import cached_property
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.expr.schema import UNKNOWN, Schema
from dml.expr.value import Value, bind_draws

if TYPE_CHECKING:
    from dml.expr.flow import At

Env = tuple[tuple[str, Value], ...]


class RowWise(Node):
    """One row out per row in: ``columns`` says what each output column is over the input's."""

    rows: ClassVar[Rows] = Rows.SAME

    def columns(self, given: Schema) -> Env:
        """Output columns in order, over the columns of ``given``."""
        raise InternalError(f"{type(self).__name__} computes no columns")

    def env(self, given: Schema) -> Env:
        """``columns`` with random draws bound to this operator and their output column."""
        made = self._segment(given)
        return tuple(zip(made.names, made.programs.values, strict=True))

    def infer(self) -> Schema:
        """Names and types of the computed columns."""
        given = self.inputs[0].schema
        return self._segment(given).schema(given) if given.known else UNKNOWN

    @cached_property
    def _segments(self) -> dict[Schema, Segment]:
        return {}

    def _segment(self, given: Schema) -> Segment:
        found = self._segments.get(given)
        if found is None:
            columns = self.columns(given)
            bound = [bind_draws(v, self.ordinal, place) for place, (_, v) in enumerate(columns)]
            found = Segment((), [name for name, _ in columns], bound)
            self._segments[given] = found
        return found

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The computed columns of one block."""
        if not block.n and not self.schema.known:
            return iter(())  # what has no type is an error of the first row that gets here
        return self._segment(block.schema).run(block, at)
