"""Pushdown moves columns, predicates, slices and read orders into the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import takewhile

from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.io.partial_source import Leading
from dml.io.source import Source
from dml.ops.cache.stored import settled_epochs
from dml.ops.row.segment import Segment
from dml.ops.shuffle.shuffle_all import ShuffleAll
from dml.ops.shuffle.shuffle_atoms import ShuffleAtoms
from dml.ops.slice.repeat import Repeat
from dml.ops.slice.seek import Seek
from dml.ops.slice.skip import Skip
from dml.ops.slice.take import Take
from dml.ops.unary import SameColumns
from dml.optimize.node_rebuild import on
from dml.optimize.rule import Split, lowering, whole
from dml.optimize.rules.constants import FALSE
from dml.optimize.rules.known_counts import one_to_one
from dml.physical.plan import Stage

NOTHING: frozenset[str] = frozenset()
# Operators that pass on all columns, and read none but those in ``looks_at``.
BLIND = (Rows.SLICE, Rows.PERMUTED, Rows.GROUPED, Rows.WINDOWS, Rows.REPEATED)


@whole(source="SQL projection pushdown, from the end of the pipeline")
def dead_columns(root: Node) -> Node:
    """Columns that no later operator reads are not computed.

    The columns that later operators read and pass on determine which are needed. Users' functions
    count as reading all columns, since fingerprints contain the remaining columns.
    """
    below, *rest = root.chain()
    for old, new in zip(rest, alive(rest, functions=False), strict=True):
        below = new.replace(input=below) if new is not old else on(old, below)
    return below


def alive(nodes: Sequence[Node], *, functions: bool) -> list[Node]:
    """Return consecutive ``nodes`` whose segments compute only columns that later ones read.

    With ``functions``, users' functions count as reading only the columns that they declare, else
    all; no fingerprint depends on this.
    """
    found: list[Node] = []
    wanted: frozenset[str] | None = None
    for node in reversed(nodes):
        if isinstance(node, Segment) and wanted is not None:
            env = tuple((name, value) for name, value in node.env if name in wanted)
            named = (node.named or node.env) if functions else ()
            less = len(env) < len(node.env)
            found.append(node.replace(env=env, named=named) if less else node)
        else:
            found.append(node)
        wanted = _wanted_below(found[-1], wanted, functions=functions)
    return found[::-1]


def _wanted_below(
    node: Node, above: frozenset[str] | None, *, functions: bool
) -> frozenset[str] | None:
    """Return the input columns that ``node`` needs if its output columns ``above`` are read."""
    called, passes = functions and node.calls is not None, passes_columns(node)
    reads = node.function_reads if called else looked_at(node)
    if not passes and not (called and isinstance(node, SameColumns)):
        return reads
    if above is None or (called and reads is None):
        return None
    return above | (reads or NOTHING)


def passes_columns(node: Node) -> bool:
    """Return True if the operator passes on all columns, and reads only ``looks_at``."""
    return node.rows in BLIND or node.hands_on


def looked_at(node: Node) -> frozenset[str] | None:
    """Return the columns that the operator reads; None if it does not name them."""
    return node.reads if isinstance(node, Segment) else node.looks_at


@lowering(source="SQL projection pushdown into the reader")
def projection_into_source(stage: Stage, above: tuple[Node, ...]) -> Split:
    """Only columns that an operator reads are computed and decoded."""
    count, nodes = len(stage.steps), alive((*stage.steps, *above), functions=True)
    stage, above = dataclasses.replace(stage, steps=tuple(nodes[:count])), tuple(nodes[count:])
    wanted = wanted_by(nodes)
    if wanted is None:
        return stage, above
    columns = tuple(name for name in stage.source.schema if name in wanted)
    return dataclasses.replace(stage, columns=columns), above


def wanted_by(nodes: Sequence[Node]) -> frozenset[str] | None:
    """Return the input columns that the operators ``nodes`` read; None if they may read all."""
    wanted: frozenset[str] | None = None
    for node in reversed(nodes):
        wanted = _wanted_below(node, wanted, functions=True)
    return wanted


@lowering(source="SQL predicate pushdown; zone maps, Moerkotte 1998")
def filter_into_source(stage: Stage, above: tuple[Node, ...]) -> Split:
    """Units that statistics prove to have no row for the first predicate are not read."""
    match stage.steps:
        case (Segment(predicate=parts), *_) if parts:
            # a part after one that may raise an error may rely on the rows that this one removes
            usable = takewhile(lambda part: part.total and not part.draws, parts)
            return dataclasses.replace(stage, predicate=tuple(usable)), above
    return stage, above


@lowering(source="late materialisation in column stores, Abadi 2007")
def filter_columns_first(stage: Stage, above: tuple[Node, ...]) -> Split:
    """If few units have a passing row, columns of the filter are decoded before the others."""
    looked_at = frozenset[str]().union(*(part.refs for part in stage.predicate))
    first = tuple(name for name in stage.columns if name in looked_at)
    lacking = len(first) < len(looked_at) or not 0 < len(first) < len(stage.columns)
    if lacking or not stage.source.columns_apart or isinstance(stage.order, ShuffleAll):
        return stage, above
    return dataclasses.replace(stage, first=first), above


@lowering(source="index shuffle of random-access data sets")
def shuffle_into_source(stage: Stage, above: tuple[Node, ...]) -> Split:
    """A source with random access is read in the order of a full shuffle."""
    match above:
        case (ShuffleAll() as node, *rest) if (
            node.ranked_source is not None
            and all(map(silent, stage.steps))
            and not settled_epochs(stage.steps)  # rows are stored by the unit they are from
            and (source := stage.source.addressed()) is not None
        ):
            return dataclasses.replace(stage, source=source, order=node), tuple(rest)
    return stage, above


def pieces_in_order(stage: Stage, above: tuple[Node, ...]) -> Stage:
    """Return the stage with the order of a shuffle of atoms, which only the reader can apply."""
    match above:
        case (ShuffleAtoms() as node, *_):
            return dataclasses.replace(stage, order=node)
    return stage


@lowering(source="tf.data reorder_data_discarding_ops; limit pushdown")
def skip_into_source(stage: Stage, above: tuple[Node, ...]) -> Split:
    """If rows correspond one-to-one to the source's, reading begins after the skipped rows.

    Functions that are not proven pure are also called for skipped rows, because they may have side
    effects.
    """
    match above:
        case (Skip() as node, *rest) if _seekable(stage) and all(map(silent, stage.steps)):
            found = _place_of(stage.source, node.n)
            if found is None:
                return stage, above
            unit, atom, drop = found
            seek = Seek(node.input, node.n, unit=unit, atom=atom, drop=drop)
            return stage, (seek.placed(node.where), *rest)
    return stage, above


@lowering(source="limit pushdown")
def take_into_source(stage: Stage, above: tuple[Node, ...]) -> Split:
    """Units that lie entirely beyond the last row taken are not read."""
    skipped = above[0].n if above and isinstance(above[0], Skip) else 0
    match above[1:] if skipped else above:
        case (Take() as node, *_) if _seekable(stage):
            found = _place_of(stage.source, skipped + node.n)
            if found is None:
                return stage, above
            unit, atom, drop = found
            units = min(unit + (atom > 0 or drop > 0), stage.source.unit_count)
            return _cut_short(stage, units), above
    return stage, above


@lowering(source="SQL empty-relation propagation")
def nothing_into_source(stage: Stage, above: tuple[Node, ...]) -> Split:
    """Where no row passes, or none is taken, nothing is read."""
    if not all(map(silent, stage.steps)):
        return stage, above
    never = any(isinstance(step, Segment) and FALSE in step.predicate for step in stage.steps)
    none = any(isinstance(node, Take | Repeat) and node.n == 0 for node in above[:1])
    return (_cut_short(stage, 0) if never or none else stage), above


def _cut_short(stage: Stage, units: int) -> Stage:
    if units >= stage.source.unit_count or isinstance(stage.order, ShuffleAtoms):
        return stage  # a shuffle of atoms needs all atoms
    return dataclasses.replace(stage, source=Leading(stage.source, units))


def _seekable(stage: Stage) -> bool:
    """Return True if the n-th row of the stage is the n-th row of the source, for all n."""
    return not isinstance(stage.order, ShuffleAtoms) and all(map(one_to_one, stage.steps))


def silent(step: Node) -> bool:
    """Return True if results do not reveal on which rows the operator ran, or in which order.

    False if it calls a function that is not proven pure, or whose first rows settle a schema.
    """
    fn = step.calls
    return fn is None or (not fn.purity and step.schema.known)


def _place_of(source: Source, row: int) -> tuple[int, int, int] | None:
    """Return the unit of the source's row ``row``, the atom in the unit, and the row in the atom.

    For a row after the end, the unit is the number of units. Return None if an open unit comes
    before the row.
    """
    left, index, units = row, 0, source.unit_count
    each = source.unit(0).rows if units and source.addressable else None
    if each is not None:  # all units but the last are equal
        index, left = min(row // each, units), row % each
        index, left = (index, left) if row < index * each + each else (units, 0)
    while index < units:
        unit = source.unit(index)
        if unit.rows is None:
            return None
        if left < unit.rows:
            return index, left // unit.atom_rows, left % unit.atom_rows
        index, left = index + 1, left - unit.rows
    return units, 0, 0
