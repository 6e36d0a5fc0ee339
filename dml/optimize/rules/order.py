"""Laws of order and position move operators past shuffles, slices, batches and passes."""

from __future__ import annotations

from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.ops.batch.batch import Batch
from dml.ops.cache.cache import Cache
from dml.ops.row.segment import Segment
from dml.ops.shuffle.shuffle_all import ShuffleAll
from dml.ops.shuffle.shuffle_atoms import ShuffleAtoms
from dml.ops.shuffle.shuffle_window import ShuffleWindow
from dml.ops.slice.repeat import Repeat
from dml.ops.slice.shard import Shard
from dml.ops.slice.skip import Skip
from dml.ops.slice.take import Take
from dml.ops.sort.sort import Sort
from dml.optimize.node_rebuild import moved, segment
from dml.optimize.rule import law
from dml.optimize.rules.normal_form import unchanged


def swapped(node: Node, lower: Node) -> Node:
    """Return ``lower`` over ``node`` over the input of ``lower``: both change places."""
    return moved(lower, moved(node, lower.inputs[0], node), node)


@law(
    Segment,
    source="tf.data map_vectorization, reorder_data_discarding_ops",
    over=(Take, Skip, ShuffleWindow, Batch),
)
def columns_before_position(node: Node) -> Node | None:
    """Columns that cannot fail may be computed before take, skip, batch or a window shuffle."""
    match node:
        case Segment(input=Take() | Skip() | ShuffleWindow() | Batch() as lower, predicate=()) if (
            node.total
        ):
            return swapped(node, lower)
    return None


@law(Segment, source="keyed shuffle; OPTIMIZER 1.2", over=(ShuffleAll, ShuffleAtoms))
def segment_before_keyed_shuffle(node: Node) -> Node | None:
    """Filters and columns that cannot fail may run before a shuffle that orders rows by a key."""
    match node:
        case Segment(input=ShuffleAll() | ShuffleAtoms() as lower) if node.total:
            return swapped(node, lower)
    return None


@law(Segment, source="SQL predicate pushdown past a stable sort", over=(Sort,))
def filter_before_sort(node: Node) -> Node | None:
    """A filter that cannot fail keeps the same rows, in the same order, before they are sorted."""
    match node:
        case Segment(input=Sort() as lower) if node.predicate and node.total:
            given = lower.input
            kept = segment(given, node.predicate, unchanged(given.schema), lower)
            return segment(moved(lower, kept, lower), (), node.env, node)
    return None


@law(Segment, source="tf.data shuffle_and_repeat_fusion; OPTIMIZER 1.3", over=(Repeat,))
def segment_before_repeat(node: Node) -> Node | None:
    """Filters and columns that cannot fail and draw no random numbers may run before repeat."""
    match node:
        case Segment(input=Repeat() as lower) if node.total and not node.draws:
            # an endless repeat stops at an empty pass, so that no filter may empty just one
            if lower.n is None and node.predicate and not same_rows_each_pass(lower.input):
                return None
            return swapped(node, lower)
    return None


def same_rows_each_pass(node: Node) -> bool:
    """Return True if the elements of ``node`` are the same set in every epoch, in any order.

    Functions may return different values at each call, and random operators in each epoch. A slice
    of a shuffled stream, or its first rows, differ in every epoch.
    """
    ordered = False
    for step in reversed(node.chain()):
        if len(step.inputs) > 1:
            return False
        if (step.calls and step.inputs) or (isinstance(step, Segment) and step.draws):
            return False
        if step.random and (ordered or step.rows is not Rows.PERMUTED):
            return False
        ordered = ordered or not step.rows.orderless
    return True


@law(Take, Skip, source="tf.data batch_parallelization, slice motion", over=(Batch,))
def slice_before_batch(node: Node) -> Node | None:
    """The first k batches of n rows are made of the first k * n rows."""
    match node:
        case Take(input=Batch() as lower) | Skip(input=Batch() as lower):
            return lower.replace(input=node.replace(input=lower.input, n=node.n * lower.n))
    return None


@law(Skip, source="tf.data, slice merging", over=(Take,))
def skip_before_take(node: Node) -> Node | None:
    """skip(n) of take(m) is take(m - n) of skip(n)."""
    match node:
        case Skip(input=Take() as lower):
            rest = max(lower.n - node.n, 0)
            return lower.replace(input=node.replace(input=lower.input), n=rest)
    return None


@law(Take, source="tf.data, slice merging", over=(Take,))
def merge_takes(node: Node) -> Node | None:
    """take(n) of take(m) is take(min(n, m))."""
    match node:
        case Take(input=Take() as inner):
            return inner.replace(n=min(node.n, inner.n))
    return None


@law(Skip, source="tf.data, slice merging", over=(Skip,))
def merge_skips(node: Node) -> Node | None:
    """skip(n) of skip(m) is skip(n + m)."""
    match node:
        case Skip(input=Skip() as inner):
            return inner.replace(n=node.n + inner.n)
    return None


@law(Shard, source="tf.data autoshard, slice merging", over=(Shard,))
def merge_shards(node: Node) -> Node | None:
    """Every n-th of every m-th element is every (n * m)-th."""
    match node:
        case Shard(input=Shard() as inner):
            step, first = inner.num_shards, inner.index
            return inner.replace(num_shards=step * node.num_shards, index=first + step * node.index)
    return None


@law(Skip, Shard, source="tf.data noop_elimination")
def drop_noop_position(node: Node) -> Node | None:
    """skip(0) and shard(1, 0) change nothing, and are dropped.

    A window shuffle of one row stays, since types settle at a shuffle.
    """
    match node:
        case Skip(input=given, n=0) | Shard(input=given, num_shards=1):
            return given
    return None


@law(Cache, source="tf.data noop_elimination", over=(Cache,))
def drop_second_cache(node: Node) -> Node | None:
    """A cache directly above a cache of the same tier is dropped."""
    match node:
        case Cache(input=Cache() as lower) if lower.tier == node.tier:
            return lower
    return None


@law(
    ShuffleAll,
    source="tf.data shuffle fusion; last key order wins",
    over=(ShuffleAtoms, ShuffleAll, ShuffleWindow),
)
def drop_overruled_shuffle(node: Node) -> Node | None:
    """A shuffle directly below a full shuffle is dropped, as its order is lost anyway.

    A shuffle of atoms stays if types below it are unknown: the rows read first will settle them.
    """
    match node:
        case ShuffleAll(input=ShuffleAtoms() as inner):
            settled = all(below.schema.known for below in inner.inputs[0].walk())
            return node.replace(input=inner.input) if settled else None
        case ShuffleAll(input=ShuffleAll() | ShuffleWindow() as inner):
            return node.replace(input=inner.input)
    return None
