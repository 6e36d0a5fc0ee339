"""This file makes the columns that stand for others: elements, several columns, ids of rows."""

from __future__ import annotations

from typing import Any

from dml.errors import PlanError
from dml.expr.column import Column
from dml.expr.doors import door
from dml.expr.schema import data_type
from dml.expr.value import ELEMENT, Value
from dml.expr.value import col as ref

# Kinds of types, by the word that users write.
FAMILIES = ("numeric", "integer", "floating", "text", "list", "tensor", "time")


class Columns(Column):
    """Several columns of the input, known by the verb that it is given to."""

    __slots__ = ()

    @door
    def exclude(self, *names: str) -> Columns:
        """All of them but those; SchemaError where one of ``names`` is not there at all."""
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
    """Each element of the list, inside of ``.list.eval(...)``."""
    return Column(ref(ELEMENT))


def all_columns() -> Columns:
    """Every column of the input, for ``select`` and ``with_columns``: ``all_columns() * 2``."""
    return Columns(Value("columns", (), (None, ())))


@door
def columns_of(*types: Any) -> Columns:
    """Every column of one of these types, in the input's order, for ``select``, ``with_columns``.

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
    """The structural id of the row as uint64: ``mix64(lo ^ mix64(hi))``, null never.

    It stays with the row through filters, maps and shuffles, whatever the partitions and the run.
    Two rows of a file differ; of others one pair in 2**64 is alike, unless ``exact``, which gives
    all 128 bits as 16 bytes, in their order.
    """
    return Column(Value("row_id", (), (bool(exact),)))
