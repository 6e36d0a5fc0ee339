"""Row-wise operators compute their output columns from each row alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.base.cached_property import cached_property, remembered
from dml.data import buffer_ownership
from dml.data.block import Block
from dml.data.row_slicing import by_weight
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
    """Return True if ``env`` computes text or list columns, instead of passing them on."""
    return any(value.op != "col" and code_of(schema[name]) == "arrow" for name, value in env)


def slow_rows(node: Node, work: ComputedSegment, block: Block, at: At) -> Iterator[Block]:
    """Yield the rows that ``work`` of ``node`` makes, a few at a time, in their batches' memory."""
    desk = at.trays.desk(node.digest, node.schema, block.ids, at.epoch)
    pairs = zip(work.names, work.programs.values, strict=True)
    images = [name for name, value in pairs if value.slow]

    def made(start: int, stop: int) -> Iterator[Block]:
        rooms = desk.places(start, stop, images)
        for found in work.run(block.slice(start, stop), at, [*rooms]):
            for array in rooms:
                if array.dtype.kind == "f":  # images and sounds have no odd NaN
                    buffer_ownership.finish(array, array.nbytes)
            rooms = []
            yield found

    if desk.edge is None:
        yield from by_weight(block.n, node.schema, made)
        return
    start = 0
    while start < block.n:
        stop = min(block.n, desk.edge(start))
        yield from made(start, stop)
        start = stop


class RowWise(Node):
    """Outputs one row per input row; ``columns`` has the output columns as expressions."""

    rows: ClassVar[Rows] = Rows.SAME

    @cached_property
    def slow(self) -> bool:  # type: ignore[override]
        """True if an expression takes so long that rows are computed in parallel."""
        given = self.inputs[0].schema
        return given.known and any(value.slow for _, value in self.columns(given))

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
        work = self._segment(block.schema)
        return slow_rows(self, work, block, at) if self.slow else work.run(block, at)
