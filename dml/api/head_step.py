"""Steps that eager verbs append to a pipeline: first elements, batches, selected columns."""

from __future__ import annotations

from dml.checks import element_count as check_count
from dml.expr.node import Node
from dml.ops.batch.batch import Batch
from dml.ops.row.select import Select
from dml.ops.slice.take import Take

__all__ = ["batches", "check_count", "first", "only"]


def first(node: Node, n: int) -> Node:
    """Append a step that takes the first ``n`` elements."""
    return Take(node, n)


def batches(node: Node, n: int, *, drop_last: bool = False) -> Node:
    """Append a step that makes batches of ``n`` rows. Raise PlanError if elements are batches."""
    return Batch(node, n, drop_last)


def only(node: Node, columns: tuple[str, ...]) -> Node:
    """Append a step that selects ``columns``, so that no other column is read."""
    return Select(node, columns)
