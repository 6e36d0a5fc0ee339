"""``col("x").struct`` has functions of structs, with the names that Polars uses."""

from __future__ import annotations

from collections.abc import Sequence

from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.namespaces.namespace import Namespace, text
from dml.expr.columns.value import C


class Structs(Namespace[C]):
    """Functions of a struct column."""

    __slots__ = ()
    _title, _place = ".struct", "struct"

    @door
    def field(self, name: str) -> C:
        """Return ``x[name]``; null where the struct is null."""
        return self._apply("struct.field", text("the name of a field", name))

    @door
    def rename_fields(self, names: Sequence[str]) -> C:
        """Rename the fields to ``names``, one for each field in order."""
        found = [] if isinstance(names, str) else [text("the name of a field", n) for n in names]
        if not found or len(set(found)) < len(found):
            raise PlanError(
                f"rename_fields needs a list of different names, got {names!r}",
                why="each field has a name of its own",
                try_='.struct.rename_fields(["a", "b"])',
            )
        return self._apply("struct.rename_fields", *found)
