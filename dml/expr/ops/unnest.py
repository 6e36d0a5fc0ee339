"""This file holds ``unnest``: the fields of structs as columns."""

from __future__ import annotations

import pyarrow as pa

from dml.errors import PlanError, SchemaError
from dml.expr.node import Node, op
from dml.expr.rowwise import Env, RowWise
from dml.expr.schema import Schema, short
from dml.expr.value import Value, col


@op
class Unnest(RowWise):
    """In place of each column of ``names``, a struct, a column for each of its fields.

    A null struct has null fields. SchemaError for a column that is absent or no struct, and where
    two columns would share a name.
    """

    input: Node
    names: tuple[str, ...]

    total = True

    def check(self) -> None:
        """At least one column."""
        if not self.names:
            raise PlanError(
                "unnest needs at least one column", why="none was named", try_='.unnest("point")'
            )

    def columns(self, given: Schema) -> Env:
        """The other columns, and fields where the structs were."""
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

    def shown(self) -> str:
        """The names."""
        return ", ".join(map(repr, self.names))
