"""``select`` keeps and orders columns."""

from __future__ import annotations

from dml.data.schema import Schema
from dml.errors import PlanError
from dml.expr.columns.value import col
from dml.expr.node import Node, op
from dml.ops.row.rowwise import Env, RowWise
from dml.ops.unary import names_text


@op
class Select(RowWise):
    """Keeps the columns ``names``, in that order; raises SchemaError if one is missing."""

    input: Node
    names: tuple[str, ...]

    total = True
    parameters_text = names_text

    def check(self) -> None:
        """Raise PlanError if no column is selected, or if a column is selected twice."""
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
        """Return the columns ``names``."""
        for name in self.names:
            given.require(name, "select")
        return tuple((name, col(name)) for name in self.names)
