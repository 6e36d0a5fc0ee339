"""Verbs that change columns and keep rows are defined here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from dml.api.verbs.step import StepVerbs, name_of, names_of
from dml.base.user_line import by_name, door
from dml.data.schema import data_type
from dml.errors import PlanError
from dml.expr.columns.column import Column, col, wrap


class ColumnVerbs(StepVerbs):
    """Verbs that select, compute and convert columns."""

    @door
    def select(self, *columns: Any, **named: Any) -> Self:
        """Keep ``columns``, in that order: names, or expressions over the present columns.

        An expression has the name of its keyword, else of the only column that it reads;
        ``dml.all_columns()`` (or "*") and ``dml.columns_of(...)`` select several columns.
        """
        given = (
            columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        )
        stars = [isinstance(name, str) and name == "*" for name in given]
        if any(stars) and "*" not in self._node.schema:
            from dml.expr.columns.placeholder_columns import all_columns

            pairs = zip(given, stars, strict=True)
            given = [all_columns() if star else name for name, star in pairs]
        if not named and all(isinstance(name, str) for name in given):
            from dml.ops.row.select import Select

            return self._then(Select, names_of(columns))
        from dml.expr.columns.expansion import named as made_of

        found = made_of(given, named, self._node.schema, "select")
        names = tuple(name for name, _ in found)
        made = {n: Column(v) for n, v in found if v.op != "col" or v.params[0] != n}
        changed = self.with_columns(**made) if made else self
        return changed.select(*names)

    select_columns = select

    @door
    def drop(self, *names: str) -> Self:
        """Remove the columns ``names``."""
        from dml.ops.row.drop import Drop

        return self._then(Drop, names_of(names))

    drop_columns = remove_columns = drop

    @door
    def rename(self, names: Mapping[str, str] | None = None, **more: str) -> Self:
        """Rename columns: ``rename({"old": "new"})`` or ``rename(old="new")``."""
        from dml.ops.row.rename import Rename

        given = by_name(names, more)
        names_of(tuple(given.values()))
        return self._then(Rename, tuple(given.items()))

    rename_columns = rename

    @door
    def rename_column(self, old: str, new: str) -> Self:
        """Rename one column, as ``rename({old: new})``."""
        return self.rename({name_of(old): new})

    @door
    def unnest(self, *columns: str) -> Self:
        """Replace each of ``columns``, structs, by a column for each field."""
        from dml.ops.row.unnest import Unnest

        return self._then(Unnest, names_of(columns))

    @door
    def with_columns(self, /, *several: Any, **values: Any) -> Self:
        """Add or replace columns by expressions (or literals) over the present ones.

        Without a keyword, an expression (``dml.all_columns() * 2``) replaces the column it reads.
        """
        if not values and not several:
            raise PlanError(
                "with_columns needs at least one name=expression",
                why="nothing was given",
                try_='.with_columns(z=dml.col("x") + 1)',
            )
        from dml.expr.columns.expansion import named

        found = named(several, values, self._node.schema, "with_columns")
        if any(value.calls for _, value in found):
            from dml.api.verbs.function_columns import SplitSteps

            return self._then(SplitSteps(found, self._node.schema).over)
        from dml.ops.row.with_columns import WithColumns

        return self._then(WithColumns, found)

    @door
    def with_column(self, name: str, value: Any) -> Self:
        """Add or replace one column, as ``with_columns(name=value)``."""
        return self.with_columns(**{name: value})

    add_column = with_column

    @door
    def cast(
        self, types: Mapping[str, Any] | None = None, *, strict: bool = True, **more: Any
    ) -> Self:
        """Convert columns to types: ``cast({"x": "float32"})``.

        A value that does not fit raises CastError, or becomes null if not ``strict``.
        """
        from dml.ops.row.cast import Cast

        given = by_name(types, more)
        return self._then(Cast, tuple((n, data_type(k)) for n, k in given.items()), strict)

    @door
    def cast_column(self, column: str, kind: Any, *, strict: bool = True) -> Self:
        """Convert one column, as ``cast({column: kind})``."""
        return self.cast({name_of(column): kind}, strict=strict)

    @door
    def fill_null(self, fills: Any = None, **more: Any) -> Self:
        """Replace nulls by column: ``fill_null({"x": 0.0})``; NaN is not null.

        A single value fills all columns that hold such values, as in Polars: an int those of
        numbers, a float those of floats, a text those of texts, a bool those of booleans.
        """
        from dml.ops.row.fill_null import FillNull, takers

        if isinstance(fills, int | float | str):
            fills = dict.fromkeys(takers(self._node.schema, fills), fills)
        given = by_name(fills, more)
        return self._then(FillNull, tuple((n, wrap(v)) for n, v in given.items()))

    @door
    def fill_nan(self, fills: Mapping[str, Any] | None = None, **more: Any) -> Self:
        """Replace NaN by column: ``fill_nan({"x": 0.0})``; null is not NaN."""
        given = by_name(fills, more)
        return self.with_columns(**{name: col(name).fill_nan(v) for name, v in given.items()})
