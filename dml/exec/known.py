"""This file says what is known of a pipeline without running it: its length, its files."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.expr.ops.batch import Batch
from dml.expr.ops.concat import Concat
from dml.expr.ops.repeat import Repeat
from dml.expr.ops.scan import Scan
from dml.expr.ops.skip import Skip
from dml.expr.ops.take import Take
from dml.expr.ops.zip import Zip
from dml.expr.sources.source import Source

Count = int | float | None


def counted(node: Node) -> Count:
    """How many elements ``node`` has: ``math.inf`` without end, None if only a run could tell."""
    counts: dict[int, Count] = {}
    for step in node.walk():
        given = [counts[id(each)] for each in step.inputs]
        counts[id(step)] = step.row_count if isinstance(step, Source) else _after(step, given)
    count = counts[id(node)]
    return math.inf if count is None and node.endless else count


def _after(step: Node, given: list[Count]) -> Count:
    """Elements after ``step``, whose inputs have as many as ``given``."""
    counts = [count for count in given if count is not None]
    if len(counts) < len(given):
        return None
    known = LENGTHS.get(type(step))
    if known is not None:
        return known(step, *counts)
    # a function of batches may return one without rows, which vanishes
    vanishing = step.batched and step.calls is not None
    kept = step.rows in (Rows.SAME, Rows.PERMUTED) and len(counts) == 1
    return counts[0] if kept and not vanishing else None


def _batches(step: Any, rows: int | float) -> Count:
    if rows == math.inf:
        return math.inf
    return int(rows // step.n if step.drop_last else -(-rows // step.n))


def _passes(step: Any, count: int | float) -> Count:
    return count and count * (math.inf if step.n is None else step.n)


# What the facts of these leave open: how many elements they keep or make.
LENGTHS: dict[type[Node], Callable[..., Count]] = {
    Take: lambda step, count: min(step.n, count),
    Skip: lambda step, count: max(0, count - step.n),
    Batch: _batches,
    Repeat: _passes,
    Concat: lambda _, *counts: sum(counts),
    Scan: lambda _, count: count,
    Zip: lambda _, *counts: min(counts),
}


def files_of(node: Node) -> list[str]:
    """Paths of the files that the sources of ``node`` read, in reading order, each once."""
    found = [
        each.path
        for step in node.walk()
        if isinstance(step, Source)
        for each in getattr(getattr(step, "files", None), "files", ())
    ]
    return list(dict.fromkeys(found))
