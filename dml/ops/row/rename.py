"""``rename`` gives columns other names."""

from __future__ import annotations

from dml.data.schema import Schema
from dml.errors import SchemaError
from dml.expr.columns.value import col
from dml.expr.node import Node, op
from dml.ops.row.rowwise import Env, RowWise


@op
class Rename(RowWise):
    """Renames columns by ``names`` (old, new), without moving them.

    Raises SchemaError if an old name is missing or two columns would have the same name.
    """

    input: Node
    names: tuple[tuple[str, str], ...]

    total = True

    def columns(self, given: Schema) -> Env:
        """Return every column under its new name."""
        for old, _ in self.names:
            given.require(old, "rename")
        new = dict(self.names)
        out = tuple((new.get(name, name), col(name)) for name in given)
        names = [name for name, _ in out]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SchemaError(
                f"rename gives two columns the name {twice[0]!r}",
                why=f"the input has {given}",
                try_=f".drop({twice[0]!r}) before, or another name",
            )
        return out

    def parameters_text(self) -> str:
        """Return the old and new names as text."""
        return repr(dict(self.names))
