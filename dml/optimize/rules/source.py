"""This file holds what moves into the source: projections, predicates, orders of reading."""

from __future__ import annotations

import dataclasses

from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.expr.ops.shuffle_all import ShuffleAll
from dml.expr.ops.shuffle_atoms import ShuffleAtoms
from dml.plan import Stage


def dead_columns(steps: list[Node]) -> list[Node]:
    """Segments compute no column that nothing above reads; returns the chain, source first.

    What an operator reads and how it passes columns on decides; users' functions read everything.
    """
    wanted: frozenset[str] | None = None  # None: everything
    out: list[Node] = []
    for node in reversed(steps):
        match node:
            case Segment():
                pruned = node
                if wanted is not None and not wanted.issuperset(node.schema):
                    env = tuple((n, v) for n, v in node.env if n in wanted)
                    pruned = Segment(node.input, node.predicate, env).placed(node.where)
                out.append(pruned)
                wanted = pruned.reads
            case _ if passes_columns(node):
                out.append(node)
            case _:
                out.append(node)
                wanted = None
    out.reverse()
    return out


def passes_columns(node: Node) -> bool:
    """True if the operator looks at no column and hands all of them on."""
    return not hasattr(node, "fn") and bool(node.inputs) and not isinstance(node, Segment)


def projection_into_source(stage: Stage, above: tuple[Node, ...]) -> Stage:
    """Only columns that something reads are decoded."""
    for node in (*stage.steps, *above):
        if isinstance(node, Segment):
            columns = tuple(name for name in stage.source.schema if name in node.reads)
            return dataclasses.replace(stage, columns=columns)
        if not passes_columns(node):
            break
    return stage


def filter_into_source(stage: Stage) -> Stage:
    """Units that statistics prove to have no row for the first predicate are not read."""
    match stage.steps:
        case (Segment(predicate=parts), *_) if parts:
            usable = []
            for part in parts:
                if not part.total or part.draws:
                    break  # what comes later may rely on what this part removes
                usable.append(part)
            return dataclasses.replace(stage, predicate=tuple(usable))
    return stage


def shuffle_into_source(stage: Stage, above: tuple[Node, ...]) -> tuple[Stage, tuple[Node, ...]]:
    """A full shuffle of an addressable source reads it in that order."""
    match above:
        case (ShuffleAll() as node, *rest) if (
            stage.source.addressable
            and node.ranked_source is not None
            and not any(hasattr(step, "fn") for step in stage.steps)
        ):
            return dataclasses.replace(stage, order=node), tuple(rest)
        case (ShuffleAtoms() as node, *_):
            return dataclasses.replace(stage, order=node), above
    return stage, above
