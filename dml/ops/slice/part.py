"""``Part`` keeps the rows of one side of a random split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.errors import PlanError
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.kernels.rows.random import row_key, uniform
from dml.ops.shuffle.shuffle_window import seeded
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At

# Used in keys in place of a random operator's ordinal, which does not matter for splits.
SPLIT = 0x73706C6974


@op
class Part(SameColumns):
    """Keeps the rows whose random draw lies in [``low``, ``high``), the same in every epoch.

    The draw is keyed by (seed, ``nth``, row id) alone, where ``nth`` is the number of splits
    written before this one. So each row is in exactly one part of a split, whatever operators run
    before or after, as long as rows keep their ids.
    """

    input: Node
    low: float
    high: float
    seed: int | None
    nth: int

    rows: ClassVar[Rows] = Rows.FEWER
    parameters_format = "{self.low:g} to {self.high:g}, seed={self.seed}"
    hands_on: ClassVar[bool] = True
    splits: ClassVar[bool] = True
    random: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for a seed that is neither an integer nor None."""
        seeded(self.seed)

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the rows of this part."""
        keys = row_key(*block.ids.arrays(), at.key(self.seed), SPLIT + self.nth, 0)
        drawn = uniform(keys)
        kept = np.flatnonzero((drawn >= self.low) & (drawn < self.high))
        yield block.take(kept) if len(kept) < block.n else block.bare()


def bounds(fractions: Sequence[Any]) -> list[float]:
    """Return the bounds of parts in [0, 1]; raise PlanError unless ``fractions`` sum to 1."""
    listed = isinstance(fractions, list | tuple) and len(fractions) > 0
    real = listed and all(isinstance(f, int | float) and not isinstance(f, bool) for f in fractions)
    if not real or min(fractions) < 0 or not abs(sum(fractions) - 1) < 1e-9:
        raise PlanError(
            f"split cannot divide rows by {fractions!r}",
            why="every row belongs to one part: fractions are numbers of at least 0, 1 in sum",
            try_="split([0.8, 0.1, 0.1])",
        )
    inner = [min(sum(fractions[: n + 1]), 1.0) for n in range(len(fractions) - 1)]
    return [0.0, *inner, 1.0]


def splits_below(node: Node) -> int:
    """Return the number of splits in ``node`` and below it, which is ``nth`` of the next split."""
    return sum(each.splits for each in node.chain())
