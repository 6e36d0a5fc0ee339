"""Laws of several inputs move an operator into all inputs, or into one of them."""

from __future__ import annotations

from dml.expr.columns.value import Value
from dml.expr.node import Node
from dml.ops.merge.concat import Concat
from dml.ops.merge.paired import Paired
from dml.ops.merge.turns import Weaving
from dml.ops.merge.zip import ZIP, Zip
from dml.ops.row.rowwise import Env
from dml.ops.row.segment import Segment
from dml.ops.slice.take import Take
from dml.optimize.node_rebuild import beside, segment
from dml.optimize.rule import law, rule
from dml.optimize.rules.known_counts import most_elements
from dml.optimize.rules.normal_form import only, unchanged


@law(Segment, source="SQL predicate pushdown through UNION ALL", over=(Concat,))
def segment_before_concat(node: Node) -> Node | None:
    """Filters and columns that cannot fail and draw no random numbers may run in each input."""
    match node:
        case Segment(input=Concat() as lower) if node.total and not node.draws:
            return _in_each(node, lower)
    return None


@law(Segment, source="SQL projection pushdown through UNION ALL", over=(Weaving,))
def columns_before_mix(node: Node) -> Node | None:
    """Inputs of a mix or interleave need only the columns that are read above it."""
    match node:
        case Segment(input=Weaving() as lower, predicate=()) if node.total and not node.draws:
            return _in_each(node, lower)
        case Segment(input=Weaving() as lower) if len(node.reads) < len(lower.schema):
            made = lower.map_inputs(lambda each: only(each, node.reads))
            return segment(made, node.predicate, node.env, node)
    return None


@law(Segment, source="SQL projection pushdown", over=(Zip,))
def columns_before_zip(node: Node) -> Node | None:
    """Inputs of a zip need only the columns that are read above it."""
    match node:
        case Segment(input=Zip() as lower) if len(node.reads) < len(lower.schema):
            made = lower.map_inputs(lambda each: only(each, node.reads))
            return segment(made, node.predicate, node.env, node)
    return None


@rule(Zip, source="common sub-expressions of relational plans; self-join on a key, removed")
def zip_of_one_input(node: Node) -> Node | None:
    """A zip of different columns of the same rows becomes one input, which is read once."""
    match node:
        case Zip(inputs=sides) if all(side.schema.known for side in sides):
            below, kept, _ = _rows_of(sides[0])
            if any(_rows_of(side)[:2] != (below, kept) for side in sides[1:]):
                return None
            env = tuple(pair for side in sides for pair in _rows_of(side)[2])
            return paired(Segment(below, kept, env).placed(node.where), len(sides), node)
    return None


def _rows_of(side: Node) -> tuple[Node, tuple[Value, ...], Env]:
    """Return the node that provides the rows of ``side``, the filters on them, and its columns."""
    if isinstance(side, Segment):
        return side.input, side.predicate, side.env
    return side, (), unchanged(side.schema)


def paired(given: Node, sides: int, like: Zip) -> Node:
    """Return ``given`` with the row ids of the zip ``like``, as the node that replaces ``like``."""
    made = Paired(given, sides, ZIP + like.level)
    made.__dict__.update(ordinal=like.ordinal, level=like.level)
    return made.placed(like.where)


@rule(Take, source="limit pushdown through UNION ALL", over=(Concat,))
def take_before_concat(node: Node) -> Node | None:
    """take(n) of a concat needs at most the first n elements of each input."""
    match node:
        case Take(input=Concat() as lower):
            made = lower.map_inputs(lambda each: _first(each, node))
            return None if made is lower else node.replace(input=made)
    return None


def _first(given: Node, node: Take) -> Node:
    most = most_elements(given)
    return given if most is not None and most <= node.n else node.replace(input=given)


def _in_each(node: Segment, lower: Node) -> Node:
    """Return ``lower`` with ``node`` applied to each of its inputs."""
    return beside(lower, lambda each: segment(each, node.predicate, node.env, node), node)
