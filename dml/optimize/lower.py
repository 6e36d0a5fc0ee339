"""This file turns a logical chain into a Plan: what runs on blocks, and what sees the stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import groupby

from dml.errors import InternalError
from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.expr.sources.source import Source
from dml.optimize.rules import source as into_source
from dml.plan import Link, Plan, Stage


def plan_of(root: Node, fingerprint: str, *, optimized: bool) -> Plan:
    """Split the chain below ``root`` at the first operator that needs the order of rows."""
    chain = (into_source.dead_columns(root) if optimized else root).chain()
    source, *rest = chain
    if not isinstance(source, Source):
        raise InternalError(f"{source.title()} is no source")
    local = 0
    while local < len(rest) and rest[local].rows.local and not rest[local].inputs[0].batched:
        local += 1
    stage = Stage(source, source.schema.names, (), tuple(rest[:local]))
    stream = tuple(rest[local:])
    stage, stream = _ordered(stage, stream, optimized=optimized)
    if optimized:
        _typed(rest)
        stage = into_source.filter_into_source(stage)
        stage = into_source.projection_into_source(stage, stream)
        stage = into_source.take_into_source(stage, stream)
        stage = into_source.nothing_into_source(stage, stream)
        stage, stream = into_source.skip_into_source(stage, stream)
    stage, links = _cut(stage)
    beside = tuple(
        tuple(plan_of(each, "", optimized=optimized) for each in node.inputs[1:]) for node in stream
    )
    return Plan(stage, links, stream, root.schema, root.batched, fingerprint, "", beside)


def _cut(stage: Stage) -> tuple[Stage, tuple[Link, ...]]:
    """The stage up to the first step that needs what is not usual, then a link per need.

    Neighbours of equal needs run in one task, others never do: a task that held what both need
    would keep the one idle while it works on the other. Source: the streaming batch model, 4.2.
    """
    runs = [(needs, tuple(steps)) for needs, steps in groupby(stage.steps, lambda step: step.needs)]
    first = runs.pop(0)[1] if runs and runs[0][0] == Needs() else ()
    return dataclasses.replace(stage, steps=first), tuple(Link(steps) for _, steps in runs)


def _ordered(
    stage: Stage, stream: tuple[Node, ...], *, optimized: bool
) -> tuple[Stage, tuple[Node, ...]]:
    ruled, rest = into_source.shuffle_into_source(stage, stream)
    # pieces come permuted in every plan: that shuffle is defined by reading
    if optimized or (ruled.order is not None and rest == stream):
        return ruled, rest
    return stage, stream


def _typed(nodes: Sequence[Node]) -> None:
    """Type every segment, which rewritings took over as promised: their programs are needed now."""
    for node in nodes:
        if isinstance(node, Segment) and node.infer() != node.schema:
            raise InternalError(
                "a rewriting changed a type",
                at=node.label(),
                why=f"{node.schema} became {node.infer()}",
                try_=".with_options(optimize=False), and report this",
            )


def described(plan: Plan) -> dict[str, object]:
    """The plan as plain data, for people and for events."""
    return {
        "source": plan.stage.source.title(),
        "columns": list(plan.stage.columns),
        "predicate": [repr(part) for part in plan.stage.predicate],
        "steps": [node.title() for node in plan.stage.steps],
        "links": [[node.title() for node in link.steps] for link in plan.links],
        "needs": [dataclasses.asdict(link.needs) for link in plan.links],
        "order": None if plan.stage.order is None else plan.stage.order.title(),
        "stream": [node.title() for node in plan.stream],
        "beside": [described(each) for plans in plan.beside for each in plans],
        "held": [dataclasses.asdict(held) for _, held in plan.held],
    }
