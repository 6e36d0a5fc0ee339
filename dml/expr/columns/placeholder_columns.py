"""Placeholder columns: the element of a list, a selection of several columns, the id of a row."""

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
    """A selection of several input columns, resolved by the verb that receives it."""

    __slots__ = ()

    @door
    def exclude(self, *names: str) -> Columns:
        """The selection without ``names``; SchemaError if one of them is no column of the input."""
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
    """The element of the list, inside of ``.list.eval(...)``."""
    return Column(ref(ELEMENT))


def all_columns() -> Columns:
    """Every column of the input, for ``select`` and ``with_columns``: ``all_columns() * 2``."""
    return Columns(Value("columns", (), (None, ())))


@door
def columns_of(*types: Any) -> Columns:
    """Every input column of one of these types, in order, for ``select`` and ``with_columns``.

    A type is one that ``cast`` takes, or a family: "numeric", "integer", "floating", "text",
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
    """The structural id of the row as uint64: ``mix64(lo ^ mix64(hi))``, never null.

    The id stays with the row through filters, maps and shuffles, whatever the partitions and the
    run. Ids of rows of one file differ; other rows collide with a probability of 1 in 2**64 per
    pair, unless ``exact``, which returns all 128 bits as 16 bytes, in their order.
    """
    return Column(Value("row_id", (), (bool(exact),)))
