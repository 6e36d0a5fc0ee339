"""``fill_null`` replaces nulls by literals."""

from __future__ import annotations

from dml.data.schema import Schema, code_of, shape_of
from dml.errors import PlanError
from dml.expr.columns.value import Value, col, value_text
from dml.expr.node import Node, op
from dml.kernels.functions.function import is_text
from dml.ops.row.rowwise import Env, RowWise


def takers(schema: Schema, value: bool | float | str) -> list[str]:  # noqa: FBT001 - a value
    """Return the columns that hold values such as ``value``; raise PlanError if there are none."""
    if not schema.known:
        raise PlanError(
            f"fill_null({value!r}) needs to know the columns",
            why="a function decides them when it runs",
            try_='fill_null({"x": ...}), or schema={...} where the function is given',
        )
    kinds = "b" if isinstance(value, bool) else "iuf" if isinstance(value, int) else "f"
    found = [
        name
        for name, kind in schema.items()
        if (is_text(kind) if isinstance(value, str) else code_of(kind)[0] in kinds)
        and not shape_of(kind)
    ]
    if not found:
        raise PlanError(
            f"fill_null({value!r}) fills no column",
            why=f"the input has {schema}",
            try_='fill_null({"x": ...}), by column',
        )
    return found


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
