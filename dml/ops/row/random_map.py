"""``random_map`` calls a user's function on each row with keyed random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.data.block import Block
from dml.data.schema import Schema
from dml.expr.facts import Needs
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, each_drawn
from dml.kernels.rows.random import RowGenerator, row_key
from dml.ops.function_node import FunctionNode
from dml.ops.row.map_rows import mapped, typed
from dml.ops.shuffle.shuffle_window import seeded
from dml.udfs.calling import python_rows as convert
from dml.udfs.calling.error_policy import RAISE
from dml.udfs.calling.type_inference import Calls, Returned, called_apart

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class RandomMap(FunctionNode):
    """Replaces each row by ``fn(row, rng)``, where ``rng`` draws keyed random numbers.

    The numbers are keyed by (seed, operator, epoch, row id): they do not depend on workers, order
    or partitions. ``rng`` has the methods of ``numpy.random.Generator`` and must not be kept beyond
    the call.
    """

    input: Node
    fn: UserFunction
    seed: int | None
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    version: ClassVar[int] = 2
    random: ClassVar[bool] = True
    places: ClassVar[bool] = True

    def check(self) -> None:
        """Raise PlanError for a seed that is neither an integer nor None."""
        super().check()
        seeded(self.seed)

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the mapped rows; raise an error of the function after the rows before it."""
        return mapped(self, block, at, self._calls(block, at)) if block.n else iter(())

    def returned(self, block: Block, at: At) -> Iterator[Returned]:
        """Yield the values that the function returns, before their types are known."""
        return called_apart(self, block, self._calls(block, at)) if block.n else iter(())

    def typed(self, made: Returned, at: At) -> Iterator[Block]:
        """Yield the results ``made`` as blocks, then raise the function's error, if any."""
        return typed(self, made, at)

    def _calls(self, block: Block, at: At) -> Calls:
        keys = row_key(*block.ids.arrays(), at.key(self.seed), self.ordinal, at.epoch)

        def call(start: int, stop: int, out: list[Any]) -> tuple[np.ndarray, BaseException | None]:
            part = convert.noticed(self.fn, block.slice(start, stop))
            called, rows = convert.readable(self.fn.call, part)
            kept, first = list[range](), start
            while True:
                # a new generator after each error: a call that was given up may still draw
                draws, before = RowGenerator().each(keys[first:stop]), len(out)
                error = each_drawn(self.fn, called, rows[first - start :], draws, out)
                failed = first + len(out) - before
                kept.append(range(first, failed))
                if error is None or not self.skips:
                    return np.concatenate(kept).astype(np.int64), error
                self.lose(error, block.ids, failed, at)
                first = failed + 1

        return call
