"""This file holds ``col("x").struct``: functions of structs, named as Polars names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dml.errors import PlanError
from dml.expr.doors import door
from dml.expr.namespaces.namespace import Namespace, text

if TYPE_CHECKING:
    from dml.expr.column import Column


class Structs(Namespace):
    """Functions of a struct column."""

    __slots__ = ()

    @door
    def field(self, name: str) -> Column:
        """``x[name]``; null where the struct is null."""
        return self._made("struct.field", text("the name of a field", name))

    @door
    def rename_fields(self, names: Sequence[str]) -> Column:
        """The same values under new ``names``, one for each field in order."""
        found = [] if isinstance(names, str) else [text("the name of a field", n) for n in names]
        if not found or len(set(found)) < len(found):
            raise PlanError(
                f"rename_fields needs a list of different names, got {names!r}",
                why="each field has a name of its own",
                try_='.struct.rename_fields(["a", "b"])',
            )
        return self._made("struct.rename_fields", *found)
