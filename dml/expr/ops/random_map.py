"""This file holds ``random_map``: a user's function of a row and keyed random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.expr import rows as convert
from dml.expr.block import Block
from dml.expr.calls import UserFunction, each_drawn
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.ops.map_rows import Calls, mapped, typed
from dml.expr.ops.shuffle_window import seeded
from dml.expr.schema import UNKNOWN, Schema
from dml.expr.settling import Returned, called_apart
from dml.expr.skipping import RAISE, Skipping
from dml.kernels.random import RowGenerator, row_key

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class RandomMap(Skipping):
    """Each row replaced by ``fn(row, rng)``; ``rng`` has the methods of ``numpy.random.Generator``.

    The numbers are keyed by (seed, operator, epoch, row id): they do not depend on workers, order
    or partitions, and the generator must not be kept beyond the call.
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
        """The seed is one."""
        super().check()
        seeded(self.seed)

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """One for one, but for rows that are lost."""
        return Rows.FEWER if self.skips else Rows.SAME

    def infer(self) -> Schema:
        """What was declared."""
        return self.declared or UNKNOWN

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The mapped rows; where the function raises, the rows before it, then the error."""
        return mapped(self, block, at, self._calls(block, at)) if block.n else iter(())

    def returned(self, block: Block, at: At) -> Iterator[Returned]:
        """What the function returns for each row, before its types are known."""
        return called_apart(self, block, self._calls(block, at)) if block.n else iter(())

    def typed(self, made: Returned, at: At) -> Iterator[Block]:
        """The results as blocks, then what stopped the function."""
        return typed(self, made, at)

    def _calls(self, block: Block, at: At) -> Calls:
        keys = row_key(*block.ids.arrays(), at.key(self.seed), self.ordinal, at.epoch)

        def call(start: int, stop: int, out: list[Any]) -> tuple[np.ndarray, BaseException | None]:
            part = block.slice(start, stop)
            draws = RowGenerator.of_thread().each(keys[start:stop])
            if self.skips:
                given = zip(convert.to_rows(part), draws, strict=True)
                return self.spared(given, part.ids, out, at) + start, None
            error = each_drawn(self.fn.call, convert.to_rows(part), draws, out)
            return np.arange(start, start + len(out)), error

        return call

    def shown(self) -> str:
        """The function's name, and what it needs."""
        return f"{self.fn.name}{self.skipping}{self.needs.shown()}"
