"""A logical chain is lowered to a plan: operators on blocks, and operators over the stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import groupby

from dml.errors import InternalError
from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.io.partial_source import Leading
from dml.io.source import Source
from dml.ops.row.segment import Segment
from dml.optimize.engine import RuleTrace
from dml.optimize.rule import Lowering, NamedRule, Pass, Split
from dml.optimize.rules import pushdown as into_source
from dml.physical.plan import Link, Plan, Stage

# The order matters: a source read in another order is cut short by its own rows, and skipped rows
# must have been counted before.
LOWERINGS: tuple[NamedRule, ...] = (
    into_source.dead_columns,
    into_source.shuffle_into_source,
    into_source.filter_into_source,
    into_source.projection_into_source,
    into_source.filter_columns_first,
    into_source.take_into_source,
    into_source.nothing_into_source,
    into_source.skip_into_source,
)


@dataclasses.dataclass(frozen=True, eq=False)
class PlanReading:
    """An incomplete plan in the trace: the reading stage, and the operators directly above it."""

    stage: Stage
    above: tuple[Node, ...]
    inputs: tuple[Node, ...] = ()

    def title(self) -> str:
        """Return the source, how it is read, and the next operator, in one line."""
        source = self.stage.source
        whole = source.whole if isinstance(source, Leading) else source
        parts = [f"read {whole.title()}"]
        if isinstance(source, Leading):
            parts.append(f"{source.units} of {whole.unit_count} units")
        parts.append(f"{len(self.stage.columns)} of {len(source.schema)} columns")
        if self.stage.predicate:
            parts.append(f"skipping units by {' & '.join(map(repr, self.stage.predicate))}")
        if self.stage.first:
            parts.append(f"tried by {', '.join(self.stage.first)} first where that pays")
        if self.stage.order is not None:
            parts.append(f"in the order of {self.stage.order.title()}")
        return ", ".join(parts) + (f", then {self.above[0].title()}" if self.above else "")


def plan_of(
    root: Node,
    fingerprint: str,
    lowerings: Sequence[NamedRule] = LOWERINGS,
    trace: RuleTrace | None = None,
) -> Plan:
    """Return the plan of ``root``; its stream begins at the first operator that needs row order."""
    trace = trace or RuleTrace()
    source, *rest = _passed(root, lowerings, trace).chain()
    if not isinstance(source, Source):
        raise InternalError(f"{source.title()} is no source")
    local = 0
    while local < len(rest) and rest[local].rows.local and not rest[local].inputs[0].batched:
        local += 1
    _typed(rest)
    stage = Stage(source, source.schema.names, (), tuple(rest[:local]))
    stage, stream = into_source.pieces_in_order(stage, tuple(rest[local:])), tuple(rest[local:])
    for lowering in lowerings:
        if isinstance(lowering, Lowering):
            stage, stream = _lowered(lowering, (stage, stream), trace)
    stage, links = _cut(stage)
    beside = tuple(
        tuple(plan_of(each, "", lowerings, trace) for each in node.inputs[1:]) for node in stream
    )
    return Plan(stage, links, stream, root.schema, root.batched, fingerprint, "", beside)


def _lowered(lowering: Lowering, given: Split, trace: RuleTrace) -> Split:
    started = trace.clock()
    stage, above = lowering.move(*given)
    if _read(stage) != _read(given[0]) or above != given[1]:
        trace.note(lowering, PlanReading(*given), PlanReading(stage, above), started)
    return stage, above


def _read(stage: Stage) -> tuple[object, ...]:
    return stage.source, stage.columns, stage.predicate, stage.order, stage.first


def _passed(root: Node, lowerings: Sequence[NamedRule], trace: RuleTrace) -> Node:
    """Return ``root`` after the whole-pipeline passes; ``trace`` records changed segments."""
    for each in lowerings:
        if isinstance(each, Pass):
            started, before = trace.clock(), root.chain()
            root = each.rewrite(root)
            for old, new in zip(before, root.chain(), strict=True):
                if isinstance(old, Segment) and old.schema != new.schema:
                    trace.note(each, old, new, started)
    return root


def _cut(stage: Stage) -> tuple[Stage, tuple[Link, ...]]:
    """Return the stage up to its first step with resource needs, then a link per group of steps.

    Consecutive steps with equal needs form a group, which runs in one task. Steps with unequal
    needs never share a task: it would keep one resource idle while it uses the other. Source: the
    streaming batch model, 4.2.
    """
    runs = [(needs, tuple(steps)) for needs, steps in groupby(stage.steps, lambda step: step.needs)]
    first = runs.pop(0)[1] if runs and runs[0][0] == Needs() else ()
    return dataclasses.replace(stage, steps=first), tuple(Link(steps) for _, steps in runs)


def _typed(nodes: Sequence[Node]) -> None:
    """Raise InternalError if a segment's types differ from those that a rewriting declared."""
    for node in nodes:
        if isinstance(node, Segment) and node.infer() != node.schema:
            raise InternalError(
                "a rewriting changed a type",
                at=node.label(),
                why=f"{node.schema} became {node.infer()}",
                try_=".with_options(optimize=False), and report this",
            )
