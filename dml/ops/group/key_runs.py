"""Operators over runs of equal keys return the first row of each run, or each run as a batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.data.block import Block, concat
from dml.data.schema import Schema
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import CHUNK, Again, GatherQuota
from dml.expr.node import Node, op

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position
    from dml.ops.sort.row_order import Ordering


@op
class OfRuns(Node):
    """The base of operators over runs: consecutive rows with equal keys, as in sorted rows."""

    input: Node
    keys: tuple[str, ...]

    verb: ClassVar[str]
    total = True
    # A count is saved, all rows are read again.
    resume_cost = ResumeCost(state_bytes=24, work="one pass")

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema; raise SchemaError if ``keys`` cannot be compared."""
        self.ordering.check(given)
        return given

    @property
    def ordering(self) -> Ordering:
        """Return the ordering that compares keys."""
        from dml.ops.sort.row_order import Ordering  # noqa: PLC0415

        return Ordering(self.keys, (False,) * len(self.keys), verb=self.verb, label=self.label())

    @property
    def looks_at(self) -> frozenset[str]:  # type: ignore[override]
        """Return the key columns."""
        return frozenset(self.keys)

    def runs(self, rows: Flow) -> Iterator[tuple[Block, np.ndarray]]:
        """Yield the blocks of ``rows``, each with the ascending indices at which runs begin."""
        ordering, last = self.ordering, None
        while (block := rows.pull(CHUNK)) is not None:
            keys = ordering.keyed(block)
            starts = ordering.starts(block, keys)
            yield block, starts if keys[0] == last else np.concatenate([[0], starts])
            last = keys[block.n - 1]

    def parameters_text(self) -> str:
        """Return the key columns as text."""
        return ", ".join(map(repr, self.keys))


@op
class FirstOfRun(OfRuns):
    """Keeps the first row of each run of rows with equal ``keys``."""

    # as a slice does, it hands all columns on and keeps ids
    rows: ClassVar[Rows] = Rows.SLICE
    verb: ClassVar[str] = "drop_duplicates"

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that drops each row whose keys equal those of the row before."""
        return Again(partial(open_input, epoch, None), self._firsts, position)

    def _firsts(self, rows: Flow) -> Iterator[Block]:
        for block, starts in self.runs(rows):
            if len(starts):
                yield block.take(starts)


@op
class RunBatches(OfRuns):
    """Combines each run of rows with equal ``keys`` into one batch, which must fit in memory."""

    rows: ClassVar[Rows] = Rows.GROUPED
    batched = True
    gathers: ClassVar[int] = 1
    verb: ClassVar[str] = "group_by"

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that gathers one run after the other."""
        room = GatherQuota(self, at.hold_bytes)
        make = partial(self._batches, room)
        return Again(partial(open_input, epoch, None), make, position, batched=True)

    def _batches(self, room: GatherQuota, rows: Flow) -> Iterator[Block]:
        held: list[Block] = []
        for block, starts in self.runs(rows):
            begin = 0
            for start in [*starts.tolist(), block.n]:
                if start > begin:
                    held.append(block.slice(begin, start))
                    room.take(held[-1])
                if held and start < block.n:
                    yield concat(held)
                    held = []
                    room.empty()
                begin = start
        if held:
            yield concat(held)
