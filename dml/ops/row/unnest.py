"""``unnest`` turns the fields of structs into columns."""

from __future__ import annotations

import pyarrow as pa

from dml.data.schema import Schema, short
from dml.errors import PlanError, SchemaError
from dml.expr.columns.value import Value, col
from dml.expr.node import Node, op
from dml.ops.row.rowwise import Env, RowWise
from dml.ops.unary import names_text


@op
class Unnest(RowWise):
    """Replaces each struct column of ``names`` by a column for each of its fields.

    A null struct has null fields. Raises SchemaError if a column is missing or not a struct, and if
    two columns would have the same name.
    """

    input: Node
    names: tuple[str, ...]

    total = True
    parameters_text = names_text

    def check(self) -> None:
        """Raise PlanError if no column is given."""
        if not self.names:
            raise PlanError(
                "unnest needs at least one column", why="none was named", try_='.unnest("point")'
            )

    def columns(self, given: Schema) -> Env:
        """Return the other columns, and the fields in place of the structs."""
        for name in self.names:
            kind = given.require(name, "unnest")
            if not pa.types.is_struct(kind):
                raise SchemaError(
                    f"unnest needs structs, {name!r} is {short(kind)}",
                    why="each field of a struct becomes a column",
                    try_=".explode(...) for lists, .with_columns(...) for anything else",
                )
        out: list[tuple[str, Value]] = []
        for name, kind in given.items():
            if name not in self.names:
                out.append((name, col(name)))
                continue
            out += [(each.name, Value("struct.field", (col(name),), (each.name,))) for each in kind]
        names = [name for name, _ in out]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SchemaError(
                f"unnest gives two columns the name {twice[0]!r}",
                why=f"the input has {given}",
                try_=f".rename({{{twice[0]!r}: ...}}) before, or .struct.rename_fields([...])",
            )
        if not out:
            raise SchemaError(
                "unnest leaves no column", why=f"the input has {given}", try_="structs with fields"
            )
        return tuple(out)
