"""``cast`` converts columns to other types."""

from __future__ import annotations

import pyarrow as pa

from dml.data.schema import Schema, short
from dml.expr.columns.value import Value, col
from dml.expr.node import Node, op
from dml.ops.row.rowwise import Env, RowWise


@op
class Cast(RowWise):
    """Converts the columns ``kinds`` (name, type); other columns are unchanged.

    A value that the type cannot represent raises CastError, or becomes null if not ``strict``.
    """

    input: Node
    kinds: tuple[tuple[str, pa.DataType], ...]
    strict: bool

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True unless ``strict``: a strict cast can fail."""
        return not self.strict

    def columns(self, given: Schema) -> Env:
        """Return every column in its new type."""
        for name, _ in self.kinds:
            given.require(name, "cast")
        wanted = dict(self.kinds)
        return tuple(
            (n, Value("cast", (col(n),), (wanted[n], self.strict)) if n in wanted else col(n))
            for n in given
        )

    def parameters_text(self) -> str:
        """Return the names and types as text."""
        return ", ".join(f"{name}={short(kind)}" for name, kind in self.kinds)
