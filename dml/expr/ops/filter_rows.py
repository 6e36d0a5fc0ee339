"""This file holds ``filter`` by a user's function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.expr.block import Block
from dml.expr.calls import UserFunction, caught, each, raised
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.rows import each_row
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class FilterRows(Node):
    """The rows for whose dict ``fn`` returns something true; order is kept."""

    input: Node
    fn: UserFunction
    needs: Needs = Needs()

    rows: ClassVar[Rows] = Rows.FEWER

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The kept rows; where the function raises, those before it, then the error."""
        if not block.n:
            return
        out: list[Any] = []
        error = each_row(self.fn, block, out)
        kept, error = _true(out, error)
        yield block.take(kept) if len(kept) < block.n else block.bare()
        if error is not None:
            raise raised(error, self.fn, block.ids, len(out)).located(self.label())

    def shown(self) -> str:
        """The function's name, and what it needs."""
        return f"{self.fn.name}{self.needs.shown()}"


def _truths(out: list[Any], made: list[np.ndarray]) -> None:
    made.append(np.fromiter(out, dtype=bool, count=len(out)))


def _true(out: list[Any], error: Exception | None) -> tuple[np.ndarray, Exception | None]:
    """Which rows pass, and what ends them: a result that is neither true nor false raises too."""
    made: list[np.ndarray] = []
    if caught(_truths, out, made) is None:
        return np.flatnonzero(made[0]), error
    flags: list[bool] = []
    unclear = each(bool, out, flags)
    del out[len(flags) :]
    return np.flatnonzero(np.array(flags, dtype=bool)), error if unclear is None else unclear
