"""This file holds the laws that the normal form of rows and columns is made of.

Column operators and filters become segments (a predicate, then columns, over one input), and
neighbouring segments become one. What rules call map fusion, filter pushdown past a map, projection
merging, dead columns and no-op removal are all cases of these few laws.
"""

from __future__ import annotations

from dml.expr.node import Node
from dml.expr.ops.filter import Filter
from dml.expr.ops.segment import Segment
from dml.expr.rowwise import RowWise
from dml.expr.value import Value, col, substitute
from dml.optimize.rule import law


@law(RowWise, source="value numbering; OPTIMIZER 1.1")
def columns_as_segment(node: Node) -> Node | None:
    """select, drop, rename, with_columns, cast, fill_null are one segment without a predicate."""
    match node:
        case RowWise() if node.inputs[0].schema.known:
            given = node.inputs[0]
            return Segment(given, (), node.env(given.schema)).placed(node.where)
    return None


@law(Filter, source="tf.data, section 3.3")
def filter_as_segment(node: Node) -> Node | None:
    """filter(p) is a segment that keeps every column as it is."""
    match node:
        case Filter(input=given) if given.schema.known:
            env = tuple((name, col(name)) for name in given.schema)
            return Segment(given, node.parts, env).placed(node.where)
    return None


def _merged(outer: Segment, inner: Segment) -> Segment:
    """The outer segment over the inner one's input, its columns replaced by what they are."""
    env = dict(inner.env)
    memo: dict[int, Value] = {}
    added = tuple(substitute(part, env, memo) for part in outer.predicate)
    new = tuple(part for part in added if part not in inner.predicate)
    columns = tuple((name, substitute(value, env, memo)) for name, value in outer.env)
    return Segment(inner.input, (*inner.predicate, *new), columns).placed(outer.where)


@law(Segment, source="tf.data, section 3.3.1 (map fusion); SQL projection merging")
def merge_columns(node: Node) -> Node | None:
    """Columns of columns are columns of the input."""
    match node:
        case Segment(input=Segment() as inner, predicate=()):
            return _merged(node, inner)
    return None


@law(Segment, source="tf.data, section 3.3.1 (map and filter fusion); SQL predicate pushdown")
def filter_before_columns(node: Node) -> Node | None:
    """A filter over columns and filters is one filter over the input, tried after theirs."""
    match node:
        case Segment(input=Segment() as inner) if node.predicate:
            return _merged(node, inner)
    return None


@law(Segment, source="tf.data noop_elimination")
def drop_identity_segment(node: Node) -> Node | None:
    """A segment that keeps all rows and all columns as they are is its input."""
    match node:
        case Segment(input=given, predicate=()) if given.schema.names == node.schema.names and all(
            value.op == "col" and value.params[0] == name for name, value in node.env
        ):
            return given
    return None
