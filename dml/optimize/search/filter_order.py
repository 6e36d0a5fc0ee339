"""The parts of a filter are ordered: cheap parts that keep few rows are tried first.

Parts that cannot raise an error may be tried in any order, each only on the rows that earlier parts
kept. By default, all parts are computed together on every row, which is best if all are cheap. The
order is internal to one operator, and part of no fingerprint and no position.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from dml.base.amounts import seconds_text
from dml.expr.columns.value import Value
from dml.expr.facts import FilterOrder
from dml.expr.node import Node
from dml.ops.row.segment import Segment, is_costly
from dml.optimize.cost.beliefs import Belief, combined, no_regret, total
from dml.optimize.cost.priors import kept_by, row_bytes, values_s
from dml.optimize.engine import Refused, RuleTrace
from dml.optimize.rule import rule
from dml.optimize.work_names import below_each, kept_name, work_name
from dml.physical.plan import Plan
from dml.profile import CostKey, Profile

# Seconds per row to find the rows that passed, and to gather a passed row for the next group.
FOUND_S: Final = 3e-9
GATHERED_S: Final = 20e-9
# The standard deviation of the log of a guessed share of rows.
SIGMA_SHARE: Final = math.log(1.6)
BLOCK_ROWS: Final = 65_536


class _Group(NamedTuple):
    """Parts of a predicate, by index, that are computed together; ``share`` of the rows pass."""

    places: tuple[int, ...]
    cost_s: float
    share: Belief

    @property
    def rank(self) -> float:
        """The share of rows that the group removes, per second of its cost per row."""
        return (1 - min(1.0, self.share.typical)) / self.cost_s


@rule(Segment, source="predicate migration, Hellerstein and Stonebraker 1993")
def guard_costly_parts(node: Node) -> Node | None:
    """Parts of a filter that cannot fail may be tried one by one, on the rows that are left."""
    if not isinstance(node, Segment) or not node.has_orders:
        return None
    found = _judged(node, b"", Profile())
    return node.replace(tried=found.one_by_one) if found.pays else None


def guarded(plan: Plan, profile: Profile, trace: RuleTrace) -> Plan:
    """Return the plan with each filter in its cheapest expected order; changes are traced."""

    def choose(node: Segment, below: bytes) -> FilterOrder:
        if not node.has_orders:
            return node.tried
        started = trace.clock()
        found = _judged(node, below, profile)
        if not found.pays:
            trace.too_costly.append(found.refusal(node))
            return node.tried
        made = node.replace(tried=found.one_by_one)
        trace.note(guard_costly_parts, node, made, started)
        return made.tried

    return tried_as(plan, choose)


def tried_as(plan: Plan, choose: Callable[[Segment, bytes], FilterOrder]) -> Plan:
    """Return the plan with the filter orders that ``choose(filter, name of its rows)`` returns."""
    changed: dict[int, Node] = {}
    for node, below in below_each(plan):
        if isinstance(node, Segment) and node.predicate:
            tried = choose(node, below)
            if tried != node.tried:
                changed[id(node)] = node.replace(tried=tried)

    def swapped(steps: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(changed.get(id(node), node) for node in steps)

    return dataclasses.replace(
        plan,
        stage=dataclasses.replace(plan.stage, steps=swapped(plan.stage.steps)),
        links=tuple(dataclasses.replace(link, steps=swapped(link.steps)) for link in plan.links),
        beside=tuple(tuple(tried_as(each, choose) for each in plans) for plans in plan.beside),
    )


class _Judged(NamedTuple):
    """Two ways to evaluate a filter, together or one by one, and the cost per row of each."""

    one_by_one: FilterOrder
    usual: Belief
    other: Belief

    @property
    def pays(self) -> bool:
        """True if evaluating the parts one by one is expected to be faster."""
        return len(self.one_by_one.groups) > 1 and no_regret(self.usual, self.other)

    def refusal(self, node: Segment) -> Refused:
        """Return the reason why the parts of ``node`` are evaluated together."""
        usual, other = (
            f"{seconds_text(each.typical * 1e6)} {each.source} {each.spread()}"
            for each in (self.usual, self.other)
        )
        return Refused(
            f"the parts of {node.title()} not tried one by one",
            f"it is not sure to pay: a million rows take {usual} together, {other} one by one",
        )


def _judged(node: Segment, below: bytes, profile: Profile) -> _Judged:
    """Return the expected costs of ``node`` with its parts tried together, and by rank."""
    groups = sorted(_groups(node, below, profile), key=lambda each: -each.rank)
    other = node.replace(tried=FilterOrder(tuple(group.places for group in groups)))
    together = Belief.prior(values_s(node.predicate, profile.speed) + FOUND_S)
    after = _after(node, groups, profile)
    return _Judged(
        other.tried,
        _expected_cost(node.replace(tried=FilterOrder()), profile, [together, after]),
        _expected_cost(other, profile, [*_one_by_one(groups), after]),
    )


def _groups(node: Segment, below: bytes, profile: Profile) -> Iterator[_Group]:
    """Yield the cheap conditions of a filter as one group, and each costly condition alone."""
    parts = node.predicate
    costly = [place for place, part in enumerate(parts) if is_costly(part)]
    cheap = tuple(place for place in range(len(parts)) if place not in costly)
    for places in (cheap, *((place,) for place in costly)):
        if places:
            chosen = tuple(parts[place] for place in places)
            share = _share(chosen, below, profile)
            yield _Group(places, values_s(chosen, profile.speed) + FOUND_S, share)


def _share(parts: tuple[Value, ...], below: bytes, profile: Profile) -> Belief:
    """Return the share of the filter's input rows that ``parts`` keep: measured, else guessed."""
    seen = profile.ratios.get(kept_name(below, parts))
    if seen is not None:
        return Belief.learned(seen)
    guess = math.prod(map(kept_by, parts))
    return dataclasses.replace(Belief.prior(guess), sigma=SIGMA_SHARE)


def _one_by_one(groups: list[_Group]) -> Iterator[Belief]:
    """Yield the cost of each group, on the rows that the groups before it kept."""
    share, sigma = 1.0, 0.0
    for number, group in enumerate(groups):
        each_s = group.cost_s + (GATHERED_S if number else 0.0)
        cost = Belief.prior(each_s).times(max(share, 1e-6))
        yield dataclasses.replace(cost, sigma=math.hypot(cost.sigma, sigma))
        share *= min(1.0, group.share.typical)
        sigma = math.hypot(sigma, group.share.sigma)


def _after(node: Segment, groups: list[_Group], profile: Profile) -> Belief:
    """Return the cost per row of the columns computed after the filter, equal for all orders."""
    share = math.prod(min(1.0, group.share.typical) for group in groups)
    made_s = values_s(tuple(value for _, value in node.env), profile.speed) + FOUND_S
    return Belief.prior(made_s).times(max(share, 1e-6))


def _expected_cost(node: Segment, profile: Profile, guesses: list[Belief]) -> Belief:
    """Return the cost of ``node`` per row in its order: by ``guesses`` and by measurements."""
    taken = node.input.schema
    name = work_name(node)
    near = profile.near(CostKey.of(name, profile.host_class, BLOCK_ROWS, row_bytes(taken)))
    guess = total(guesses)
    return guess if near is None else combined([guess, Belief.learned(*near)])
