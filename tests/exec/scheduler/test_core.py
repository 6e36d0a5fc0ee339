"""Test the scheduling core: order, memory, progress and errors, by hand and on random chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.errors import InternalError, PlanError
from dml.exec.scheduler.core import Core
from dml.exec.scheduler.messages import (
    Action,
    Arrive,
    Close,
    Consumed,
    Event,
    Free,
    Offer,
    Resources,
    Run,
    Settled,
    SliceDone,
    TaskFailed,
    Tick,
)
from dml.exec.scheduler.policy import Demand, Policy, Seq, StreamingPolicy
from dml.testing.fuzz import FuzzPolicy
from dml.verify.simulate.virtual_cluster import ClusterTrace, TaskTruth, VirtualCluster

Chain = tuple[list[Demand], list[Callable[[Seq], TaskTruth]]]

TEN = Demand(output_bytes=10)


def runs(actions: list[Action]) -> list[tuple[Seq, int]]:
    return [(a.seq, a.k) for a in actions if isinstance(a, Run)]


def offers(actions: list[Action]) -> list[Seq]:
    return [a.seq for a in actions if isinstance(a, Offer)]


def done(core: Core, seq: Seq, *, more: bool = False, nbytes: int | None = 10) -> list[Action]:
    return core.step(SliceDone(seq, nbytes, 1.0, more), 0.0)


# ------------------------------------------------------------------------------- by hand, one stage


def test_units_start_in_order_and_are_offered_in_order() -> None:
    core = Core([TEN], 2, 1000)
    assert runs(core.step(Arrive(3), 0.0)) == [((0,), 0), ((1,), 0)]
    later = done(core, (1,))
    assert runs(later) == [((2,), 0)]
    assert not offers(later), "unit 0 stands before it"
    assert offers(done(core, (0,))) == [(0, 0), (1, 0)]
    assert offers(done(core, (2,))) == [(2, 0)]
    assert core.finished


def test_slices_of_a_unit_run_one_after_another() -> None:
    core = Core([TEN], 4, 1000)
    assert runs(core.step(Arrive(1), 0.0)) == [((0,), 0)]
    assert runs(done(core, (0,), more=True)) == [((0,), 1)]
    last = done(core, (0,), nbytes=None)
    assert not runs(last)
    assert core.finished, "a generator that just ends has given its last partition before"


def test_units_may_arrive_late() -> None:
    core = Core([TEN], 2, 1000)
    core.step(Arrive(1, last=False), 0.0)
    done(core, (0,))
    assert not core.finished
    assert runs(core.step(Arrive(1), 0.0)) == [((1,), 0)]


def test_memory_is_asked_for_before_a_slice_starts() -> None:
    core = Core([TEN], 4, 30)
    assert runs(core.step(Arrive(4), 0.0)) == [((0,), 0), ((1,), 0), ((2,), 0)]
    assert not runs(done(core, (1,))), "three times ten are held or promised"
    assert not runs(done(core, (0,))), "offered is not consumed"
    assert runs(core.step(Consumed((0, 0)), 0.0)) == [((3,), 0)]


def test_units_behind_the_head_leave_room_for_its_next_slice() -> None:
    core = Core([TEN], 3, 40)
    assert len(runs(core.step(Arrive(9), 0.0))) == 3
    assert runs(done(core, (1,), more=True)) == [((1,), 1)]
    assert runs(done(core, (1,), more=True)) == [], "a third one would shut out the head"
    assert runs(done(core, (0,), more=True)) == [], "all 40 are held"
    assert runs(core.step(Consumed((0, 0)), 0.0)) == [((0,), 1)]


def test_a_head_larger_than_the_limit_runs_alone() -> None:
    core = Core([TEN], 4, 1)
    assert runs(core.step(Arrive(2), 0.0)) == [((0,), 0)]
    done(core, (0,))
    assert runs(core.step(Consumed((0, 0)), 0.0)) == [((1,), 0)]
    assert core.forced == 2


def test_what_parked_generators_hold_counts() -> None:
    core = Core([Demand(output_bytes=10, open_bytes=100)], 2, 150)
    assert runs(core.step(Arrive(2), 0.0)) == [((0,), 0)], "two would hold 220"
    core.step(SliceDone((0,), 10, 1.0, more=True, parked_bytes=100), 0.0)
    assert core.state.used_bytes == 120
    assert core.state.parked_bytes == 100
    core.step(SliceDone((0,), 10, 1.0, more=False, parked_bytes=100), 0.0)
    assert core.state.parked_bytes == 0


def test_until_settled_only_the_head_is_in_flight() -> None:
    core = Core([TEN], 4, 1000, settling=True)
    assert runs(core.step(Arrive(4), 0.0)) == [((0,), 0)]
    assert runs(done(core, (0,), nbytes=None)) == [((1,), 0)], "unit 0 had no rows"
    assert runs(done(core, (1,), more=True)) == [], "its rows may settle it"
    assert runs(core.step(Settled(), 0.0)) == [((1,), 1), ((2,), 0), ((3,), 0)]


def test_settling_an_unordered_run_frees_its_order() -> None:
    core = Core([TEN], 2, 1000, ordered=False, settling=True)
    core.step(Arrive(3), 0.0)
    done(core, (0,))
    core.step(Settled(), 0.0)
    assert offers(done(core, (2,))) == [(2, 0)]
    assert offers(done(core, (1,))) == [(1, 0)]
    assert core.finished


def test_ahead_bounds_what_is_made_beyond_the_consumer() -> None:
    core = Core([TEN], 4, 1000, ahead=2)
    assert len(runs(core.step(Arrive(9), 0.0))) == 2
    assert not runs(done(core, (0,)))
    assert runs(core.step(Consumed((0, 0)), 0.0)) == [((2,), 0)]


def test_an_error_stands_in_its_place_and_nothing_behind_it_starts() -> None:
    core = Core([TEN], 2, 1000)
    core.step(Arrive(9), 0.0)
    failed = core.step(TaskFailed((1,)), 0.0)
    assert not runs(failed)
    assert not offers(failed)
    assert not core.finished
    more = done(core, (0,), more=True)
    assert runs(more) == [((0,), 1)], "what stands before the error is still made"
    last = done(core, (0,))
    assert [a for a in last if isinstance(a, Offer)] == [Offer((0, 1), False), Offer((1, 0), True)]
    assert core.finished


def test_of_two_errors_the_first_in_order_is_told() -> None:
    core = Core([TEN], 2, 1000)
    core.step(Arrive(9), 0.0)
    core.step(TaskFailed((1,)), 0.0)
    assert offers(core.step(TaskFailed((0,)), 0.0)) == [(0, 0)]
    assert not runs(core.step(Consumed((0, 0)), 0.0))


def test_an_unordered_run_tells_an_error_at_once() -> None:
    core = Core([TEN], 2, 1000, ordered=False)
    core.step(Arrive(9), 0.0)
    assert core.step(TaskFailed((1,)), 0.0) == [Offer((1, 0), True)]
    assert core.finished


def test_a_failed_slice_runs_again_as_often_as_the_policy_says() -> None:
    core = Core([TEN], 1, 1000, StreamingPolicy(retries=1))
    core.step(Arrive(1), 0.0)
    done(core, (0,), more=True)
    assert runs(core.step(TaskFailed((0,)), 0.0)) == [((0,), 1)]
    assert not runs(core.step(TaskFailed((0,)), 0.0))
    assert core.finished


def test_a_lost_slice_is_not_an_error_of_the_unit() -> None:
    core = Core([TEN], 1, 1000)
    core.step(Arrive(1), 0.0)
    assert runs(core.step(TaskFailed((0,), lost=True), 0.0)) == [((0,), 0)]


def test_slots_may_grow_and_shrink() -> None:
    core = Core([TEN], 1, 1000)
    core.step(Arrive(9), 0.0)
    assert runs(core.step(Resources({"cpu": 3.0}, 1000), 0.0)) == [((1,), 0), ((2,), 0)]
    assert not runs(core.step(Resources({"cpu": 1.0}, 1000), 0.0))
    assert not runs(done(core, (0,)))
    assert not runs(done(core, (1,)))
    assert runs(done(core, (2,))) == [((3,), 0)]


def test_a_parallel_bound_holds_below_the_slots() -> None:
    core = Core([Demand(output_bytes=10, max_parallel=2)], 8, 1000)
    assert len(runs(core.step(Arrive(9), 0.0))) == 2


def test_fractions_of_a_slot_add_up() -> None:
    core = Core([Demand(resources=(("gpu", 0.1),), output_bytes=1)], {"gpu": 1.0}, 10_000)
    assert len(runs(core.step(Arrive(50), 0.0))) == 10


def test_close_frees_what_is_stored_and_starts_nothing() -> None:
    core = Core([TEN], 2, 1000)
    core.step(Arrive(9), 0.0)
    done(core, (1,))
    assert core.step(Close(), 0.0) == [Free((1, 0))]
    assert done(core, (0,)) == []
    assert core.finished


def test_a_resource_that_nothing_offers_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="'train' needs gpu=1") as caught:
        Core([Demand("train", (("gpu", 1.0),))], 8, 1000)
    assert "cpu=8" in caught.value.why


def test_a_slice_that_was_not_running_cannot_end() -> None:
    with pytest.raises(InternalError, match="not running"):
        Core([TEN], 1, 1000).step(SliceDone((0,), 1, 1.0, more=False), 0.0)


def test_no_units_end_at_once() -> None:
    core = Core([TEN], 1, 1000)
    assert core.step(Arrive(0), 0.0) == []
    assert core.finished
    assert core.step(Tick(), 1.0) == []


# ------------------------------------------------------------------------------ by hand, two stages


def test_an_input_is_freed_when_the_task_below_is_done() -> None:
    core = Core([TEN, TEN], 2, 1000)
    core.step(Arrive(1), 0.0)
    assert runs(done(core, (0,))) == [((0, 0), 0)]
    assert not [a for a in done(core, (0, 0), more=True) if isinstance(a, Free)]
    last = done(core, (0, 0))
    assert Free((0, 0)) in last
    assert offers(last) == [(0, 0, 1)]
    assert core.finished


def test_errors_below_keep_order_too() -> None:
    core = Core([TEN, TEN], 4, 1000)
    core.step(Arrive(1), 0.0)
    done(core, (0,), more=True)
    done(core, (0,), more=True)
    core.step(TaskFailed((0, 1)), 0.0)
    last = done(core, (0, 0))
    assert [a for a in last if isinstance(a, Offer)] == [
        Offer((0, 0, 0), False),
        Offer((0, 1, 0), True),
    ]


# ------------------------------------------------------------------------------------ random chains


ONE = st.just(1.0)


def slices_of(seed: int, least: int) -> Callable[[Seq], int]:
    return lambda seq: least + hash((seed, *seq)) % 4


def truth_of(
    one: TaskTruth, count: Callable[[Seq], int], *, vary: bool
) -> Callable[[Seq], TaskTruth]:
    def truth(seq: Seq) -> TaskTruth:
        size = one.output_bytes // (1 + hash(seq) % 3 if vary else 1)
        return replace(one, slices=count(seq), output_bytes=size)

    return truth


@st.composite
def chains(draw: st.DrawFn, *, vary: bool) -> Chain:
    demands: list[Demand] = []
    truths: list[Callable[[Seq], TaskTruth]] = []
    for stage in range(draw(st.integers(1, 3))):
        size = draw(st.integers(0, 20))
        parked = draw(st.sampled_from([0, 0, 7]))
        resource = draw(st.sampled_from(["cpu", "gpu"])) if stage else "cpu"
        bounded = draw(st.booleans()) if vary else False
        amount = draw(st.sampled_from([0.25, 1.0, 1.0, 2.0, 3.0]) if resource == "cpu" else ONE)
        most = draw(st.sampled_from([None, None, 1, 2]))
        asked = ((resource, amount),)
        demand = Demand(f"s{stage}", asked, size, parked, max_parallel=most, bounded=bounded)
        demands.append(demand)
        seed, seconds = draw(st.integers(0, 99)), draw(st.floats(0.1, 5.0))
        count = slices_of(seed, draw(st.integers(0, 1)))
        truths.append(truth_of(TaskTruth(seconds, size, 1, parked, noise=0.5), count, vary=vary))
    return demands, truths


def expected(truths: list[Callable[[Seq], TaskTruth]], units: int) -> list[Seq]:
    seqs: list[Seq] = [(unit,) for unit in range(units)]
    for truth in truths:
        seqs = [(*seq, k) for seq in seqs for k in range(truth(seq).slices)]
    return seqs


def way_of_the_head(chain: Chain) -> int:
    """Bytes that one partition and its tasks hold on their way through all stages."""
    return sum(demand.output_bytes + demand.open_bytes for demand in chain[0])


def simulated(
    chain: Chain,
    limit: int,
    policy: Policy | None = None,
    *,
    ordered: bool = True,
) -> tuple[ClusterTrace, list[Seq]]:
    demands, truths = chain
    cluster = VirtualCluster(
        demands,
        truths,
        {"cpu": 3.0, "gpu": 1.0},
        limit,
        policy,
        ordered=ordered,
        consume_s=0.3,
        seed=limit,
    )
    return cluster.run(9), expected(truths, 9)


@pytest.mark.law
@given(chains(vary=False), st.integers(1, 400))
def test_order_is_exact_memory_holds_and_no_slot_idles(chain: Chain, limit: int) -> None:
    trace, want = simulated(chain, limit)
    assert not trace.stuck
    assert trace.offers == want
    assert not trace.idle
    if limit >= way_of_the_head(chain):
        assert not trace.forced
    if not trace.forced:
        assert not trace.over
        assert trace.peak_bytes <= limit


@pytest.mark.law
@given(chains(vary=True), st.integers(1, 400))
def test_sizes_that_vary_keep_order_and_progress(chain: Chain, limit: int) -> None:
    trace, want = simulated(chain, limit)
    assert not trace.stuck
    assert trace.offers == want
    assert not trace.idle
    assert len(trace.over) <= trace.forced
    if not trace.forced and all(demand.bounded for demand in chain[0]):
        assert trace.peak_bytes <= limit


@pytest.mark.law
@given(chains(vary=True), st.integers(1, 400))
def test_unordered_runs_offer_each_place_once(chain: Chain, limit: int) -> None:
    trace, want = simulated(chain, limit, ordered=False)
    assert not trace.stuck
    assert sorted(trace.offers) == want


@pytest.mark.law
@given(chains(vary=True), st.integers(1, 400), st.integers(0, 10_000))
def test_no_policy_changes_what_is_delivered(chain: Chain, limit: int, seed: int) -> None:
    trace, want = simulated(chain, limit, FuzzPolicy(seed, least_slots=3))
    assert not trace.stuck
    assert trace.offers == want
    assert len(trace.over) <= trace.forced


@given(st.lists(st.sampled_from(["done", "more", "fail", "lost", "take", "tick"]), max_size=60))
def test_any_order_of_events_accounts_for_every_byte(plan: list[str]) -> None:
    core = Core([TEN], 2, 50)
    running = {a.seq for a in core.step(Arrive(6), 0.0) if isinstance(a, Run)}
    line: list[Seq] = []
    for word in plan:
        event: Event = Tick()
        if word == "take" and line:
            event = Consumed(line.pop(0))
        elif word not in {"take", "tick"} and running:
            seq = min(running)
            running.remove(seq)
            fate = TaskFailed(seq, lost=word == "lost")
            event = fate if word in {"fail", "lost"} else SliceDone(seq, 10, 1.0, word == "more")
        for action in core.step(event, 0.0):
            running |= {action.seq} if isinstance(action, Run) else set()
            line += [action.seq] if isinstance(action, Offer) else []
        state = core.state
        assert state.reserved_bytes == 10 * len(running)
        assert 0 <= state.offered_bytes <= state.stored_bytes
        assert state.used_bytes <= 50
