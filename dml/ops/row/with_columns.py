"""``with_columns`` adds or replaces columns by expressions."""

from __future__ import annotations

from dml.data.schema import Schema
from dml.expr.columns.value import Value, col, value_text
from dml.expr.node import Node, op
from dml.ops.row.rowwise import Env, RowWise


@op
class WithColumns(RowWise):
    """Adds or replaces columns by ``values`` (name, expression over the input's columns).

    Every expression reads the input's columns, never the result of another expression. Draws are
    keyed by this operator and the index of their column. Raises SchemaError for missing columns and
    incompatible types.
    """

    input: Node
    values: tuple[tuple[str, Value], ...]

    @property
    def random(self) -> bool:  # type: ignore[override]
        """True if an expression draws random numbers."""
        return any(value.random for _, value in self.values)

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True if no expression can fail."""
        return all(value.total for _, value in self.values)

    def columns(self, given: Schema) -> Env:
        """Return the input's columns, some replaced by new ones, then the other new columns."""
        new = dict(self.values)
        kept = [(name, new.pop(name) if name in new else col(name)) for name in given]
        return (*kept, *new.items())

    def parameters_text(self) -> str:
        """Return the assignments as text."""
        return ", ".join(f"{name}={value_text(value)}" for name, value in self.values)
