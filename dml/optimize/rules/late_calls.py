"""The rule of late calls calls row functions only for the rows that a slice keeps.

The rule moves slices past functions without a proof, so it runs after the normal form.
"""

from __future__ import annotations

from dml.data.row_slicing import SETTLING_ROWS
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.ops.row.map_rows import MapRows
from dml.ops.row.random_map import RandomMap
from dml.ops.slice.shard import Shard
from dml.ops.slice.sieve import Sieve
from dml.ops.slice.skip import Skip
from dml.ops.slice.take import Take
from dml.optimize.node_rebuild import moved
from dml.optimize.rule import rule


@rule(
    *(Take, Skip, Shard, Sieve),
    source="tf.data reorder_data_discarding_ops",
    over=(MapRows, RandomMap),
)
def slice_before_function(node: Node) -> Node | None:
    """A row function is called only for rows that a slice keeps, and for rows that settle types."""
    lower = node.inputs[0]
    if lower.batched or lower.rows is not Rows.SAME:
        return None
    first = 0 if lower.schema.known else SETTLING_ROWS
    match node:
        case Take(n=n) if n >= first:
            return _past(node, lower)
        case Sieve(begin=begin) if begin and begin >= first:
            return _past(node, lower)
        case Skip() | Shard() if not first:
            return _past(node, lower)
        case Skip(n=n) if n > first:
            given = Sieve(lower.inputs[0], first, n, 1, None)
            return node.replace(input=moved(lower, given, lower), n=first)
        case Shard(num_shards=step, index=index):
            given = Sieve(lower.inputs[0], first, None, step, index)
            return Sieve(moved(lower, given, lower), 0, first, step, index)
    return None


def _past(node: Node, lower: Node) -> Node:
    """Return ``node`` moved below ``lower``."""
    given = lower.inputs[0]
    return moved(lower, moved(node, given, given), node)
