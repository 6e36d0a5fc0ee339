"""``shuffle(window="atoms")`` permutes the pieces of a source and mixes the rows of a few.

This shuffle needs little memory and few reads: pieces of the source are read in keyed random order,
and the rows of every ``size`` consecutive pieces are mixed. A piece is an atom if the source can
seek to atoms, otherwise a read unit (a Parquet row group), since the atoms of a read unit cannot be
read separately (docs/decisions/004-read-units.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, cast

import numpy as np

from dml.checks import element_count
from dml.data.block import Block, concat
from dml.errors import PlanError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import GatherQuota
from dml.expr.node import Node, op
from dml.io.source import Source
from dml.kernels.rows.ids import RowIds
from dml.kernels.rows.permutation import IndexPermutation
from dml.kernels.rows.random import row_key
from dml.ops.shuffle.shuffle_window import seeded
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

PIECES = 0x706965636573


class PieceFlow(Protocol):
    """A flow that can be read piece by piece, such as a stage with permuted units."""

    def pull_piece(self, room: GatherQuota) -> list[Block] | None:
        """Return the blocks of the next piece (possibly none), within ``room``; None at the end."""


@op
class ShuffleAtoms(SameColumns):
    """Returns the source's pieces in keyed order, with the rows of every ``size`` pieces mixed.

    A piece is an atom of an addressable source, otherwise a read unit. Raises PlanError unless only
    row-local operators lie between the source and this operator; rules may move filters across it.
    Unless ``fresh``, all epochs have the same order.
    """

    input: Node
    size: int
    seed: int | None
    fresh: bool

    verb: ClassVar[str] = 'shuffle(window="atoms")'
    rows: ClassVar[Rows] = Rows.PERMUTED
    parameters_format = 'window="atoms", size={self.size}, seed={self.seed}'
    # version 1 did not count pieces without rows above functions of unknown types
    version: ClassVar[int] = 2
    takes_units: ClassVar[bool] = True
    gathers: ClassVar[int] = 2
    random: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for an invalid size or seed, batches, or an operator not row-local."""
        element_count('shuffle window="atoms" size', self.size, least=1)
        seeded(self.seed)
        for node in self.input.walk():
            if not isinstance(node, Source) and not node.rows.local:
                raise PlanError(
                    f"{self.verb} permutes pieces of a source",
                    why=f"{node.title()} lies between the source and the shuffle",
                    try_="shuffle first, or .shuffle(buffer_size=n) here",
                )
        if self.batched:
            raise PlanError(f"{self.verb} of batches", try_="shuffle before .batch()")

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: a group's position is saved, its pieces are read again."""
        return ResumeCost(state_bytes=64, work=f"{self.size} pieces")

    def order(self, at: At, epoch: int, pieces: int) -> IndexPermutation:
        """Return the permutation from output piece numbers to piece numbers of the source."""
        ids = RowIds.run(PIECES, 0, 1)
        return IndexPermutation(pieces, int(self.keys(ids, at, epoch)[0]))

    def keys(self, ids: RowIds, at: At, epoch: int) -> np.ndarray:
        """Return the keys (n,) by which the rows ``ids`` of a group are ordered."""
        high, low = ids.arrays()
        ruling = epoch if self.fresh else 0
        return row_key(high, low, at.key(self.seed), self.ordinal, ruling)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that mixes pieces, which come in permuted order."""
        return _Mixing(self, open_input, epoch, position, at)


class _Mixing:
    def __init__(
        self, node: ShuffleAtoms, open_input: Opener, epoch: int, position: Position | None, at: At
    ) -> None:
        start = position or {"in": None, "given": 0}
        self.node, self.epoch, self.at = node, epoch, at
        self.room = GatherQuota(node, at.hold_bytes)
        self.input = open_input(epoch, start["in"])
        self.before: Position = self.input.position()
        self.block: Block | None = None
        self.order = np.zeros(0, dtype=np.int64)
        self.given = 0
        if start["given"] and self._fill():
            self.given = start["given"]
            if self.given > len(self.order):
                self.close()
                raise KeyError("given")  # the caller reports a position that does not fit

    def _fill(self) -> bool:
        """Buffer the next group of pieces that has rows; return False at the end."""
        from dml.ops.sort.external_sort import order_of  # noqa: PLC0415

        pieces = cast("PieceFlow", self.input)
        while True:
            self.block = None
            self.room.empty()
            self.before, self.given = self.input.position(), 0
            got: list[list[Block]] = []
            most = self.node.size
            while len(got) < most and (blocks := pieces.pull_piece(self.room)) is not None:
                got.append(blocks)
            rows = [block for blocks in got for block in blocks if block.n]
            if rows:
                self.block = concat(rows)
                self.order = order_of(self.block.ids, self._keys)
                return True
            if not got:
                self.block, self.order = None, self.order[:0]
                return False

    def _keys(self, ids: RowIds) -> np.ndarray:
        return self.node.keys(ids, self.at, self.epoch)

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` mixed rows; None at the end."""
        if self.given == len(self.order) and not self._fill():
            return None
        order = self.order[self.given : self.given + most]
        self.given += len(order)
        return None if self.block is None else self.block.take(order)

    def position(self) -> Position:
        """Return where the group began, and how many of its rows were returned."""
        if self.given == len(self.order) > 0:
            return {"in": self.input.position(), "given": 0}
        return {"in": self.before, "given": self.given}

    def close(self) -> None:
        """Close the input and drop the group."""
        self.block, self.order, self.given = None, self.order[:0], 0
        self.input.close()
