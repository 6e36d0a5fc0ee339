"""This file holds ``select``: keep and order columns."""

from __future__ import annotations

from dml.errors import PlanError
from dml.expr.node import Node, op
from dml.expr.rowwise import Env, RowWise
from dml.expr.schema import Schema
from dml.expr.value import col


@op
class Select(RowWise):
    """Keep the columns ``names``, in that order. SchemaError if one is absent."""

    input: Node
    names: tuple[str, ...]

    total = True

    def check(self) -> None:
        """Every name once."""
        if not self.names:
            raise PlanError(
                "select keeps no column", why="nothing was named", try_="name at least one"
            )
        if len(set(self.names)) != len(self.names):
            raise PlanError(
                f"select names a column twice: {', '.join(map(str, self.names))}",
                why="names in a row are different",
                try_='.with_columns(copy=col("x")) for a second copy',
            )

    def columns(self, given: Schema) -> Env:
        """The columns by name."""
        for name in self.names:
            given.require(name, "select")
        return tuple((name, col(name)) for name in self.names)

    def shown(self) -> str:
        """The names."""
        return ", ".join(map(repr, self.names))
