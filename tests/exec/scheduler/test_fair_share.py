"""Test fair turns: a turn that ends at once is not begun again at the same time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.exec.scheduler.fair_share import FairTurns
from dml.exec.scheduler.policy import Demand, Load
from dml.exec.scheduler.ready_queue import Waiting
from dml.verify.simulate.virtual_cluster import TaskTruth, VirtualCluster
from tests.exec.schedule_bound import lower_bound

TOTAL = {"cpu": 4.0}


def test_a_turn_that_ends_at_once_is_not_begun_again_at_that_moment() -> None:
    small, large = Demand(), Demand(resources=(("cpu", 4.0),))
    loads = [Load(each, each.parallel(TOTAL)) for each in (small, large)]
    turns = FairTurns(loads, [Waiting(load.ready, load.parked) for load in loads])
    loads[1].ready.append((0, 0))
    loads[0].samples, able = 1, {1: {"cpu"}}
    for now in (1.0, 2.0):
        turns.review(able, TOTAL, now)
        turns.whose.clear()
        assert turns.idle(able, TOTAL, {"cpu": 2.0})
        turns.review({}, TOTAL, now)
        assert not turns.whose
        assert not turns.idle(able, TOTAL, {"cpu": 2.0}), "at the same time, with nothing started"
        turns.started()
        assert turns.idle(able, TOTAL, {"cpu": 2.0})


def fraction(
    cpus: int, share: float, places: int | None, seconds: float
) -> tuple[list[Demand], list[TaskTruth], dict[str, float]]:
    """Two stages of whole processors feed one that needs ``share`` of one, at ``places``."""
    every = (("cpu", 1.0),)
    small = Demand("small", (("cpu", share),), 8, max_parallel=places)
    stages = [Demand("load", every, 8), Demand("transform", every, 8), small]
    return stages, [TaskTruth(each, 8) for each in (0.1, 0.05, seconds)], {"cpu": float(cpus)}


@pytest.mark.law
@given(
    st.sampled_from([2, 4, 8, 16]),
    st.sampled_from([0.01, 0.1, 0.25, 0.5]),
    st.sampled_from([1, 2, 4, None]),
    st.sampled_from([0.02, 0.05, 0.2]),
    st.booleans(),
)
def test_whole_and_fractional_stages_share_processors_near_the_bound(
    cpus: int, share: float, places: int | None, seconds: float, ordered: bool
) -> None:
    """Up to twice the bound before: small slices ran one by one, each in the place of a large."""
    stages, truth, slots = fraction(cpus, share, places, seconds)
    trace = VirtualCluster(stages, truth, slots, 10**9, ordered=ordered, watched=False).run(100)
    least = lower_bound(stages, truth, slots, 10**9, 100, ordered=ordered)
    assert not trace.stuck
    assert not trace.over
    assert trace.seconds <= 1.4 * least.seconds


def test_small_slices_leave_room_in_a_turn_unless_they_come_as_a_full_set() -> None:
    stages, _, slots = fraction(4, 0.01, 2, 0.05)
    loads = [Load(each, each.parallel(slots)) for each in stages]
    turns = FairTurns(loads, [Waiting(load.ready, load.parked) for load in loads])
    turns.whose["cpu"] = 0
    loads[0].ready += [(unit,) for unit in range(9)]
    loads[0].running = 3
    loads[2].ready.append((0, 0, 0))
    assert turns.left(2, slots)["cpu"] == pytest.approx(0.0), "one of two places would be filled"
    loads[2].running, loads[2].ready[:] = 1, [(1, 0, 0)]
    assert turns.left(2, slots)["cpu"] == pytest.approx(0.99), "no load could use it now"
    loads[0].ready.clear()
    loads[2].running = 0
    assert turns.left(2, slots)["cpu"] == pytest.approx(1.0), "no load is left"
