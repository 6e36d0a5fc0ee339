"""Laws of joins drop unneeded columns and rows before a join."""

from __future__ import annotations

from collections.abc import Collection

from dml.expr.columns.value import Value, substitute
from dml.expr.node import Node
from dml.ops.join.join import Join
from dml.ops.row.segment import Segment
from dml.optimize.node_rebuild import segment
from dml.optimize.rule import law
from dml.optimize.rules.normal_form import column, movable, only, unchanged

# Joins that keep the values of left (or right) rows, so that a filter of these may come before.
FILTERED_LEFT = ("inner", "left", "semi", "anti", "cross")
FILTERED_RIGHT = ("inner", "cross")


@law(Segment, source="SQL projection pushdown", over=(Join,))
def columns_before_join(node: Node) -> Node | None:
    """Both sides of a join need only their keys and the columns that are read above the join."""
    match node:
        case Segment(input=Join() as join):
            made = _narrowed(join, *_wanted(join, node.reads))
            return None if made is join else segment(made, node.predicate, node.env, node)
    return None


@law(Join, source="SQL projection pushdown")
def keys_before_semi_join(node: Node) -> Node | None:
    """The right side of a semi or anti join needs only its keys."""
    match node:
        case Join(paired=False) as join:
            made = _narrowed(join, set(join.input.schema), set(join.right_on))
            return None if made is join else made
    return None


@law(Segment, source="SQL predicate pushdown", over=(Join,))
def filter_before_join(node: Node) -> Node | None:
    """A filter on one side's columns may run before a join that needs none of the dropped rows.

    Joins with ``validate`` are excluded: they would miss rows with too many matches.
    """
    match node:
        case Segment(input=Join(validate="m:m") as join) if node.predicate:
            left = [part for part in node.predicate if _of_left(join, part)]
            right = [part for part in node.predicate if part not in left and _of_right(join, part)]
            if not left and not right:
                return None
            moved = {*left, *right}
            rest = tuple(part for part in node.predicate if part not in moved)
            names = {made: column(name) for name, made in join.added}
            renamed = [substitute(part, names, {}) for part in right]
            made = join.replace(
                input=_filtered(join.input, left), other=_filtered(join.other, renamed)
            )
            return segment(made, rest, node.env, node)
    return None


def _wanted(join: Join, reads: frozenset[str]) -> tuple[set[str], set[str]]:
    """Return the columns of each side that are keys, are read, or decide the suffix of a name."""
    left = set(reads & set(join.input.schema)) | set(join.left_on)
    right = set(join.right_on)
    for name, made in join.added if join.paired else ():
        if made in reads:
            right.add(name)
            left |= {name} & set(join.input.schema)
    return left, right


def _narrowed(join: Join, left: Collection[str], right: Collection[str]) -> Join:
    """Return ``join`` of inputs with only these columns; ``join`` itself if nothing changes."""
    input_, other = only(join.input, left), only(join.other, right)
    if input_ is join.input and other is join.other:
        return join
    return join.replace(input=input_, other=other)


def _filtered(node: Node, parts: list[Value]) -> Node:
    if not parts:
        return node
    return Segment(node, tuple(parts), unchanged(node.schema))


def _of_left(join: Join, part: Value) -> bool:
    return join.how in FILTERED_LEFT and movable(part, set(join.input.schema))


def _of_right(join: Join, part: Value) -> bool:
    return join.how in FILTERED_RIGHT and movable(part, {made for _, made in join.added})
