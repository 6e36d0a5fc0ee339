"""Test the baseline policies: traces computed by hand, and the memory limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.exec.scheduler.baseline_policies import (
    POLICIES,
    Conservative,
    Optimistic,
    Rate,
    Staged,
    Static,
    policy_of,
    shared,
    slices_each,
    source_partition_s,
)
from dml.exec.scheduler.core import Core
from dml.exec.scheduler.messages import Arrive, Consumed, Event, Offer, Resources, Run, SliceDone
from dml.exec.scheduler.policy import Candidate, Demand, Load, Seq, State
from dml.settings import SCHEDULER_POLICIES
from dml.verify.simulate.virtual_cluster import ClusterTrace, TaskTruth, VirtualCluster
from tests.exec.scheduler.test_core import Chain, chains, expected, simulated, way_of_the_head

NAMES = sorted(POLICIES)


def test_settings_and_policies_have_the_same_names() -> None:
    assert tuple(POLICIES) == SCHEDULER_POLICIES


# ------------------------------------------------------------------------- Algorithms 1 and 2 (4.3)


def test_the_budget_is_refilled_as_in_the_example_of_the_paper() -> None:
    transform = Rate(slots=6, seconds=12, input_bytes=1, output_bytes=2)
    inference = Rate(slots=4, seconds=2, input_bytes=2, output_bytes=1)
    assert source_partition_s([transform]) == 2
    assert source_partition_s([transform, inference]) == 3
    assert source_partition_s([transform, inference]) - source_partition_s([transform]) == 1


def test_the_example_from_a_state_of_the_run() -> None:
    """Two of eight processors load, transform takes 12 s and doubles, four GPUs take 2 s."""
    loads = [Load(Demand(output_bytes=10), 8.0), Load(Demand(output_bytes=20), 8.0)]
    loads.append(Load(Demand(resources=(("gpu", 1.0),), output_bytes=0), 4.0))
    for load, seconds, nbytes in zip(loads, (5.0, 12.0, 2.0), (10, 20, 0), strict=True):
        load.measure(seconds, nbytes, 0)
    loads[0].running = 2
    policy = Optimistic()
    policy.shape({"cpu": 8.0, "gpu": 4.0}, 100)
    state = State(loads, 100)
    assert policy.rates(state) == [Rate(6, 12, 10, 20), Rate(4, 2, 20, 0)]
    policy.refill(state)
    assert policy.budget == 100
    state.stored_bytes, state.now = 95, 2.0
    policy.refill(state)
    assert policy.budget == 5, "no more than memory has"
    state.stored_bytes, state.now = 0, 5.9
    policy.refill(state)
    assert policy.budget == 5 + 3 * 10 / 3, "whole seconds; a partition every three of them"


def test_a_task_of_several_partitions_takes_as_long_as_all_of_them() -> None:
    above, load = Load(Demand(), 1.0), Load(Demand(), 1.0)
    assert slices_each(load, above) == 1
    above.samples, load.samples, load.ready = 5, 9, [(4, 0), (5, 0)]
    assert slices_each(load, above) == 3


class Steps:
    """A core that is told what happened, and its starts as (stage, first places)."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def tell(self, event: Event, now: float) -> list[Seq]:
        actions = self.core.step(event, now)
        runs = [action.seq for action in actions if isinstance(action, Run)]
        for action in actions:
            if isinstance(action, Offer):
                runs += self.tell(Consumed(action.seq), now)
        return runs

    def done(self, seq: Seq, now: float) -> list[Seq]:
        demand = self.core.demands[len(seq) - 1]
        return self.tell(SliceDone(seq, demand.output_bytes, demand.seconds, more=False), now)


PAPER = [
    Demand("load", output_bytes=10, seconds=2.0, bounded=True),
    Demand("transform", output_bytes=10, seconds=1.0, bounded=True),
    Demand("infer", (("gpu", 1.0),), output_bytes=0, seconds=1.0, bounded=True),
]


