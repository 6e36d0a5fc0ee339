"""``fill_null`` replaces nulls by literals."""

from __future__ import annotations

from dml.data.schema import Schema
from dml.expr.columns.value import Value, col, value_text
from dml.expr.node import Node, op
from dml.ops.row.rowwise import Env, RowWise


@op
class FillNull(RowWise):
    """Replaces nulls in the columns ``fills`` (name, value); NaN is unchanged."""

    input: Node
    fills: tuple[tuple[str, Value], ...]

    @property
    def random(self) -> bool:  # type: ignore[override]
        """True if a replacement value draws random numbers."""
        return any(value.random for _, value in self.fills)

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True if no replacement can fail."""
        return all(value.total for _, value in self.fills)

    def columns(self, given: Schema) -> Env:
        """Return every column, filled if it is among ``fills``."""
        for name, _ in self.fills:
            given.require(name, "fill_null")
        fills = dict(self.fills)
        return tuple(
            (n, Value("fill_null", (col(n), fills[n])) if n in fills else col(n)) for n in given
        )

    def parameters_text(self) -> str:
        """Return the names and replacements as text."""
        return ", ".join(f"{name}={value_text(value)}" for name, value in self.fills)
