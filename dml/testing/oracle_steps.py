"""This file holds what the oracle's operators ask about a pipeline, and how it calls functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from dml.errors import DmlError, SchemaError, UDFError
from dml.expr.ops.cast import Cast
from dml.expr.ops.drop import Drop
from dml.expr.ops.fill_null import FillNull
from dml.expr.ops.rename import Rename
from dml.expr.ops.select import Select
from dml.expr.ops.unnest import Unnest
from dml.expr.ops.with_columns import WithColumns
from dml.expr.value import Value, col
from dml.testing import scalar_ids
from dml.testing.oracle_rows import Kinds

# Rows by which a function's types are settled where a shuffle has mixed the atoms.
SETTLING = 8192


def has_random(value: Value) -> bool:
    """True if a random number is drawn anywhere in the expression."""
    return value.op == "random" or any(has_random(arg) for arg in value.args)


def columns_written(node: Any, given: Kinds) -> dict[str, Value]:
    """What each output column of a column operator is, over the input's columns."""
    every = {name: col(name) for name in given}
    named: dict[type, Callable[[], Any]] = {
        Select: lambda: node.names,
        Drop: lambda: node.names,
        Rename: lambda: [old for old, _ in node.names],
        Cast: lambda: [name for name, _ in node.kinds],
        FillNull: lambda: [name for name, _ in node.fills],
        Unnest: lambda: node.names,
        WithColumns: list,
    }
    for name in named[type(node)]():
        if name not in given:
            raise SchemaError(f"{type(node).__name__} needs column {name!r}")
    if isinstance(node, Unnest):
        return _unnested(node, given)
    return MEANINGS[type(node)](node, every)


def _renamed(node: Rename, every: dict[str, Value]) -> dict[str, Value]:
    new = dict(node.names)
    names = [new.get(name, name) for name in every]
    if len(set(names)) < len(names):
        raise SchemaError("rename gives two columns one name")
    return dict(zip(names, every.values(), strict=True))


def _unnested(node: Unnest, given: Kinds) -> dict[str, Value]:
    out: dict[str, Value] = {}
    for name, kind in given.items():
        fields = {name: col(name)}
        if name in node.names:
            fields = {f.name: Value("struct.field", (col(name),), (f.name,)) for f in kind}
        if set(fields) & set(out):
            raise SchemaError("unnest gives two columns one name")
        out |= fields
    return out


def _dropped(node: Drop, every: dict[str, Value]) -> dict[str, Value]:
    kept = {name: value for name, value in every.items() if name not in node.names}
    if not kept:
        raise SchemaError("drop leaves no column")
    return kept


MEANINGS: dict[type, Callable[[Any, dict[str, Value]], dict[str, Value]]] = {
    Select: lambda node, every: {name: every[name] for name in node.names},
    Drop: _dropped,
    Rename: _renamed,
    WithColumns: lambda node, every: {**every, **dict(node.values)},
    Cast: lambda node, every: {
        **every, **{n: Value("cast", (col(n),), (kind, node.strict)) for n, kind in node.kinds}
    },
    FillNull: lambda node, every: {
        **every, **{n: Value("fill_null", (col(n), fill)) for n, fill in node.fills}
    },
}  # fmt: skip


def permutation(n: int, key: int) -> list[int]:
    """Which of n elements stands at each place of a full shuffle."""
    if n <= 4096:
        return scalar_ids.window_permutation(key, n)
    return [scalar_ids.index_permutation(n, key, place) for place in range(n)]


@dataclass
class Group:
    """Rows by which types are settled, and the error that came after them, if one did."""

    rows: list[Any]
    error: DmlError | None = None


def grouped(rows: Iterator[Any], *, mixed: bool) -> Iterator[Group]:
    """Atom by atom; where atoms are ``mixed``, runs of 8192 rows."""
    ahead: list[Any] = []
    while True:
        group = Group(ahead)
        ahead = []
        try:
            if mixed:
                group.rows += islice(rows, SETTLING)
            else:
                ahead = _one_atom(rows, group)
        except DmlError as error:
            group.error = error
        if not group.rows and group.error is None:
            return
        yield group


def _one_atom(rows: Iterator[Any], group: Group) -> list[Any]:
    """Fill ``group`` with the rest of its atom; returns the first row of the next."""
    for one in rows:
        if group.rows and one.row.atom != group.rows[0].row.atom:
            return [one]
        group.rows.append(one)
    return []


def seen(one: Any) -> dict[str, Any]:
    """The row as a function sees it: a dict of its own, arrays that cannot be written."""
    out = dict(one.row.values)
    for name, value in out.items():
        if isinstance(value, np.ndarray):
            out[name] = value.view()
            out[name].flags.writeable = False
    return out


def called(fn: Callable[..., Any], *arguments: Any) -> Any:
    """What a user's function returns; UDFError if it raises."""
    try:
        return fn(*arguments)
    except Exception as error:
        raise UDFError(f"{type(error).__name__}: {error}") from error


def spared(node: Any, fn: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a user's function returns, alone in a list; nothing where it raises and may cost it."""
    try:
        return [called(fn, *arguments)]
    except UDFError:
        if node.on_error == "skip":
            return []
        raise


def called_many(fn: Callable[[Any], Any], row: dict[str, Any]) -> Iterator[Any]:
    """What a user's function yields; UDFError where it raises."""
    try:
        yield from fn(row)
    except Exception as error:
        raise UDFError(f"{type(error).__name__}: {error}") from error


def declared(node: Any) -> Kinds | None:
    """The types that a user declared for what a function returns, if any."""
    return None if node.declared is None else dict(node.declared)
