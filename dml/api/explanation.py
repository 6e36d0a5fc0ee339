"""The texts of ``explain``: each step of compilation, with expected and measured costs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from functools import partial

from dml.api.cache_contents import Cached, cache_contents
from dml.api.cost_profile import estimates_of, gains_of
from dml.api.plan_search import explain_arrangement
from dml.api.resources import RunResources, verifies
from dml.api.run_storage import storing_of, without
from dml.api.session import arrangement, every_choice, exchange, optimized, written_plan
from dml.base.display import preformatted
from dml.events import Event
from dml.exec.scheduler.baseline_policies import policy_text
from dml.expr.node import Node
from dml.optimize.cost.estimate import Estimate
from dml.optimize.cost.rule_gains import RuleGain
from dml.optimize.explain.cost_table import analyzed_text, costs_text, rewrites_text
from dml.optimize.explain.physical_text import FREE, PlanLine, lines_text, plan_lines
from dml.optimize.explain.stations import explained
from dml.physical.lanes import keeps_units
from dml.physical.plan import Plan
from dml.settings import Settings


def explain(node: Node, settings: Settings, stage: str | None, epoch: int) -> str:
    """Return the text of one step of compilation, ``stage``, or of all main ones if None.

    Caches are described as a run of ``epoch`` that begins now would find them.
    """
    run = arrangement(node, settings)
    stations, made = run.stations, optimized(node, settings)
    decided = partial(explain_arrangement, made, settings, without(settings), run)
    if stage == "arranged":
        return decided()
    if stage not in (None, "physical", "costs"):
        return explained(stations, stage)
    expected = estimated(node, settings)
    if stage == "costs":
        return costs_text(expected)
    physical = lines_text(_physical(node, stations.plan, settings, epoch, expected))
    if stage is not None:
        return physical
    parts = {each: explained(stations, each) for each in ("written", "normalized")}
    parts |= {"physical": physical, "arranged": decided(), "costs": costs_text(expected)}
    text = "\n".join(f"{each}\n{textwrap.indent(parts[each], '  ')}" for each in parts)
    return f"{text}\n{rewrites_text(stations.trace, gained(node, settings, expected))}"


def picture(node: Node, settings: Settings, epoch: int) -> str:
    """Return the plan that a run of ``epoch`` would open as an SVG image, with its notes below."""
    from dml.optimize.explain.plan_picture import plan_picture

    plan = arrangement(node, settings).stations.plan
    lines = _physical(node, plan, settings, epoch, estimated(node, settings))
    notes = [line.title for line in lines if line.kind in ("note", "policy")]
    return plan_picture(lines) + (preformatted("\n".join(notes)) if notes else "")


def _physical(
    node: Node, plan: Plan, settings: Settings, epoch: int, expected: Sequence[Estimate]
) -> list[PlanLine]:
    """Return the lines of the tree that a run of ``epoch`` would open, with ``expected`` costs."""
    samples = settings.verify_samples if verifies(settings) else 0
    looks = not keeps_units(plan) and storing_of(plan, settings, epoch).looks
    caches = dict(cached(plan, settings, epoch))
    remarks = {node: each.summary for node, each in caches.items()}
    hits = [node for node, each in caches.items() if each.whole]
    resources = RunResources.of(settings, plan)
    choices = every_choice(plan, settings, resources, looks=looks, samples=samples)
    for each in plan.all:
        if why := exchange(each, settings, resources.budget.limit_bytes)[1]:
            remarks[each.stream[0]] = f"not by the workers, {why}"
    lines = plan_lines(plan, choices, expected, remarks, hits)
    if policy := policy_text(settings.scheduler_policy):
        lines.append(PlanLine("policy", policy))
    if choices[plan].free and not any(FREE in line.facts for line in lines):
        why = "order is kept: no function is followed by batches and passes alone"
        lines.append(PlanLine("note", why))
    if samples:
        from dml.verify import scope as scope_module

        scope = scope_module.scope(written_plan(node, settings), plan)
        lines.append(PlanLine("note", f"the check covers {scope.text()}"))
    return lines


def cached(plan: Plan, settings: Settings, epoch: int) -> Iterator[tuple[Node, Cached]]:
    """Return each cache of a plan with its contents; at an ``autocache()``, with its decision."""
    if not plan.decides:
        return cache_contents(plan, settings)
    from dml.api import autocache

    return autocache.decided_contents(plan, settings, epoch)


def estimated(node: Node, settings: Settings) -> tuple[Estimate, ...]:
    """Estimate the cost of every operator from what has been learned so far."""
    return estimates_of(optimized(node, settings).plan, settings)


def gained(node: Node, settings: Settings, expected: tuple[Estimate, ...]) -> tuple[RuleGain, ...]:
    """Return the seconds that each applied rule saves; ``expected`` are the costs of the plan."""
    return gains_of(optimized(node, settings), expected, settings)


def analyzed(
    node: Node,
    settings: Settings,
    expected: tuple[Estimate, ...],
    gains: tuple[RuleGain, ...],
    events: list[Event],
) -> str:
    """Return a text: a run's ``events`` beside ``expected`` costs, and each rule's ``gains``."""
    trace = arrangement(node, settings).stations.trace
    return analyzed_text(expected, events, trace, gains)
