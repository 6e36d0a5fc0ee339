"""This file holds the steps over runs of equal keys: the first row of each, and each as a batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.expr.block import Block, concat
from dml.expr.computed import cached_property
from dml.expr.facts import Held, Rows
from dml.expr.flow import CHUNK, Again, Room
from dml.expr.node import Node, op
from dml.expr.ordering import Ordering
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


class OfRuns(Node):
    """The base of steps that look at runs of rows of equal keys, which sorted rows have."""

    input: Node
    keys: tuple[str, ...]

    total: bool = True

    def infer(self) -> Schema:
        """The input's schema, whose columns ``keys`` can be compared."""
        given = self.input.schema
        if given.known:
            self.ordering.check(given)
        return given

    @property
    def ordering(self) -> Ordering:
        """Which rows are of one run."""
        return Ordering(self.keys, (False,) * len(self.keys), verb=self.verb, label=self.label())

    verb: ClassVar[str]

    @property
    def looks_at(self) -> frozenset[str]:  # type: ignore[override]
        """The keys."""
        return frozenset(self.keys)

    @property
    def held(self) -> Held:
        """A count; all rows are read again."""
        return Held(state_bytes=24, work="one pass")

    def runs(self, rows: Flow) -> Iterator[tuple[Block, np.ndarray]]:
        """Blocks of ``rows``, and where in them runs begin."""
        ordering, last = self.ordering, None
        while (block := rows.pull(CHUNK)) is not None:
            keys = ordering.keyed(block)
            starts = ordering.starts(block, keys)
            yield block, starts if keys[0] == last else np.concatenate([[0], starts])
            last = keys[block.n - 1]

    def shown(self) -> str:
        """The keys."""
        return ", ".join(map(repr, self.keys))


@op
class FirstOfRun(OfRuns):
    """The first row of each run of rows of equal ``keys``."""

    input: Node
    keys: tuple[str, ...]

    # as a slice does, it hands all columns on and keeps ids
    rows: ClassVar[Rows] = Rows.SLICE
    verb: ClassVar[str] = "drop_duplicates"

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Drop the rows that equal the one before."""
        return Again(partial(open_input, epoch, None), self._firsts, position)

    def _firsts(self, rows: Flow) -> Iterator[Block]:
        for block, starts in self.runs(rows):
            if len(starts):
                yield block.take(starts)


@op
class RunBatches(OfRuns):
    """Each run of rows of equal ``keys`` as a batch, which must fit into memory."""

    input: Node
    keys: tuple[str, ...]

    rows: ClassVar[Rows] = Rows.GROUPED
    gathers: ClassVar[int] = 1
    verb: ClassVar[str] = "group_by"

    @cached_property
    def batched(self) -> bool:
        """Elements are batches from here on."""
        return True

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Gather run after run."""
        room = Room(self, at.hold_bytes)
        make = partial(self._batches, room)
        return Again(partial(open_input, epoch, None), make, position, batched=True)

    def _batches(self, room: Room, rows: Flow) -> Iterator[Block]:
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
