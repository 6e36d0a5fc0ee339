"""``autocache`` lets each run decide whether to cache rows."""

from __future__ import annotations

from typing import TypeAlias

from dml.checks import some
from dml.errors import PlanError
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.ops.cache.stored import Stored
from dml.ops.slice.part import Part

# How often a policy expects the rows to be read; rows and names do not depend on it.
ExpectedReads: TypeAlias = float


@op
class AutoStored(Stored):
    """Returns the rows of its input; each run decides whether they are stored.

    Rows that an earlier run stored are read instead of computed. With ``reuse=n``, each epoch of
    the input is returned for n epochs; without ``reuse``, every epoch returns the rows of epoch 0.
    ``reads_to_come`` is how often a policy expects any run to read the rows.
    Source: Cachew's autocache; Revamper (ATC 2021) for the reuse.
    """

    reuse: int | None = None
    reads_to_come: ExpectedReads = 0.0

    decides = True

    def check(self) -> None:
        """Raise PlanError for a ``reuse`` that is neither None nor a positive number of epochs."""
        if self.reuse is not None:
            some("reuse", self.reuse, "autocache(reuse=4)")

    def turn(self, epoch: int) -> int:
        """Return the epoch of the input whose rows ``epoch`` returns; it is 0 without ``reuse``."""
        return super().turn(epoch) if self.reuse is None else epoch // self.reuse

    def parameters_text(self) -> str:
        """Return as text the tier, and ``reuse`` if it is not None."""
        return "tier='auto'" + ("" if self.reuse is None else f", reuse={self.reuse}")


def varying(node: Node) -> Node | None:
    """Return a node, from ``node`` down, whose rows may differ between epochs, or None."""
    stack = [node]
    while stack:
        each = stack.pop()
        if _fixed(each):
            continue
        draws = each.random or each.draws
        if draws and not isinstance(each, Part) and each.fresh:
            return each
        stack += each.inputs
    return None


def _fixed(node: Node) -> bool:
    """Return True if everything below ``node`` always runs for the same epoch."""
    reused = isinstance(node, AutoStored) and node.reuse is not None
    return node.rows in (Rows.KEPT, Rows.STORED) and not reused


def frozen(node: Node, drawing: Node) -> PlanError:
    """Return the error for an ``autocache()`` over rows that differ between epochs."""
    return PlanError(
        "autocache() over rows that are others in every epoch",
        at=node.label(),
        why=f"{drawing.title()} is below, and what it draws would come again in every epoch",
        try_="autocache() below it; or autocache(reuse=4), which draws once for four epochs",
    )
