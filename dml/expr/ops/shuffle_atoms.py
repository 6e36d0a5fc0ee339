"""This file holds ``shuffle(window="atoms")``: permute what a source can seek to, mix a few.

Cheap in memory and reading: pieces of the source come in keyed random order, and the rows of every
``size`` consecutive pieces are mixed. A piece is an atom of an addressable source, otherwise a read
unit (a Parquet row group), since atoms inside one cannot be read apart
(docs/decisions/004-read-units.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, cast

import numpy as np

from dml.errors import PlanError
from dml.expr.block import Block, concat
from dml.expr.facts import Held, Rows
from dml.expr.flow import Room
from dml.expr.node import Node, op
from dml.expr.ops.shuffle_window import seeded
from dml.expr.ops.take import count
from dml.expr.schema import Schema
from dml.expr.sorting import order_of
from dml.expr.sources.source import Source
from dml.kernels.ids import RowIds
from dml.kernels.permute import IndexPermutation
from dml.kernels.random import row_key

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

PIECES = 0x706965636573


class Pieces(Protocol):
    """A flow that can be read piece by piece: what a stage with permuted units offers."""

    def pull_piece(self, room: Room) -> list[Block] | None:
        """All rows of the next piece (perhaps none); None at the end."""


@op
class ShuffleAtoms(Node):
    """Pieces of the source in keyed order, rows of each ``size`` consecutive ones mixed.

    Only row-local operators may lie between the source and this one (PlanError); filters may cross.
    """

    input: Node
    size: int
    seed: int | None
    fresh: bool

    verb: ClassVar[str] = 'shuffle(window="atoms")'
    rows: ClassVar[Rows] = Rows.PERMUTED
    takes_units: ClassVar[bool] = True
    gathers: ClassVar[int] = 2
    random: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Row-local operators over one source below."""
        count('shuffle window="atoms" size', self.size, least=1)
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

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    @property
    def held(self) -> Held:
        """Where the group of pieces began."""
        return Held(state_bytes=64, work=f"{self.size} pieces")

    def order(self, at: At, epoch: int, pieces: int) -> IndexPermutation:
        """Place in the order -> number of the piece."""
        ids = RowIds.run(PIECES, 0, 1)
        return IndexPermutation(pieces, int(self.keys(ids, at, epoch)[0]))

    def keys(self, ids: RowIds, at: At, epoch: int) -> np.ndarray:
        """What the rows of a group are ordered by."""
        high, low = ids.arrays()
        ruling = epoch if self.fresh else 0
        return row_key(high, low, at.key(self.seed), self.ordinal, ruling)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Mix pieces that come in permuted order."""
        return _Mixing(self, open_input, epoch, position, at)

    def shown(self) -> str:
        """Size and seed."""
        return f'window="atoms", size={self.size}, seed={self.seed}'


class _Mixing:
    def __init__(
        self, node: ShuffleAtoms, open_input: Opener, epoch: int, position: Position | None, at: At
    ) -> None:
        start = position or {"in": None, "given": 0}
        self.node, self.epoch, self.at = node, epoch, at
        self.room = Room(node, at.hold_bytes)
        self.input = open_input(epoch, start["in"])
        self.before: Position = self.input.position()
        self.block: Block | None = None
        self.order = np.zeros(0, dtype=np.int64)
        self.given = 0
        if start["given"] and self._fill():
            self.given = start["given"]
            if self.given > len(self.order):
                self.close()
                raise KeyError("given")  # which is said of a position that does not fit

    def _fill(self) -> bool:
        """Hold the next pieces that have rows; False at the end."""
        pieces = cast("Pieces", self.input)
        while True:
            self.block = None
            self.room.empty()
            self.before, self.given = self.input.position(), 0
            got: list[list[Block]] = []
            while (
                len(got) < self.node.size and (blocks := pieces.pull_piece(self.room)) is not None
            ):
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
        """Up to ``most`` mixed rows."""
        if self.given == len(self.order) and not self._fill():
            return None
        order = self.order[self.given : self.given + most]
        self.given += len(order)
        return None if self.block is None else self.block.take(order)

    def position(self) -> Position:
        """Where the group began, and how many of its rows were given."""
        if self.given == len(self.order) > 0:
            return {"in": self.input.position(), "given": 0}
        return {"in": self.before, "given": self.given}

    def close(self) -> None:
        """Close the input and drop the group."""
        self.block, self.order, self.given = None, self.order[:0], 0
        self.input.close()
