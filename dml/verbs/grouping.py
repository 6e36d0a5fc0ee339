"""This file holds what verbs of whole pipelines write: sorting, groups of rows, and their figures.

Keys that are expressions become columns while they are needed, and leave afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from dml.errors import PlanError
from dml.expr.column import Column
from dml.expr.ops.sort import Sort

D = TypeVar("D")


def sorted_by(rows: D, by: Any, descending: Any, *, nulls_last: bool) -> D:
    """``rows`` in order of ``by``."""
    given = list(by) if isinstance(by, list | tuple) else [by]
    ways = _ways(descending, len(given))
    made: dict[str, Column] = {}
    names = [_named(key, made, "sort") for key in given]
    if not names:
        raise PlanError("sort by nothing", why="no key was given", try_='.sort("x")')
    keyed: Any = _with(rows, made)
    ordered = _then(keyed, Sort, tuple(names), ways, bool(nulls_last))
    found: D = ordered.drop(*made) if made else ordered
    return found


def _with(rows: Any, made: dict[str, Column]) -> Any:
    return rows.with_columns(**made) if made else rows


def _named(key: Any, made: dict[str, Column], verb: str) -> str:
    """The column of a key; of an expression one that is to be made, which is noted in ``made``."""
    if isinstance(key, str):
        return key
    if not isinstance(key, Column):
        raise PlanError(
            f"{verb} by {key!r}",
            why=f"it is of type {type(key).__name__}; keys are names or expressions",
            try_=f'.{verb}("x") or .{verb}(dml.col("x") % 10)',
        )
    if key.value.op == "col":
        return str(key.value.params[0])
    name = f"key {len(made) + 1} of {verb}"
    made[name] = key
    return name


def _ways(descending: Any, keys: int) -> tuple[bool, ...]:
    ways = tuple(descending) if isinstance(descending, Sequence) else (descending,) * keys
    if len(ways) == keys and all(isinstance(way, bool) for way in ways):
        return ways
    raise PlanError(
        f"sort with descending={descending!r}",
        why=f"it is one boolean, or one for each of {keys} keys",
        try_="descending=True",
    )


def _then(rows: Any, kind: Any, *fields: Any) -> Any:
    return rows._then(kind, *fields)  # noqa: SLF001 - a handle of the same house
