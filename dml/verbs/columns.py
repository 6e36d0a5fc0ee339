"""This file holds the verbs of columns: the same rows with other columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from dml.errors import PlanError
from dml.expr.column import wrap
from dml.expr.doors import by_name, door
from dml.expr.schema import data_type
from dml.verbs.step import Step, names_of


class ColumnVerbs(Step):
    """Verbs that choose, make and convert columns."""

    @door
    def select(self, *names: str) -> Self:
        """Keep the columns ``names``, in that order."""
        from dml.expr.ops.select import Select

        return self._then(Select, names_of(names))

    select_columns = select

    @door
    def drop(self, *names: str) -> Self:
        """Leave the columns ``names`` out."""
        from dml.expr.ops.drop import Drop

        return self._then(Drop, names_of(names))

    drop_columns = remove_columns = drop

    @door
    def rename(self, names: Mapping[str, str] | None = None, **more: str) -> Self:
        """Give columns new names: ``rename({"old": "new"})``."""
        from dml.expr.ops.rename import Rename

        given = by_name(names, more)
        names_of(tuple(given.values()))
        return self._then(Rename, tuple(given.items()))

    rename_columns = rename

    @door
    def unnest(self, *columns: str) -> Self:
        """In place of each of ``columns``, structs, a column for each field."""
        from dml.expr.ops.unnest import Unnest

        return self._then(Unnest, names_of(columns))

    @door
    def with_columns(self, **values: Any) -> Self:
        """Add or replace columns by expressions (or literals) over the present ones."""
        from dml.expr.ops.with_columns import WithColumns

        if not values:
            raise PlanError(
                "with_columns needs at least one name=expression",
                why="nothing was given",
                try_='.with_columns(z=dml.col("x") + 1)',
            )
        return self._then(WithColumns, tuple((n, wrap(v)) for n, v in values.items()))

    with_column = add_column = with_columns

    @door
    def cast(
        self, types: Mapping[str, Any] | None = None, *, strict: bool = True, **more: Any
    ) -> Self:
        """Convert columns: ``cast({"x": "float32"})``; not ``strict`` gives null for misfits."""
        from dml.expr.ops.cast import Cast

        given = by_name(types, more)
        return self._then(Cast, tuple((n, data_type(k)) for n, k in given.items()), strict)

    @door
    def fill_null(self, fills: Mapping[str, Any] | None = None, **more: Any) -> Self:
        """Replace nulls by column: ``fill_null({"x": 0.0})``; NaN is not null."""
        from dml.expr.ops.fill_null import FillNull

        given = by_name(fills, more)
        return self._then(FillNull, tuple((n, wrap(v)) for n, v in given.items()))