def test_algorithm_1_step_by_step() -> None:
    """Load (2 s), transform and infer (1 s), 2 processors and a GPU, four partitions of memory.

    Every line was computed by hand: budget B, memory used U, then what starts.
    """
    policy = Optimistic()
    core = Core(PAPER, {"cpu": 2.0, "gpu": 1.0}, 40, policy, ordered=False)
    run = Steps(core)
    # B=40: two loads, each takes 10 of it; U=20
    assert run.tell(Arrive(4), 0.0) == [(0,), (1,)]
    assert policy.budget == 20
    # two seconds at P = 1/1 + 1/1 give 2 * 10/2: B=30, but 40-U=20; the source comes first
    assert run.done((0,), 2.0) == [(2,)]
    assert policy.budget == 10
    # U=30, B=10: a fourth load would leave no room to transform, so Q has transform alone
    assert run.done((1,), 2.0) == [(0, 0)]
    # U=30, B = min(10 + 5, 10): infer has nothing in store, transform 10: infer, transform
    assert run.done((0, 0), 3.0) == [(0, 0, 0), (1, 0)]
    # U=30, and no processor is free
    assert run.done((0, 0, 0), 4.0) == []
    # U=30: as at 2 s
    assert run.done((2,), 4.0) == [(2, 0)]
    # U=30: load 3 does not fit, nothing waits to be transformed, a processor stays free
    assert run.done((1, 0), 4.0) == [(1, 0, 0)]
    # U=20; both processors are transform's now: P = 1/2 + 1/1, B = 10 + 10/1.5
    assert run.done((1, 0, 0), 5.0) == [(3,)]
    assert policy.budget == pytest.approx(10 / 1.5)
    # U=20; the load took one of them again: B = 6.67 + 10/2, and no load is left
    assert run.done((2, 0), 6.0) == [(2, 0, 0)]
    assert policy.budget == pytest.approx(10 / 1.5 + 5)
    assert run.done((2, 0, 0), 7.0) == []
    assert run.done((3,), 7.0) == [(3, 0)]
    assert run.done((3, 0), 8.0) == [(3, 0, 0)]
    assert run.done((3, 0, 0), 9.0) == []
    assert core.finished
    assert (core.forced, core.peak_bytes) == (0, 40)


def test_the_conservative_way_is_the_same_without_the_budget() -> None:
    """What the source would start on its budget waits until a way to the sink is free."""
    stages = [Demand("load", output_bytes=10), Demand("infer", (("gpu", 1.0),), output_bytes=0)]
    core = Core(stages, {"cpu": 3.0, "gpu": 1.0}, 30, Conservative(), ordered=False)
    run = Steps(core)
    assert run.tell(Arrive(5), 0.0) == [(0,), (1,), (2,)]
    assert run.done((1,), 1.0) == [(1, 0)], "all 30 are held or promised"
    assert run.done((0,), 1.0) == []
    assert run.done((1, 0), 2.0) == [(0, 0), (3,)], "nothing waits after infer: it goes first"


def test_parked_tasks_keep_their_slots() -> None:
    """But for the head of the line, which nothing may hold up."""
    load = Load(Demand(output_bytes=1), 2.0)
    load.parked = [(1,)]
    policy = Conservative()
    policy.shape({"cpu": 2.0}, 100)
    state = State([load], 100)
    fresh, other = (Candidate(0, (n,), fresh=n != 1, head=False, need_bytes=1) for n in (2, 1))
    assert policy.choose(state, [other, fresh]) is other
    assert policy.choose(state, [fresh]) is fresh
    load.running = 1
    assert policy.choose(state, [fresh]) is None
    assert policy.choose(state, [fresh._replace(head=True)]) is not None


# ------------------------------------------------------------------------------ static and staged


def cpu(amount: float = 1.0, most: int | None = None) -> Demand:
    return Demand(resources=(("cpu", amount),), output_bytes=10, max_parallel=most)


@pytest.mark.parametrize(
    ("demands", "quotas"),
    [
        ([cpu(), cpu()], [4, 4]),
        ([cpu(), cpu(), cpu()], [3, 3, 2]),
        ([cpu(), cpu(most=5)], [3, 5]),
        ([cpu(), cpu(2.0)], [4, 2]),
        ([cpu(), Demand(resources=(("gpu", 1.0),)), cpu()], [4, 2, 4]),
        ([cpu(), Demand(resources=(("gpu", 0.5),))], [8, 4]),
        ([cpu(), cpu(most=8)], [1, 8]),
        ([cpu(), Demand(resources=())], [8, 1]),
        ([cpu(8.0), cpu(8.0)], [1, 1]),
    ],
)
def test_slots_are_shared_evenly_where_nothing_else_is_asked(
    demands: list[Demand], quotas: list[float]
) -> None:
    assert shared(demands, {"cpu": 8.0, "gpu": 2.0}) == quotas


def test_new_slots_are_shared_anew() -> None:
    core = Core([cpu(), cpu()], 2, 1 << 30, Static())
    starts = core.step(Arrive(9), 0.0)
    assert len(starts) == 1
    more = core.step(Resources({"cpu": 6.0}, 1 << 30), 0.0)
    assert len([action for action in more if isinstance(action, Run)]) == 2


