"""This file holds ``autocache``: rows that a run may keep, if that is worth it."""

from __future__ import annotations

from dml.checks import some
from dml.errors import PlanError
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.ops.part import Part
from dml.expr.ops.stored import Stored


@op
class AutoStored(Stored):
    """The rows of the input, in one epoch for each ``reuse`` of them: which ones, this decides.

    Whether they are put into a store, or taken from there, a run decides. Without ``reuse`` the
    input has the same rows in every epoch. Source: Cachew's autocache; Revamper (ATC 2021), which
    draws anew after so many epochs.
    """

    reuse: int | None = None

    def check(self) -> None:
        """``reuse`` counts epochs, or is None."""
        if self.reuse is not None:
            some("reuse", self.reuse, "autocache(reuse=4)")

    @property
    def decides(self) -> bool:
        """Always."""
        return True

    def turn(self, epoch: int) -> int:
        """The number of the draw, if rows differ at all."""
        return super().turn(epoch) if self.reuse is None else epoch // self.reuse

    def shown(self) -> str:
        """How often rows are used."""
        return "tier='auto'" + ("" if self.reuse is None else f", reuse={self.reuse}")


def varying(node: Node) -> Node | None:
    """A step of ``node`` or below that may do something else in every epoch; None without one."""
    stack = [node]
    while stack:
        each = stack.pop()
        if _fixed(each):
            continue
        draws = each.random or getattr(each, "draws", False)
        if draws and not isinstance(each, Part) and getattr(each, "fresh", True):
            return each
        stack += each.inputs
    return None


def _fixed(node: Node) -> bool:
    """True if what is below is always in the same epoch."""
    reused = isinstance(node, AutoStored) and node.reuse is not None
    return node.rows in (Rows.KEPT, Rows.STORED) and not reused


def frozen(node: Node, drawing: Node) -> PlanError:
    """What is said of an ``autocache()`` over rows that are others in every epoch."""
    return PlanError(
        "autocache() over rows that are others in every epoch",
        at=node.label(),
        why=f"{drawing.title()} is below, and what it draws would come again in every epoch",
        try_="autocache() below it; or autocache(reuse=4), which draws once for four epochs",
    )
