"""This file tells what the optimizer did: every station of a pipeline as the same tree of text."""

from __future__ import annotations

from collections.abc import Callable

from dml.errors import PlanError
from dml.expr.text import tree
from dml.optimize.engine import Trace
from dml.optimize.phases import Optimized
from dml.plan import Plan


def explained(stations: Optimized, stage: str | None) -> str:
    """The text of ``stage``; without one, the written, normalized and physical pipeline."""
    if stage is None:
        parts = ("written", "normalized", "physical")
        return "\n".join(f"{name}\n{_indented(STATIONS[name](stations))}" for name in parts)
    if stage not in STATIONS:
        raise PlanError(
            f"explain has no stage {stage!r}", why="stages: " + ", ".join(STATIONS)
        )
    return STATIONS[stage](stations)


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))


def rules_text(trace: Trace) -> str:
    """Every rewriting in order: rule, law, what it saw and made."""
    if not trace.applied:
        return "no rule applied"
    return "\n".join(
        f"{a.rule}: {a.law}\n  {a.before}\n  -> {a.after}\n  {a.micros:.0f} us, from {a.source}"
        for a in trace.applied
    )


def physical_text(plan: Plan) -> str:
    """What runs on blocks, and what sees the stream, delivery first."""
    lines = [f"deliver {'batches' if plan.batched else 'rows'}: {plan.schema}"]
    for node, held in reversed(plan.held):
        state = f"state {held.state_bytes} B, resume {held.work}"
        lines.append(f"stream  {node.title()}  [{state}]")
    lines += [f"block   {node.title()}" for node in reversed(plan.stage.steps)]
    lines += _source_lines(plan)
    return "\n".join(lines)


def _source_lines(plan: Plan) -> list[str]:
    stage = plan.stage
    read = f"read    {stage.source.title()}: {len(stage.columns)} of {len(stage.source.schema)} columns"
    lines = [f"{read} ({', '.join(stage.columns[:12])}{' ...' if len(stage.columns) > 12 else ''})"]
    if stage.predicate:
        lines.append(f"        skips units by {' & '.join(map(repr, stage.predicate))}")
    if stage.order is not None:
        lines.append(f"        in the order of {stage.order.title()}")
    notes = [
        f"{node.title()}: {fn.reason or fn.purity}"
        for node in plan.operators
        if (fn := getattr(node, "fn", None)) is not None and (fn.reason or fn.purity)
    ]
    return lines + [f"note    {note}" for note in notes]


STATIONS: dict[str, Callable[[Optimized], str]] = {
    "written": lambda s: tree(s.written),
    "normalized": lambda s: tree(s.normalized),
    "chosen": lambda s: tree(s.chosen),
    "physical": lambda s: physical_text(s.plan),
    "rules": lambda s: rules_text(s.trace),
}
