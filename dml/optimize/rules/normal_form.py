"""The normal form of rows and columns is defined by these laws.

Column operators and filters become segments (a predicate, then columns, over one input), and
neighbouring segments become one. The rules known as map fusion, filter pushdown past a map,
projection merging, dead columns and no-op removal are all cases of these few laws.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from dml.data.schema import Schema
from dml.expr.columns.value import Value, col, lit, operands, substitute
from dml.expr.node import Node
from dml.ops.row.filter import Filter
from dml.ops.row.rowwise import Env, RowWise
from dml.ops.row.segment import Segment
from dml.optimize.node_rebuild import moved, segment
from dml.optimize.rule import law

# A merged segment is one program: deeper or wider ones would compile for longer than they run.
# benchmarks/bench_optimize.py checks that optimising with both limits is fast enough.
MOST_DEPTH = 64
MOST_PARTS = 64


@lru_cache(maxsize=4096)
def column(name: str) -> Value:
    """Return the reference to column ``name``, always as the same object."""
    return col(name)


@lru_cache(maxsize=256)
def unchanged(schema: Schema) -> Env:
    """Return columns that pass on every column of ``schema``; equal schemas share one tuple."""
    return tuple((name, column(name)) for name in schema)


@law(RowWise, source="value numbering; OPTIMIZER 1.1")
def columns_as_segment(node: Node) -> Node | None:
    """select, drop, rename, with_columns, cast, fill_null are one segment without a predicate."""
    match node:
        case RowWise() if node.inputs[0].schema.known:
            given = node.inputs[0]
            return segment(given, (), typed(node.env(given.schema), node.schema), node)
    return None


def typed(env: tuple[tuple[str, Value], ...], schema: Schema) -> tuple[tuple[str, Value], ...]:
    """Return ``env`` with each bare literal typed as the column of its name in ``schema``.

    A bare literal has the type of the operand beside it. If it replaced a column as it is, it could
    change the type of expressions over that column.
    """
    if not any(value.op == "lit" for _, value in env):
        return env
    return tuple(
        (name, lit(value.params[0], schema[name]) if value.op == "lit" else value)
        for name, value in env
    )


@law(Filter, source="tf.data, section 3.3")
def filter_as_segment(node: Node) -> Node | None:
    """filter(p & q) is a segment that keeps rows where p, then q, are true, and every column."""
    match node:
        case Filter(input=given) if given.schema.known:
            parts = [*operands(node.parts, "and", "bit_and")]  # ``&`` of booleans is ``and``
            return segment(given, distinct(parts), unchanged(given.schema), node)
    return None


def distinct(parts: list[Value]) -> tuple[Value, ...]:
    """Return each part once, at its first place."""
    return tuple(dict.fromkeys(parts)) if len(parts) > 1 else tuple(parts)


def _merged(outer: Segment, inner: Segment) -> Segment | None:
    """Return the outer segment over the inner one's input, with the inner columns substituted."""
    env = dict(inner.env)
    if not _fits(outer, inner, env):
        return None
    memo: dict[int, Value] = {}
    pairs = {pair[0]: pair for pair in inner.env}
    columns = tuple(_placed(pair, pairs, env, memo) for pair in outer.env)
    predicate = inner.predicate
    if outer.predicate:
        added = [substitute(part, env, memo) for part in outer.predicate]
        predicate = distinct([*predicate, *added])
    return segment(inner.input, predicate, columns, outer)


def _placed(
    pair: tuple[str, Value],
    pairs: dict[str, tuple[str, Value]],
    env: dict[str, Value],
    memo: dict[int, Value],
) -> tuple[str, Value]:
    """Return a column over the inner segment's input; for an unchanged one, the inner pair itself.

    Wide tables are mostly columns that are passed on: sharing their pairs saves time and memory.
    """
    name, value = pair
    if value.op == "col":
        found = pairs[value.params[0]]
        return found if found[0] == name else (name, found[1])
    return name, substitute(value, env, memo)


def _fits(outer: Segment, inner: Segment, env: dict[str, Value]) -> bool:
    """Return True if the merged segment is a program of acceptable depth and number of parts."""
    if len(outer.predicate) + len(inner.predicate) > MOST_PARTS:
        return False
    values = (*outer.predicate, *(value for _, value in outer.env if value.op != "col"))
    return all(
        value.depth + env[name].depth <= MOST_DEPTH for value in values for name in value.refs
    )


@law(Segment, source="tf.data, section 3.3.1 (map fusion); SQL projection merging", over=(Segment,))
def merge_columns(node: Node) -> Node | None:
    """Columns computed from columns are computed from the input directly."""
    match node:
        case Segment(input=Segment() as inner, predicate=()):
            return _merged(node, inner)
    return None


@law(
    Segment,
    source="tf.data, section 3.3.1 (map and filter fusion); SQL predicate pushdown",
    over=(Segment,),
)
def filter_before_columns(node: Node) -> Node | None:
    """A filter above columns and filters becomes a filter on the input, evaluated after theirs."""
    match node:
        case Segment(input=Segment() as inner) if node.predicate:
            return _merged(node, inner)
    return None


@law(Segment, source="tf.data noop_elimination")
def drop_identity_segment(node: Node) -> Node | None:
    """A segment that keeps all rows and all columns as they are equals its input."""
    match node:
        case Segment(input=given, predicate=()) if given.schema.names == node.schema.names and all(
            value.op == "col" and value.params[0] == name for name, value in node.env
        ):
            return given
    return None


def only(given: Node, names: Collection[str]) -> Node:
    """Return ``given`` with only those of its columns that are among ``names``."""
    env = tuple((name, column(name)) for name in given.schema if name in names)
    return given if len(env) == len(given.schema) else Segment(given, (), env)


def movable(part: Value, names: Collection[str]) -> bool:
    """Return True if ``part`` reads only ``names`` and its value does not depend on its place."""
    return bool(part.refs) and part.refs <= set(names) and part.total and not part.draws


def parts_lowered(
    node: Segment, lower: Node, names: Collection[str], as_: dict[str, Value] | None = None
) -> Node | None:
    """Return ``node`` with its parts that read only ``names`` moved below ``lower``.

    ``as_`` maps each renamed column to its value below ``lower``. Return None without such parts.
    """
    parts = [part for part in node.predicate if movable(part, names)]
    if not parts:
        return None
    given = lower.inputs[0]
    below = tuple(substitute(part, as_, {}) if as_ else part for part in parts)
    rest = tuple(part for part in node.predicate if part not in parts)
    made = moved(lower, segment(given, below, unchanged(given.schema), given), lower)
    return segment(made, rest, node.env, node)
