"""``repeat`` outputs several passes over the input, as one stream."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.checks import element_count
from dml.expr.facts import ENDLESS, Length, ResumeCost, Rows
from dml.expr.node import Node, op
from dml.kernels.rows.ids import RowIds, underive
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position

REPEAT = 0x726570656174
# Ids, passes together, that are tried to find the source row that an error is about.
TRACED = 4096


@op
class Repeat(SameColumns):
    """Outputs ``n`` passes (None: endless); pass p of epoch k is the input's epoch k * n + p.

    Row ids are derived from the input row's id and the pass.
    """

    input: Node
    n: int | None

    rows: ClassVar[Rows] = Rows.REPEATED
    # The number of the pass is saved, nothing is repeated.
    resume_cost = ResumeCost(state_bytes=16)
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for an ``n`` that is neither None nor an integer of at least 0."""
        if self.n is not None:
            element_count("repeat", self.n, others=", or .repeat() for no end")

    def length(self, *given: Length) -> Length | None:
        """Return the length of all passes together."""
        return given[0] and given[0] * (math.inf if self.n is None else self.n)

    @property
    def endless(self) -> bool:
        """True if ``n`` is None or the input is endless."""
        return self.n is None or self.input.endless

    @property
    def passes(self) -> int:  # type: ignore[override]
        """Return the number of input epochs in an output epoch: ``n``, or ``ENDLESS``."""
        return ENDLESS if self.n is None else self.n

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow of one pass after the other."""
        return _Repeating(self, open_input, epoch, position)

    def origins(self, ids: RowIds, _turn: int) -> RowIds:
        """Return input ids that may have become ``ids``: one per id and pass, at most 4096."""
        each = max(1, TRACED // ids.count)
        passes = np.arange(min(self.n or each, each), dtype=np.uint64)
        high, low = (np.repeat(half[:TRACED], len(passes)) for half in ids.arrays())
        key = np.tile(passes, len(high) // len(passes))
        return RowIds.of_arrays(*underive(high, low, REPEAT + self.level, key))

    def parameters_text(self) -> str:
        """Return as text the number of passes; "" if endless."""
        return "" if self.n is None else str(self.n)


class _Repeating:
    def __init__(
        self, node: Repeat, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        start = position or {"in": None, "pass": 0}
        self.node, self.open_input, self.epoch = node, open_input, epoch
        self.turn: int = start["pass"]
        # a position is saved after an element, and one in a pass after an element of that pass
        self.given = start["in"] is not None
        self.input: Flow | None = self._open(start["in"])

    def _open(self, position: Position | None) -> Flow | None:
        each = self.node.passes
        if self.turn >= each:
            return None
        return self.open_input(self.epoch * each + self.turn, position)

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements of the current pass; None at the end."""
        while self.input is not None:
            block = self.input.pull(most)
            if block is not None:
                self.given = True
                ids = block.ids.derive(REPEAT + self.node.level, self.turn)
                return dataclasses.replace(block, ids=ids)
            self.input.close()
            if self.node.n is None and not self.given:
                self.input = None  # an empty input stays empty however often it is repeated
                return None
            self.turn, self.given = self.turn + 1, False
            self.input = self._open(None)
        return None

    def position(self) -> Position:
        """Return the pass, and the position in it."""
        inner = None if self.input is None else self.input.position()
        return {"in": inner, "pass": self.turn}

    def close(self) -> None:
        """Close the current pass."""
        if self.input is not None:
            self.input.close()
