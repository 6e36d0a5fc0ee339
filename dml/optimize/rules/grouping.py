"""Laws of grouping move operators past sorts, groups, and rows that become several or none."""

from __future__ import annotations

import pyarrow as pa

from dml.expr.node import Node
from dml.ops.batch.batch import Batch
from dml.ops.batch.unbatch import Unbatch
from dml.ops.group.aggregate import Aggregate
from dml.ops.group.key_runs import FirstOfRun
from dml.ops.row.explode import Explode
from dml.ops.row.segment import Segment
from dml.ops.shuffle.shuffle_all import ShuffleAll
from dml.ops.slice.part import Part
from dml.ops.sort.sort import Sort
from dml.optimize.node_rebuild import on
from dml.optimize.rule import law
from dml.optimize.rules.normal_form import parts_lowered
from dml.optimize.rules.order import swapped


@law(Segment, source="SQL predicate pushdown past GROUP BY", over=(Aggregate, FirstOfRun))
def filter_before_groups(node: Node) -> Node | None:
    """A filter on the keys may run before the groups are formed: it keeps the same groups.

    Float keys are excluded: a group of 0.0 and -0.0 shows only one of them as its key.
    """
    match node:
        case Segment(input=Aggregate() | FirstOfRun() as lower) if node.predicate:
            below = lower.inputs[0]
            # runs of equal keys are groups only if the rows are sorted by the keys
            if isinstance(below, Sort) and {*below.names[: len(lower.keys)]} == {*lower.keys}:
                kinds = below.schema
                keys = [name for name in lower.keys if not pa.types.is_floating(kinds[name])]
                return parts_lowered(node, lower, keys)
    return None


@law(Segment, source="SQL predicate pushdown past UNNEST", over=(Explode,))
def filter_before_explode(node: Node) -> Node | None:
    """A filter on columns that are not exploded may run before the explode."""
    match node:
        case Segment(input=Explode() as lower) if node.predicate:
            return parts_lowered(node, lower, [n for n in lower.schema if n not in lower.names])
    return None


@law(Segment, source="keyed split; OPTIMIZER 1.2", over=(Part,))
def segment_before_part(node: Node) -> Node | None:
    """Filters and columns that cannot fail may run before a split that depends on row ids only."""
    match node:
        case Segment(input=Part() as lower) if node.total:
            return swapped(node, lower)
    return None


@law(Sort, source="sort collapse", over=(Sort,))
def merge_sorts(node: Node) -> Node | None:
    """Two stable sorts in sequence are one sort, by the keys of the later sort first."""
    match node:
        case Sort(input=Sort(most=None) as inner) if node.nulls_last == inner.nulls_last:
            ways = dict(zip(node.names, node.descending, strict=True))
            for name, way in zip(inner.names, inner.descending, strict=True):
                ways.setdefault(name, way)
            return node.replace(
                input=inner.input, names=tuple(ways), descending=tuple(ways.values())
            )
    return None


@law(ShuffleAll, source="redundant sort elimination", over=(Sort,))
def drop_overruled_sort(node: Node) -> Node | None:
    """A sort directly below a full shuffle is dropped: the order is lost anyway."""
    match node:
        case ShuffleAll(input=Sort(most=None) as inner) if all(
            below.schema.known for below in inner.walk()
        ):
            return node.replace(input=inner.input)
    return None


@law(Batch, source="rebatch elimination", over=(Unbatch,))
def merge_batches(node: Node) -> Node | None:
    """Batching the rows of batches is the same as batching the original rows."""
    match node:
        case Batch(input=Unbatch(input=Batch(drop_last=False) as inner)):
            return on(node, inner.input)
    return None
