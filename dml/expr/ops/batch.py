"""This file holds ``batch``: runs of rows become one element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, cast

from dml.errors import PlanError
from dml.expr.block import concat
from dml.expr.computed import cached_property
from dml.expr.facts import Held, Length, Rows
from dml.expr.flow import Room, read_rows
from dml.expr.node import Node, op
from dml.expr.objects import shown_bytes
from dml.expr.ops.take import count
from dml.expr.runs import Run
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Opener, Position
    from dml.expr.runs import Fits, Sliced


@op
class Batch(Node):
    """``n`` consecutive rows as one element, the last shorter one too unless ``drop_last``.

    A batch has the row id of its first row.
    """

    input: Node
    n: int
    drop_last: bool

    rows: ClassVar[Rows] = Rows.GROUPED
    gathers: ClassVar[int] = 1
    regroups: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Positive size, rows below."""
        count("batch", self.n, least=1)
        if self.input.batched:
            raise PlanError(
                "batch over batches", why="its input is batched already", try_="batch once, last"
            )

    @cached_property
    def batched(self) -> bool:
        """Elements are batches from here on."""
        return True

    def infer(self) -> Schema:
        """The input's schema: columns of one batch have the types of its rows."""
        return self.input.schema

    def length(self, *given: Length) -> Length | None:
        """The last may be short."""
        if given[0] == math.inf:
            return math.inf
        return int(given[0] // self.n if self.drop_last else -(-given[0] // self.n))

    @property
    def held(self) -> Held:
        """Nothing: a checkpoint lies between batches."""
        return Held()

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Gather n rows at a time."""
        return _Batching(self, open_input(epoch, position), Room(self, at.hold_bytes))

    def shown(self) -> str:
        """Size."""
        return f"{self.n}{', drop_last=True' if self.drop_last else ''}"


class _Batching:
    def __init__(self, node: Batch, rows: Flow, room: Room) -> None:
        self.n, self.drop_last, self.input, self.room = node.n, node.drop_last, rows, room
        self.sliced: Sliced | None = cast("Sliced", rows) if hasattr(rows, "at_hand") else None

    def pull(self, most: int) -> Block | None:
        """The next batch."""
        del most  # one element, whatever was asked
        first = self.input.pull(self.n)
        if first is None or first.n == self.n:
            return None if first is None else self._fitting(first)
        self.room.empty().take(first)
        parts = [first, *read_rows(self.input, self.n - first.n, self.room)]
        if self.drop_last and sum(part.n for part in parts) < self.n:
            return None
        return self._fitting(concat(parts))

    def _fitting(self, batch: Block) -> Block:
        """The batch; MemoryContractError if it is shown as more bytes than may be gathered."""
        if (nbytes := shown_bytes(batch)) > self.room.most_bytes:
            raise self.room.refused(batch.n, nbytes, "to show as arrays")
        return batch

    def pull_run(self, fits: Fits) -> Run | None:
        """All batches that lie in the input's block at hand; None if fewer than two, or unfit."""
        if self.sliced is None or (found := self.sliced.at_hand()) is None:
            return None
        block, left = found
        batches = left // self.n
        if batches < 2 or not fits(block):
            return None
        between = self.sliced.between()
        given = self.sliced.pull(batches * self.n)
        return None if given is None else Run(given, self.n, between)

    def position(self) -> Position:
        """The input's."""
        return self.input.position()

    def close(self) -> None:
        """Close the input."""
        self.input.close()
