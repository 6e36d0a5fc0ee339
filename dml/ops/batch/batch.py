"""``batch`` groups a number of consecutive rows into one batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, cast

from dml.checks import element_count
from dml.data.block import concat
from dml.data.object_values import shown_bytes
from dml.expr.batch_run import BatchRun
from dml.expr.facts import Length, Rows
from dml.expr.flow import GatherQuota, read_rows
from dml.expr.node import Node, op
from dml.ops.unary import BatchesOfRows, SameColumns, require_unbatched

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.batch_run import Fits, SliceableFlow
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Batch(SameColumns, BatchesOfRows):
    """Batch groups ``n`` consecutive rows into one element; ``drop_last`` drops a shorter last one.

    The row id of a batch is that of its first row.
    """

    input: Node
    n: int
    drop_last: bool

    rows: ClassVar[Rows] = Rows.GROUPED
    gathers: ClassVar[int] = 1
    regroups: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for a size that is not positive, and for a batched input."""
        element_count("batch", self.n, least=1)
        require_unbatched(self.input, "batch", "batch once, last")

    def length(self, *given: Length) -> Length | None:
        """Return the number of batches; a short last one counts unless ``drop_last``."""
        if given[0] == math.inf:
            return math.inf
        return int(given[0] // self.n if self.drop_last else -(-given[0] // self.n))

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that gathers ``n`` rows at a time."""
        return _Batching(self, open_input(epoch, position), GatherQuota(self, at.hold_bytes))

    def parameters_text(self) -> str:
        """Return as text the size, and ``drop_last`` if it is True."""
        return f"{self.n}{', drop_last=True' if self.drop_last else ''}"


class _Batching:
    def __init__(self, node: Batch, rows: Flow, room: GatherQuota) -> None:
        self.n, self.drop_last, self.input, self.room = node.n, node.drop_last, rows, room
        sliceable = hasattr(rows, "at_hand")
        self.sliced = cast("SliceableFlow", rows) if sliceable else None

    def pull(self, most: int) -> Block | None:
        """Return the next batch as one block, whatever ``most`` is; None at the end."""
        del most  # a pull returns one element
        first = self.input.pull(self.n)
        if first is None or first.n == self.n:
            return None if first is None else self._fitting(first)
        self.room.empty().take(first)
        parts = [first, *read_rows(self.input, self.n - first.n, self.room)]
        if self.drop_last and sum(part.n for part in parts) < self.n:
            return None
        return self._fitting(concat(parts))

    def _fitting(self, batch: Block) -> Block:
        """Return ``batch``; raise MemoryContractError if its arrays exceed the gathering limit."""
        if (nbytes := shown_bytes(batch)) > self.room.most_bytes:
            raise self.room.refused(batch.n, nbytes, "to show as arrays")
        return batch

    def pull_run(self, fits: Fits) -> BatchRun | None:
        """Return the batches in the input's block; None for fewer than two, or if not ``fits``."""
        if self.sliced is None or (found := self.sliced.at_hand()) is None:
            return None
        block, left = found
        batches = left // self.n
        if batches < 2 or not fits(block):
            return None
        between = self.sliced.between()
        given = self.sliced.pull(batches * self.n)
        return None if given is None else BatchRun(given, self.n, between)

    def position(self) -> Position:
        """Return the input's position."""
        return self.input.position()

    def close(self) -> None:
        """Close the input."""
        self.input.close()
