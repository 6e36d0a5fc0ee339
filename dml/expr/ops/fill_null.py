"""This file holds ``fill_null``: literals in place of nulls."""

from __future__ import annotations

from dml.expr.node import Node, op
from dml.expr.rowwise import Env, RowWise
from dml.expr.schema import Schema
from dml.expr.value import Value, col, shown


@op
class FillNull(RowWise):
    """Nulls of columns ``fills`` (name, value) replaced; NaN stays (``col(...).fill_nan``)."""

    input: Node
    fills: tuple[tuple[str, Value], ...]

    @property
    def random(self) -> bool:  # type: ignore[override]
        """True if a replacement draws."""
        return any(value.random for _, value in self.fills)

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True if no replacement can fail."""
        return all(value.total for _, value in self.fills)

    def columns(self, given: Schema) -> Env:
        """Every column, filled where asked."""
        for name, _ in self.fills:
            given.require(name, "fill_null")
        fills = dict(self.fills)
        return tuple(
            (n, Value("fill_null", (col(n), fills[n])) if n in fills else col(n)) for n in given
        )

    def shown(self) -> str:
        """Names and replacements."""
        return ", ".join(f"{name}={shown(value)}" for name, value in self.fills)
