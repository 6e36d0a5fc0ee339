"""``cache`` on disk stores rows unit by unit if only row-local operators precede it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.io.source import Source
from dml.ops.cache.cache import FIRST, Anchor
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At

# A folder or URL; rows and names do not depend on it.
Root: TypeAlias = str


@op
class Stored(SameColumns):
    """Returns the input's rows of epoch 0 in every epoch, and keeps them in a store.

    Workers write the rows, or read them back, unit by unit of the source and atom by atom, so that
    workers can also run the operators above. No result shows whether a row was read from the store.
    Without a store, blocks pass unchanged. ``root`` is the folder or URL of the store; if it is "",
    the options of the run name the store.
    """

    input: Node
    root: Root = ""
    anchor: Anchor = dataclasses.field(default_factory=Anchor)

    rows: ClassVar[Rows] = Rows.STORED
    total: bool = True

    def run(self, block: Block, _at: At) -> Iterator[Block]:
        """Yield the block unchanged."""
        yield block

    def turn(self, _epoch: int) -> int:
        """Return 0: the rows of every epoch are the input's rows of epoch 0."""
        return FIRST

    def parameters_text(self) -> str:
        """Return as text the store's folder or URL; the tier if none was named."""
        return repr(self.root) if self.root else "tier='disk'"

    def title(self) -> str:
        """Return "Snapshot" or "Cache", depending on the user's verb, with the parameters."""
        return f"{'Snapshot' if self.root else 'Cache'}({self.parameters_text()})"


def storable(node: Node) -> bool:
    """Return True if workers compute the rows of ``node`` while they read a source unit by unit.

    They do not above an operator with resource needs: it passes its rows to other tasks, in
    partitions instead of units.
    """
    source, *steps = node.chain()
    return (
        isinstance(source, Source)
        and not node.batched
        and all(len(each.inputs) == 1 for each in steps)
        and all(each.rows.local and each.needs == Needs() for each in steps)
    )


def settled_epochs(steps: Sequence[Node]) -> int:
    """Return how many of ``steps`` always run for epoch 0: those up to the last stored one."""
    return max((n for n, step in enumerate(steps, 1) if step.rows is Rows.STORED), default=0)
