"""``rejection_resample`` with a function keeps rows of each class by random draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.data.batch_trays import CopiedRows
from dml.data.block import Block
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, each, raised
from dml.kernels.rows.random import row_key, uniform
from dml.ops.shuffle.shuffle_window import seeded
from dml.ops.unary import SameColumns
from dml.udfs.calling.python_rows import each_row

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class Resample(SameColumns):
    """Keeps a row if its draw is below the share of the class that ``fn`` returns for the row.

    Draws are keyed by (seed, operator, epoch, row id). A class that is not in ``shares`` has the
    share 0. ``fn`` is called once per row in runs without failures; the order is kept. A UDFError
    names the row.
    """

    input: Node
    fn: UserFunction
    shares: tuple[tuple[Any, float], ...]
    seed: int | None

    rows: ClassVar[Rows] = Rows.FEWER
    random: ClassVar[bool] = True

    def check(self) -> None:
        """Raise PlanError for a seed that is neither an integer nor None."""
        seeded(self.seed)

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the kept rows; raise an error of the function after the rows before it."""
        if not block.n:
            return
        classes = list[Any]() if not self.fn.may_hold else CopiedRows()
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

    def parameters_text(self) -> str:
        """Return the function's name, the shares and the seed as text."""
        return f"{self.fn.name}, {dict(self.shares)}, seed={self.seed}"
