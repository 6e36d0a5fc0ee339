"""This file holds ``cast``: columns in other types."""

from __future__ import annotations

import pyarrow as pa

from dml.expr.node import Node, op
from dml.expr.rowwise import Env, RowWise
from dml.expr.schema import Schema, short
from dml.expr.value import Value, col


@op
class Cast(RowWise):
    """Columns ``kinds`` (name, type) converted, the others as they are.

    A value that the type cannot hold raises CastError, or is null if not ``strict``.
    """

    input: Node
    kinds: tuple[tuple[str, pa.DataType], ...]
    strict: bool

    @property
    def total(self) -> bool:  # type: ignore[override]
        """A strict cast can fail."""
        return not self.strict

    def columns(self, given: Schema) -> Env:
        """Every column in its type from now on."""
        for name, _ in self.kinds:
            given.require(name, "cast")
        wanted = dict(self.kinds)
        return tuple(
            (n, Value("cast", (col(n),), (wanted[n], self.strict)) if n in wanted else col(n))
            for n in given
        )

    def shown(self) -> str:
        """Names and types."""
        return ", ".join(f"{name}={short(kind)}" for name, kind in self.kinds)