def at_once(trace: ClusterTrace, truths: list[TaskTruth], stage: int) -> int:
    """The most slices of a stage that ran side by side."""
    own = [at for at, run in trace.launches if run.stage == stage]
    return max(sum(at <= now < at + truths[stage].seconds for at in own) for now in own)


@pytest.mark.parametrize("ordered", [True, False])
def test_static_stages_never_lend_a_slot(*, ordered: bool) -> None:
    demands, truths = [cpu(most=3), cpu()], [TaskTruth(1.0, 10, 2), TaskTruth(2.0, 10)]
    trace = VirtualCluster(demands, truths, 8, 10_000, Static(), ordered=ordered).run(30)
    assert at_once(trace, truths, 0) == 3
    assert at_once(trace, truths, 1) == 5


def runs_of(trace: ClusterTrace) -> list[tuple[int, int]]:
    """Stages in the order in which they had their turn, with how many slices each started."""
    turns: list[tuple[int, int]] = []
    for _, run in trace.launches:
        stage, count = turns.pop() if turns and turns[-1][0] == run.stage else (run.stage, 0)
        turns.append((stage, count + 1))
    return turns


@pytest.mark.parametrize("ordered", [True, False])
def test_a_stage_is_made_whole_before_the_next(*, ordered: bool) -> None:
    demands, truths = [cpu()] * 3, [TaskTruth(1.0, 10, 2), TaskTruth(2.0, 10), TaskTruth(1.0, 0)]
    trace = VirtualCluster(demands, truths, 3, 10_000, Staged(), ordered=ordered).run(20)
    assert runs_of(trace) == [(0, 40), (1, 40), (2, 40)]


@pytest.mark.parametrize("ordered", [True, False])
def test_stages_take_turns_where_one_is_more_than_memory(*, ordered: bool) -> None:
    demands, truths = [cpu()] * 3, [TaskTruth(1.0, 10, 2), TaskTruth(2.0, 10), TaskTruth(1.0, 0)]
    trace = VirtualCluster(demands, truths, 3, 150, Staged(), ordered=ordered).run(20)
    turns = runs_of(trace)
    assert trace.peak_bytes <= 150
    assert not trace.forced
    assert not trace.stuck
    assert [stage for stage, _ in turns[:6]] == [0, 1, 2, 0, 1, 2]
    assert sum(count for _, count in turns) == 120
    assert len(turns) < 40, "a turn takes in what memory holds, not one partition"


# -------------------------------------------------------------------------------- any chain of work


@pytest.mark.law
@given(chains(vary=False), st.integers(1, 400), st.sampled_from(NAMES))
def test_every_policy_keeps_order_and_the_memory_law(chain: Chain, limit: int, name: str) -> None:
    trace, want = simulated(chain, limit, policy_of(name))
    assert not trace.stuck
    assert trace.offers == want
    if limit >= way_of_the_head(chain):
        assert not trace.forced
    if not trace.forced:
        assert not trace.over
        assert trace.peak_bytes <= limit


@pytest.mark.law
@given(chains(vary=True), st.integers(1, 400), st.sampled_from(NAMES), st.booleans())
def test_every_policy_comes_to_an_end(
    chain: Chain,
    limit: int,
    name: str,
    ordered: bool,
) -> None:
    trace, want = simulated(chain, limit, policy_of(name), ordered=ordered)
    assert not trace.stuck
    assert len(trace.over) <= trace.forced
    assert (trace.offers if ordered else sorted(trace.offers)) == want


@pytest.mark.law
@given(chains(vary=False), st.integers(100, 400))
def test_static_holds_to_its_quotas(chain: Chain, limit: int) -> None:
    demands, truths = chain
    policy = Static()
    cluster = VirtualCluster(demands, truths, {"cpu": 3.0, "gpu": 1.0}, limit, policy)
    most = [0] * len(demands)
    perform = cluster.step

    def watched(event: Event) -> None:
        perform(event)
        for stage, load in enumerate(cluster.core.state.loads):
            most[stage] = max(most[stage], load.running)

    cluster.step = watched  # type: ignore[method-assign]
    trace = cluster.run(9)
    assert trace.offers == expected(truths, 9)
    if not trace.forced:
        quotas = shared(demands, {"cpu": 3.0, "gpu": 1.0})
        assert all(seen <= quota for seen, quota in zip(most, quotas, strict=True))
