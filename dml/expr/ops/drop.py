"""This file holds ``drop``: leave columns out."""

from __future__ import annotations

from dml.errors import SchemaError
from dml.expr.node import Node, op
from dml.expr.rowwise import Env, RowWise
from dml.expr.schema import Schema
from dml.expr.value import col


@op
class Drop(RowWise):
    """All columns but ``names``. SchemaError if one is absent or none is left."""

    input: Node
    names: tuple[str, ...]

    total = True

    def columns(self, given: Schema) -> Env:
        """The other columns, in order."""
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

    def shown(self) -> str:
        """The names."""
        return ", ".join(map(repr, self.names))
