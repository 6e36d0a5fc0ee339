"""This file holds ``with_columns``: add or replace columns by expressions."""

from __future__ import annotations

from dml.expr.node import Node, op
from dml.expr.rowwise import Env, RowWise
from dml.expr.schema import Schema
from dml.expr.value import Value, col, shown


@op
class WithColumns(RowWise):
    """All columns, with ``values`` (name, expression over the input's columns) added or replaced.

    Every expression sees the input, none another's result. Draws are keyed by this operator and
    the place of their column. SchemaError for absent columns and clashing types.
    """

    input: Node
    values: tuple[tuple[str, Value], ...]

    @property
    def random(self) -> bool:  # type: ignore[override]
        """True if an expression draws."""
        return any(value.random for _, value in self.values)

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True if no expression can fail."""
        return all(value.total for _, value in self.values)

    def columns(self, given: Schema) -> Env:
        """The input's columns with the new ones in place."""
        new = dict(self.values)
        kept = [(name, new.pop(name) if name in new else col(name)) for name in given]
        return (*kept, *new.items())

    def shown(self) -> str:
        """Assignments."""
        return ", ".join(f"{name}={shown(value)}" for name, value in self.values)
