"""``shuffle()`` returns the whole input in keyed random order.

If rows correspond one-to-one to those of a source with known counts, the order is a permutation of
the source's global index, so that a source with random access can be read in that order at no cost.
Other rows are sorted by a keyed hash of their ids. The written pipeline alone determines which of
the two applies.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.base.cached_property import cached_property
from dml.errors import PlanError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.node import Node, op
from dml.io.source import Source
from dml.kernels.rows.ids import RowIds
from dml.kernels.rows.permutation import IndexPermutation
from dml.kernels.rows.random import row_key
from dml.ops.shuffle.shuffle_window import seeded
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position
    from dml.ops.sort.external_sort import ById, Keys

# Used in place of a row's id for a key of the whole input.
WHOLE = 0x73687566666C65
ONE_TO_ONE = (
    *(Rows.SAME, Rows.FEWER, Rows.SLICE, Rows.PERMUTED),
    *(Rows.KEPT, Rows.STORED),
)


@op
class ShuffleAll(SameColumns):
    """Returns every row once, ordered by a key of (seed, operator, epoch, row).

    Rows are kept in memory up to the run's budget, and beyond it in sorted runs on local disk.
    Unless ``fresh``, all epochs have the same order.
    """

    input: Node
    seed: int | None
    fresh: bool

    rows: ClassVar[Rows] = Rows.PERMUTED
    parameters_format = "seed={self.seed}"
    # A count is saved, all rows are sorted again.
    resume_cost = ResumeCost(state_bytes=24, work="one pass")
    gathers: ClassVar[int] = 2
    random: ClassVar[bool] = True
    waits: ClassVar[bool] = True
    total: bool = True
    spreads = True

    def check(self) -> None:
        """Raise PlanError for a batched or endless input, and for an invalid seed."""
        seeded(self.seed)
        if self.input.batched:
            raise PlanError(
                "a full shuffle of batches",
                why="its input is batched",
                try_=".shuffle() before .batch(), or .shuffle(buffer_size=n) of batches",
            )
        if self.input.endless:
            raise PlanError(
                "a full shuffle of an endless stream",
                why=".repeat() without a count has no last element to wait for",
                try_=".shuffle() before .repeat(), or .shuffle(buffer_size=n)",
            )

    @cached_property
    def ranked_source(self) -> Source | None:
        """Return the source whose global index is permuted; None for the keyed hash."""
        node: Node = self.input
        while node.inputs:
            if node.rows not in ONE_TO_ONE or len(node.inputs) > 1:
                return None
            node = node.inputs[0]
        return node if isinstance(node, Source) and node.row_count is not None else None

    def permutation(self, at: At, epoch: int) -> IndexPermutation:
        """Return the permutation from output row numbers to row numbers of ``ranked_source``."""
        source = self.ranked_source
        n = 0 if source is None or source.row_count is None else source.row_count
        return IndexPermutation(n, int(self._keys(at, epoch)(RowIds.run(WHOLE, 0, 1))[0]))

    def _keys(self, at: At, epoch: int) -> Keys:
        ruling = epoch if self.fresh else 0
        return partial(_hashes, at.key(self.seed), self.ordinal, ruling)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that sorts rows by permuted index or by hash, and equal keys by row id."""
        from dml.ops.sort.external_sort import Sorted  # noqa: PLC0415

        return Sorted(partial(open_input, epoch, None), position, at, self.spread(at, epoch))

    def spread(self, at: At, epoch: int) -> ById:
        """Return the order of rows, for a sort that is distributed to workers."""
        from dml.ops.sort.external_sort import ById  # noqa: PLC0415

        source = self.ranked_source
        if source is None:
            return ById(self._keys(at, epoch))
        return ById(partial(_ranks, source, self.permutation(at, epoch)))


def _hashes(seed: int, ordinal: int, epoch: int, ids: RowIds) -> np.ndarray:
    high, low = ids.arrays()
    return row_key(high, low, seed, ordinal, epoch)


def _ranks(source: Source, order: IndexPermutation, ids: RowIds) -> np.ndarray:
    return order.inverse(source.position_of(ids)).astype(np.uint64)
