"""``drop`` removes columns."""

from __future__ import annotations

from dml.data.schema import Schema
from dml.errors import SchemaError
from dml.expr.columns.value import col
from dml.expr.node import Node, op
from dml.ops.row.rowwise import Env, RowWise
from dml.ops.unary import names_text


@op
class Drop(RowWise):
    """Removes the columns ``names``.

    Raises SchemaError if a column is missing or none remains.
    """

    input: Node
    names: tuple[str, ...]

    total = True
    parameters_text = names_text

    def columns(self, given: Schema) -> Env:
        """Return the other columns, in order."""
        for name in self.names:
            given.require(name, "drop")
        kept = tuple((name, col(name)) for name in given if name not in self.names)
        if not kept:
            raise SchemaError(
                "drop leaves no column",
                why=f"the input has {given}",
                try_=".select(...) of what you need",
            )
        return kept
