"""This file holds ``cache`` on disk of rows whose atoms are still those of the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.ops.cache import FIRST, Anchor
from dml.expr.sources.source import Source

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At
    from dml.expr.schema import Schema

# Where rows are stored decides nothing about them.
Root: TypeAlias = str

__all__ = ["FIRST", "Stored", "settled_epochs", "storable"]


@op
class Stored(Node):
    """The rows of the input in epoch 0, whatever the epoch here, taken from a store or put there.

    Workers do that unit by unit of the source, so that what stands above is still done by them, and
    atom by atom. Whether a row was in the store can never be seen in what comes out. Where nobody
    stores, blocks pass. ``root`` is the folder or URL of the store, "" that of the run's options.
    """

    input: Node
    root: Root = ""
    anchor: Anchor = dataclasses.field(default_factory=Anchor)

    rows: ClassVar[Rows] = Rows.STORED
    total: bool = True

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def run(self, block: Block, _at: At) -> Iterator[Block]:
        """The block as it is."""
        yield block

    def turn(self, _epoch: int) -> int:
        """The epoch that the input is in, while it is ``_epoch`` here."""
        return FIRST

    def shown(self) -> str:
        """Where."""
        return repr(self.root) if self.root else "tier='disk'"

    def title(self) -> str:
        """As it was written."""
        return f"{'Snapshot' if self.root else 'Cache'}({self.shown()})"


def storable(node: Node) -> bool:
    """True if workers make the rows of ``node`` unit by unit of one source, in their usual place.

    What has needs of its own hands its rows to other tasks, and sees partitions, not units.
    """
    source, *steps = node.chain()
    return (
        isinstance(source, Source)
        and not node.batched
        and all(len(each.inputs) == 1 for each in steps)
        and all(each.rows.local and each.needs == Needs() for each in steps)
    )


def settled_epochs(steps: Sequence[Node]) -> int:
    """How many of ``steps`` run for epoch 0 whatever the epoch: those up to the last stored one."""
    return max((n for n, step in enumerate(steps, 1) if step.rows is Rows.STORED), default=0)
