"""This file holds the part: the rows of one side of a random split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.errors import PlanError
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.ops.shuffle_window import seeded
from dml.expr.schema import Schema
from dml.kernels.random import row_key, uniform

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At

# Stands where the ordinal of a random operator would stand: splits do not count those.
SPLIT = 0x73706C6974


@op
class Part(Node):
    """The rows whose draw lies in [``low``, ``high``), in every epoch the same.

    The draw is keyed by (seed, ``nth``, row id), where ``nth`` is how many splits were written
    before this one, and by nothing else. So the parts of a split have each row once, whatever is
    done to rows before or after, as long as they keep their ids.
    """

    input: Node
    low: float
    high: float
    seed: int | None
    nth: int

    rows: ClassVar[Rows] = Rows.FEWER
    hands_on: ClassVar[bool] = True
    random: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """A seed that is one."""
        seeded(self.seed)

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The rows of this part."""
        keys = row_key(*block.ids.arrays(), at.key(self.seed), SPLIT + self.nth, 0)
        drawn = uniform(keys)
        kept = np.flatnonzero((drawn >= self.low) & (drawn < self.high))
        yield block.take(kept) if len(kept) < block.n else block.bare()

    def shown(self) -> str:
        """Which draws are kept, and the seed."""
        return f"{self.low:g} to {self.high:g}, seed={self.seed}"


def bounds(fractions: Sequence[Any]) -> list[float]:
    """Where parts begin and end in [0, 1]; PlanError unless ``fractions`` make a whole."""
    listed = isinstance(fractions, list | tuple)
    real = listed and all(isinstance(f, int | float) and not isinstance(f, bool) for f in fractions)
    if (
        not listed
        or not fractions
        or not real
        or min(fractions) < 0
        or not abs(sum(fractions) - 1) < 1e-9
    ):
        raise PlanError(
            f"split cannot divide rows by {fractions!r}",
            why="every row belongs to one part: fractions are numbers of at least 0, 1 in sum",
            try_="split([0.8, 0.1, 0.1])",
        )
    inner = [min(sum(fractions[: n + 1]), 1.0) for n in range(len(fractions) - 1)]
    return [0.0, *inner, 1.0]


def splits_below(node: Node) -> int:
    """How many splits were written before a step over ``node``."""
    return sum(hasattr(each, "nth") for each in node.chain())
