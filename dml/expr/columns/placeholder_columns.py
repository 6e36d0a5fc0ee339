"""Placeholder columns stand for a list's element, for several columns, or for the row id."""

from __future__ import annotations

from typing import Any

from dml.base.user_line import door
from dml.data.schema import data_type
from dml.errors import PlanError
from dml.expr.columns.column import Column
from dml.expr.columns.value import ELEMENT, Value
from dml.expr.columns.value import col as ref

# Families of types, by the names that users write.
FAMILIES = ("numeric", "integer", "floating", "text", "list", "tensor", "time")


class Columns(Column):
    """A selection of several input columns; the verb that receives it resolves the names."""

    __slots__ = ()

    @door
    def exclude(self, *names: str) -> Columns:
        """Return the selection without ``names``; the verb raises SchemaError for unknown ones."""
        kinds, left = self.value.params
        given: tuple[Any, ...] = names
        if not given or not all(isinstance(name, str) for name in given):
            raise PlanError(
                f"exclude needs names of columns, got {list(given)}",
                why="it says which columns are left out",
                try_='.exclude("a", "b")',
            )
        return Columns(Value("columns", (), (kinds, (*left, *names))))


def element() -> Column:
    """Return the placeholder for a list's element, for use inside ``.list.eval(...)``."""
    return Column(ref(ELEMENT))


def all_columns() -> Columns:
    """Select every input column, for ``select`` and ``with_columns``: ``all_columns() * 2``."""
    return Columns(Value("columns", (), (None, ())))


@door
def columns_of(*types: Any) -> Columns:
    """Select the input columns of ``types``, in order, for ``select`` and ``with_columns``.

    A type is one that ``cast`` accepts, or a family: "numeric", "integer", "floating", "text",
    "list", "tensor", "time".
    """
    if not types:
        raise PlanError(
            "columns_of needs a type",
            why="nothing was given",
            try_='columns_of("float32") or columns_of("numeric")',
        )
    kinds = tuple(t if t in FAMILIES else data_type(t) for t in types)
    return Columns(Value("columns", (), (kinds, ())))


def row_id(*, exact: bool = False) -> Column:
    """Return the structural id of the row as uint64: ``mix64(lo ^ mix64(hi))``, never null.

    A row keeps its id through filters, maps and shuffles, and ids depend neither on partitions nor
    on the run. Rows of one file have different ids; any other two rows have equal ids with a
    probability of 1 in 2**64. ``exact`` returns all 128 bits as 16 bytes, which sort as the ids do.
    """
    return Column(Value("row_id", (), (bool(exact),)))
