"""This file makes the step that an eager verb adds: some elements, batches, some columns."""

from __future__ import annotations

from dml.expr.node import Node
from dml.expr.ops.batch import Batch
from dml.expr.ops.select import Select
from dml.expr.ops.take import Take
from dml.expr.ops.take import count as check_count

__all__ = ["batches", "check_count", "first", "only"]


def first(node: Node, n: int) -> Node:
    """The first ``n`` elements."""
    return Take(node, n)


def batches(node: Node, n: int, *, drop_last: bool = False) -> Node:
    """The rows in batches of ``n``; PlanError if they are batches already."""
    return Batch(node, n, drop_last)


def only(node: Node, columns: tuple[str, ...]) -> Node:
    """These columns alone: no other is read for what is asked of them."""
    return Select(node, columns)
