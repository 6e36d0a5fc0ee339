"""This file holds ``rejection_resample`` by a function: rows of each class by draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.expr.block import Block
from dml.expr.calls import UserFunction, each, raised
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.ops.shuffle_window import seeded
from dml.expr.rows import each_row
from dml.expr.schema import Schema
from dml.expr.trays import Copies
from dml.kernels.random import row_key, uniform

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class Resample(Node):
    """The rows whose draw is below the share of their class, which ``fn`` says of their dict.

    Draws are keyed by (seed, operator, epoch, row id). A class that ``shares`` does not name has
    none. Called once per row in runs without failures; order is kept. UDFError names the row.
    """

    input: Node
    fn: UserFunction
    shares: tuple[tuple[Any, float], ...]
    seed: int | None

    rows: ClassVar[Rows] = Rows.FEWER
    random: ClassVar[bool] = True

    def check(self) -> None:
        """A seed that is one."""
        seeded(self.seed)

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The kept rows; where the function raises, those before it, then the error."""
        if not block.n:
            return
        classes = list[Any]() if not self.fn.purity else Copies()
        error = each_row(self.fn, block, classes)
        shares = dict(self.shares)
        found: list[float] = []
        # a class that cannot be looked up, such as a list, is an error of its row as well
        unclear = each(lambda name: shares.get(name, 0.0), classes, found)
        keys = row_key(*block.ids.arrays(), at.key(self.seed), self.ordinal, at.epoch)
        kept = np.flatnonzero(uniform(keys)[: len(found)] < np.array(found, dtype=np.float64))
        yield block.take(kept)
        error = error if unclear is None else unclear
        if error is not None:
            raise raised(error, self.fn, block.ids, len(found)).located(self.label())

    def shown(self) -> str:
        """The function's name, the shares and the seed."""
        return f"{self.fn.name}, {dict(self.shares)}, seed={self.seed}"
