"""The passes of ``repeat`` over a lane: a pass may begin before the previous one ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

from dml.exec.slicing.slice_sizes import SlicePace
from dml.expr.facts import Rows
from dml.expr.flow import Flow, Opener, Position
from dml.expr.node import Node

if TYPE_CHECKING:
    from dml.exec.slicing.sliced_flow import SlicedFlow

# Kinds of operators that, between functions and a ``repeat``, request all rows of every pass.
PASSING = (
    *(Rows.SAME, Rows.FEWER, Rows.MORE, Rows.PERMUTED, Rows.REPEATED),
    *(Rows.GROUPED, Rows.REGROUPED, Rows.PACKED, Rows.WINDOWS),
)


class LanePasses:
    """The passes of ``repeat`` over a lane, each of which may begin before the previous one ends.

    ``above`` are the operators above the lane, ``source`` is the plan's source. A pass begins while
    workers compute the last slices of the previous pass. Passes begin one after the other if an
    operator above may not request all rows or keeps rows for later passes, if ``source`` is None,
    or if it calls a user's function, which may depend on the pass before.
    """

    def __init__(self, source: Node | None = None, above: Sequence[Node] = ()) -> None:
        self.source, self.above = source, above
        self.early: dict[int, SlicedFlow] = {}

    @cached_property
    def count(self) -> int:
        """Number of passes in an epoch of the pipeline; 1 if they begin one after the other."""
        passing = all(node.rows in PASSING for node in self.above)
        if self.source is None or self.source.calls is not None or not passing:
            return 1
        return math.prod(max(1, node.passes) for node in self.above)

    def open(self, opener: Opener, epoch: int, position: Position | None) -> Flow:
        """Return the lane's flow of pass ``epoch`` from ``position`` on, perhaps begun early."""
        early = self.early.pop(epoch, None)
        if early is not None and (position is not None or early.closed):
            early.close()
            early = None
        flow = cast("SlicedFlow", early or opener(epoch, position))
        if (epoch + 1) % self.count:
            flow.then = partial(self._begun, opener, epoch + 1)
        return flow

    def _begun(self, opener: Opener, epoch: int, pace: SlicePace) -> SlicedFlow | None:
        """Open pass ``epoch`` early; return None if that fails, and ``open`` then tries again."""
        try:
            flow = cast("SlicedFlow", opener(epoch, None))
        except Exception:  # noqa: BLE001 - whatever it is, it is raised in its turn
            return None
        flow.pace.follow(pace)
        self.early[epoch] = flow
        return flow
