"""The pipeline after each phase of the optimizer is printed as a tree, in the same format."""

from __future__ import annotations

from collections.abc import Callable

from dml.errors import PlanError
from dml.expr.node import tree
from dml.ops.row.tiers import refusal
from dml.optimize.engine import Applied, Shown
from dml.optimize.explain.physical_text import physical_text
from dml.optimize.phases import Optimized
from dml.physical.plan import LEAST_TASKS, Plan, units_each

# The default target size of a task; the session's own "auto" stays below it.
TARGET_BYTES = 16 << 20


def explained(stations: Optimized, stage: str, *, micros: bool = True) -> str:
    """Return the text of ``stage``.

    Equal plans give equal text, except for the time of each rule, shown under "rules" with
    ``micros``.
    """
    if stage == "rules":
        return rules_text(stations, micros=micros)
    if stage not in STATIONS:
        raise PlanError(
            f"explain has no stage {stage!r}",
            why="stages: " + ", ".join(STAGES),
            try_='.explain("physical"), or .explain() for the main ones',
        )
    return STATIONS[stage](stations)


def rules_text(stations: Optimized, *, micros: bool = True) -> str:
    """Return every rewriting in order: rule, law, input, result; then refusals with reasons.

    Functions that are called because they could not be lifted are listed as refusals.
    """
    trace = stations.trace
    lines = [line for entry in trace.applied for line in _applied_lines(entry, micros=micros)]
    lines = lines or ["no rule applied"]
    for refused in trace.refused:
        lines += [f"refused: {refused.what}", f"  {refused.why}"]
    for node in stations.plan.operators:
        if why := refusal(node):
            lines += [f"refused: {node.title()} not computed as expressions", f"  {why}"]
    return "\n".join(lines)


def _applied_lines(entry: Applied, *, micros: bool) -> list[str]:
    rule, before, after = entry.rule, entry.before, entry.after
    spent = f"{entry.micros:.0f} us, " if micros else ""
    lines = [f"{rule.name}: {rule.law}", f"  {before.title()}{_over(before)}"]
    return [*lines, f"  -> {after.title()}{_over(after)}", f"  {spent}from {rule.source}"]


def _over(node: Shown) -> str:
    """Return the text " over " and the title of the first input; "" if ``node`` has no input."""
    return f" over {node.inputs[0].title()}" if node.inputs else ""


def graph_text(plan: Plan, target_bytes: int = TARGET_BYTES) -> str:
    """Return the tasks of about ``target_bytes`` as text: the units of each, in reading order."""
    stage, source = plan.stage, plan.stage.source
    units = [source.unit(i) for i in range(source.unit_count)]
    held = sum(unit.nbytes for unit in units)
    each = units_each(len(units), source.unit, target_bytes)
    size = f"about {_size(target_bytes)} of decoded columns or one unit"
    if 1 < each == len(units) // LEAST_TASKS:
        size = f"{each} units, to have at least {LEAST_TASKS}"
    lines = [f"{_some(-(-len(units) // each), 'task')} of {size}"]
    lines += [f"  {node.title()}" for node in stage.steps]
    lines.append(f"  read {source.title()}")
    counts = [(unit.atoms, unit.rows) for unit in units]
    known = [(atoms, rows) for atoms, rows in counts if atoms is not None and rows is not None]
    cut = _some(len(units), "unit")
    if len(known) == len(units):
        atoms, rows = (sum(each) for each in zip((0, 0), *known, strict=True))
        cut += f", {_some(atoms, 'atom')}, {_some(rows, 'row')}, {_size(held)}"
    else:
        cut += f", {len(units) - len(known)} of them open: only reading shows how much they hold"
    lines.append(f"cut from {cut}")
    for link in plan.links:
        done = ", ".join(node.title() for node in link.steps)
        lines.append(f"then in other tasks, on what each gave: {done}")
    lines += [f"then in order: {node.title()}" for node in plan.stream]
    return "\n".join(lines)


def _some(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _size(n: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit:
            return f"{n / unit:.3g} {name}"
    return f"{n} B"


STATIONS: dict[str, Callable[[Optimized], str]] = {
    "written": lambda s: tree(s.written),
    "normalized": lambda s: tree(s.normalized),
    "chosen": lambda s: tree(s.chosen),
    "physical": lambda s: physical_text(s.plan),
    "graph": lambda s: graph_text(s.plan),
    "rules": rules_text,
}

# "arranged" and "costs" depend on a profile, which is not available here.
STAGES = (*STATIONS, "arranged", "costs")
