"""Arguments that select several columns are expanded here, once the schema is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from dml.data.list_marks import plain
from dml.data.schema import CODES, Schema, shape_of
from dml.errors import PlanError, SchemaError
from dml.expr.columns.column import Column, wrap
from dml.expr.columns.operators import Aliased
from dml.expr.columns.value import Value, bottom_up, col, value_text, walk
from dml.kernels.functions.function import is_plain_list, is_text

Named = tuple[str, Value]

HOLDS: dict[str, Callable[[pa.DataType], bool]] = {
    "numeric": lambda kind: kind in CODES and kind != pa.bool_(),
    "integer": lambda kind: bool(pa.types.is_integer(kind)),
    "floating": lambda kind: kind in CODES and bool(pa.types.is_floating(kind)),
    "text": is_text,
    "list": is_plain_list,
    "tensor": lambda kind: bool(shape_of(kind)),
    "time": lambda kind: bool(pa.types.is_temporal(kind)),
}


def named(
    given: Sequence[Any], more: Mapping[str, Any], schema: Schema, verb: str
) -> tuple[Named, ...]:
    """Return output columns as (name, value) pairs; ``more`` has those given by keyword.

    Each of ``given`` is a column's name, an expression, or a selection of columns. An expression
    takes the name of the one column that it reads. Raise PlanError for duplicate names.
    """
    found = [*_each(given, schema, verb), *keyed(more, verb)]
    names = [name for name, _ in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise PlanError(
            f"{verb} names column {twice[0]!r} twice",
            why="names in a row are different",
            try_=f".{verb}(other=...) for one of them",
        )
    return tuple(found)


def keyed(given: Mapping[str, Any], verb: str) -> tuple[Named, ...]:
    """Return columns given by keyword; raise PlanError for text, which could be a column name."""
    for name, value in given.items():
        if isinstance(value, str):
            raise PlanError(
                f"{verb} with {name}={value!r}",
                why="it may mean the column of that name, or the text itself",
                try_=f"{name}=dml.col({value!r}), or {name}=dml.lit({value!r})",
            )
    return tuple((name, wrap(value)) for name, value in given.items())


def _each(given: Sequence[Any], schema: Schema, verb: str) -> Iterator[Named]:
    for each in given:
        if isinstance(each, str):
            yield each, col(each)
        elif isinstance(each, Aliased):
            yield each.name, each.value
        elif isinstance(each, Column):
            yield from _of_column(each.value, schema, verb)
        else:
            raise PlanError(
                f"{verb} cannot take {each!r}",
                why=f"it is of type {type(each).__name__}",
                try_="take(n), slice(offset, n) or gather_every(n), which select rows"
                if isinstance(each, range | slice)
                else "names, expressions, or name=expression",
            )


def _of_column(value: Value, schema: Schema, verb: str) -> Iterator[Named]:
    several = [each for each in walk([value]) if each.op == "columns"]
    if not several:
        yield _name_of(value, verb), value
        return
    if any(each != several[0] for each in several):
        raise PlanError(
            f"{value_text(value)} stands for more than one set of columns",
            why=" and ".join(dict.fromkeys(map(value_text, several))),
            try_="one of them in each expression",
        )
    for name in chosen(several[0], schema, verb):
        one = partial(_placed, col(name))
        yield name, bottom_up([value], one)[id(value)]


def _name_of(value: Value, verb: str) -> str:
    if len(value.refs) == 1:
        return next(iter(value.refs))
    raise PlanError(
        f"{verb} has no name for {value_text(value)}",
        why=f"it reads {len(value.refs)} columns, and takes its name from one",
        try_=f".{verb}(name=...)",
    )


def chosen(several: Value, schema: Schema, verb: str) -> list[str]:
    """Return the names of the selected columns; raise SchemaError if there are none."""
    kinds, left = several.params
    if not schema.known:
        raise SchemaError(
            f"{verb} cannot tell what {value_text(several)} stands for",
            why="the columns are known only when it runs",
            try_="schema=... where the function above is given",
        )
    for name in left:
        schema.require(name, "exclude")
    found = [n for n, k in schema.items() if n not in left and (kinds is None or _is_of(k, kinds))]
    if not found:
        raise SchemaError(
            f"{value_text(several)} stands for no column",
            why=f"the input has {schema}",
            try_="others",
        )
    return found


def _is_of(kind: pa.DataType, kinds: tuple[Any, ...]) -> bool:
    given = plain(kind)
    return any(HOLDS[k](given) if isinstance(k, str) else given == k for k in kinds)


def _placed(column: Value, value: Value) -> Value:
    return column if value.op == "columns" else value
