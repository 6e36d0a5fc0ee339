"""Test the order in which filters are tested: it may save time, and never changes results."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.expr.facts import FilterOrder
from dml.ops.row.segment import Segment
from dml.optimize.engine import RuleTrace
from dml.optimize.explain.cost_table import analyzed_text
from dml.optimize.phases import Optimized, optimize
from dml.optimize.search.filter_order import guard_costly_parts, guarded, tried_as
from dml.optimize.work_names import below_each, kept_name, work_names
from dml.physical.plan import Plan
from dml.profile import CostKey, Learned, Profile
from dml.testing.oracle import Oracle
from tests.optimize.tables import flights

NEAR, GATE, FAR = col("miles") == 7, col("gate").str.contains("g1"), col("gate").str.contains("g")


def stations(ds: dml.Dataset) -> Optimized:
    return optimize(ds._node, 0)


def filters(plan: Plan) -> list[Segment]:
    return [each for each in plan.on_blocks if isinstance(each, Segment)]


def chosen(ds: dml.Dataset, profile: Profile | None = None) -> tuple[tuple[int, ...], ...]:
    """The groups in which the one filter of ``ds`` is tried."""
    (found,) = filters(guarded(stations(ds).plan, profile or Profile(), RuleTrace()))
    return found.tried.groups


def shares(ds: dml.Dataset, **kept: float) -> Profile:
    """A profile that has seen what each part of the filter keeps: ``p0``, ``p1`` ..."""
    plan = stations(ds).plan
    (node,) = filters(plan)
    below = next(name for each, name in below_each(plan) if each is node)
    names = {f"p{i}": kept_name(below, (part,)) for i, part in enumerate(node.predicate)}
    return Profile(ratios={names[name]: Learned.once(share, 0.0) for name, share in kept.items()})


def test_a_cheap_part_that_keeps_few_goes_before_a_costly_one() -> None:
    assert chosen(flights().filter(GATE & NEAR)) == ((1,), (0,))
    assert chosen(flights().filter(NEAR & (col("id") > 3) & GATE)) == ((0, 1), (2,))


def test_what_is_all_cheap_or_may_fail_stays_as_it_is() -> None:
    cheap = flights().filter(NEAR & (col("id") > 3))
    risky = flights().filter(NEAR & GATE & (col("id").cast("int8") > 1))
    for ds in (cheap, risky, flights().filter(GATE), flights()):
        plan = stations(ds).plan
        assert not plan.has_orders
        assert all(not each.tried.groups for each in filters(guarded(plan, Profile(), RuleTrace())))


def test_history_overrules_the_guess() -> None:
    ds = flights().filter(GATE & NEAR)
    assert chosen(ds, shares(ds, p0=0.999, p1=0.999)) == ()
    assert chosen(ds, shares(ds, p1=0.01)) == ((1,), (0,))
    both = flights().filter(GATE & FAR)
    assert chosen(both, shares(both, p0=0.9, p1=0.01)) == ((1,), (0,))
    assert chosen(both, shares(both, p0=0.01, p1=0.9)) == ((0,), (1,))


def test_an_order_that_measured_worse_is_not_taken_again() -> None:
    ds = flights().filter(GATE & NEAR)
    (usual,) = filters(stations(ds).plan)
    other = usual.replace(tried=FilterOrder(((1,), (0,))))
    names = [
        work_names(stations(ds).plan)[1]["cost"],
        work_names(tried_as(stations(ds).plan, lambda *_: other.tried))[1]["cost"],
    ]
    assert names[0] != names[1]
    keys = [CostKey.of(name, "here", 65_536, 40) for name in names]
    for seconds, groups in (((1e-7, 3e-7), ()), ((3e-7, 1e-7), ((1,), (0,)))):
        costs = {key: Learned.once(each, 0.0) for key, each in zip(keys, seconds, strict=True)}
        assert chosen(ds, Profile(costs, host_class="here")) == groups


def test_choices_enter_no_name() -> None:
    made = stations(flights().filter(GATE & NEAR).shuffle(4))
    plan = guarded(made.plan, Profile(), RuleTrace())
    assert filters(plan)[0].tried.groups
    assert (plan.name, plan.fingerprint) == (made.plan.name, made.plan.fingerprint)
    assert filters(plan)[0].digest == filters(made.plan)[0].digest


def test_the_trace_tells_what_was_done_and_what_not() -> None:
    ds = flights().filter(GATE & NEAR)
    trace = RuleTrace()
    (found,) = filters(guarded(stations(ds).plan, Profile(), trace))
    assert trace.names() == ["guard_costly_parts"]
    assert ") then gate.str.contains('g1'" in found.title()
    guarded(stations(ds).plan, shares(ds, p0=0.999, p1=0.999), trace)
    assert "not sure to pay" in analyzed_text((), [], trace)
    (node,) = filters(stations(ds).plan)
    assert guard_costly_parts.rewrite(node) is not None
    assert guard_costly_parts.rewrite(flights()._node) is None


def test_inputs_beside_choose_for_themselves() -> None:
    right = flights().filter(GATE & NEAR).select("id").with_columns(w=1)
    plan = guarded(stations(flights().join(right, "id")).plan, Profile(), RuleTrace())
    assert [f.tried.groups for each in plan.all for f in filters(each) if f.predicate] == [
        ((1,), (0,))
    ]


@pytest.mark.law
@given(st.permutations([0, 1, 2]), st.sets(st.integers(1, 2)))
def test_no_order_can_be_seen(order: list[int], cuts: set[int]) -> None:
    ends = [0, *sorted(cuts), 3]
    groups = tuple(tuple(order[a:b]) for a, b in pairwise(ends))
    ds = flights().filter(FAR & (col("late") > 0) & (col("miles") < 90)).with_columns(z=GATE)
    (node,) = filters(stations(ds).plan)
    found = node.replace(tried=FilterOrder(groups))
    wanted = list(Oracle(ds._node, epoch=0, seed=0).elements())
    made = dml.Dataset(found).with_options(telemetry_dir="off", optimize=False, executor="sync")
    assert list(made) == wanted


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_runs_take_the_choice(tmp_path: Path, executor: str) -> None:
    options = {"telemetry_dir": str(tmp_path), "executor": executor}
    ds = flights().filter(GATE & (col("miles") < 90)).with_options(**options)
    assert " then gate.str" in ds.explain("physical")
    assert list(ds) == list(ds.with_options(optimize=False))
    assert "guard_costly_parts" in ds.explain("rules")
