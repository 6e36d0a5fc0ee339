"""Test the solver: equal to exhaustive search, valid schedules, the paper's example."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml.errors import PlanError
from dml.exec.scheduler.policy import Demand
from dml.verify.simulate.schedule_solver import Problem, SolverOperator, solve
from dml.verify.simulate.virtual_cluster import TaskTruth, VirtualCluster
from tests.sampling import amount

MOST_TASKS = 12


@st.composite
def operators(draw: st.DrawFn) -> SolverOperator:
    needs = draw(st.sampled_from([{"cpu": 1}, {"gpu": 1}, {"cpu": 1, "gpu": 1}, {"cpu": 2}]))
    return SolverOperator(
        draw(st.integers(1, 4)),
        gives=draw(st.integers(1, 2)),
        size=draw(st.integers(0, 2)),
        needs=tuple(needs.items()),
        most=draw(st.sampled_from([None, None, None, 1, 2])),
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Chains of at most three operators and twelve tasks."""
    first = draw(operators())
    rest = draw(st.lists(operators(), max_size=2))
    slots = {"cpu": draw(st.integers(2, 3)), "gpu": draw(st.integers(1, 2))}
    buffer = draw(st.sampled_from([None, 2, 3, 4, 5, 6, 8]))
    tasks = draw(st.sampled_from([2, 4, 1, 3, 6]))
    while sum(Problem((first, *rest), tasks, slots).totals) > MOST_TASKS:
        rest = rest[:-1]
    return Problem((first, *rest), tasks, slots, buffer)


class Moment(NamedTuple):
    """Of each operator: tasks not started, ticks left of those that run, partitions given."""

    waiting: tuple[int, ...]
    running: tuple[tuple[int, ...], ...]
    given: tuple[int, ...]


def tried(problem: Problem) -> int | None:
    """The shortest schedule, by trying every set of starts at every tick; None if none ends."""
    chain = problem.operators
    now = {Moment(problem.totals, ((),) * len(chain), (0,) * len(chain))}
    seen: set[Moment] = set()
    for tick in itertools.count():
        if any(not any(each.waiting) and not any(each.running) for each in now):
            return tick
        seen |= now
        later = {ticked(problem, begun) for each in now for begun in begins(problem, each)}
        now = later - seen
        if not now:
            return None
    return None


def begins(problem: Problem, now: Moment) -> Iterator[Moment]:
    for starts in itertools.product(*(range(n + 1) for n in now.waiting)):
        each = begun(problem, now, starts)
        if each is not None:
            yield each


def begun(problem: Problem, now: Moment, starts: tuple[int, ...]) -> Moment | None:
    """What follows from such starts; None if something is lacking."""
    chain, given_ = problem.operators, list(now.given)
    waiting: list[int] = []
    running: list[tuple[int, ...]] = []
    for i, (each, n) in enumerate(zip(chain, starts, strict=True)):
        waiting.append(now.waiting[i] - n)
        running.append(tuple(sorted((*now.running[i], *[each.ticks] * n))))
        if i and given_[i - 1] - len(running[i]) < 0:
            return None
        if each.most is not None and len(running[i]) > each.most:
            return None
    for name, slots in problem.slots.items():
        used = [dict(each.needs).get(name, 0) * len(running[i]) for i, each in enumerate(chain)]
        if sum(used) > slots:
            return None
    taken = (each.size * (given_[i] + each.gives * len(running[i])) for i, each in enumerate(chain))
    if problem.buffer is not None and sum(taken) > problem.buffer:
        return None
    return Moment(tuple(waiting), tuple(running), tuple(given_))


def ticked(problem: Problem, now: Moment) -> Moment:
    """A tick later; what tasks took is theirs until they end."""
    chain, given_ = problem.operators, list(now.given)
    for i, running in enumerate(now.running):
        ended = running.count(1)
        given_[i] += ended * chain[i].gives
        if i:
            given_[i - 1] -= ended
    given_[-1] = 0
    left = tuple(tuple(n - 1 for n in each if n > 1) for each in now.running)
    return Moment(now.waiting, left, tuple(given_))


@pytest.mark.law
@settings(max_examples=amount(60, 150))
@given(problems())
def test_the_solver_equals_trying_everything(problem: Problem) -> None:
    best = tried(problem)
    if best is None:
        with pytest.raises(PlanError):
            solve(problem)
        return
    found = solve(problem)
    assert found.ticks == found.bound == best


@pytest.mark.law
@settings(max_examples=amount(40, 100))
@given(problems(), st.integers(0, 20))
def test_what_gives_up_knows_a_bound(problem: Problem, states: int) -> None:
    """A bound never exceeds the optimum."""
    try:
        best = solve(problem).ticks
    except PlanError:
        return
    assert best is not None
    few = solve(problem, most_states=states)
    assert few.bound <= best
    assert few.ticks in (None, best)


@pytest.mark.law
@settings(max_examples=amount(40, 100))
@given(problems())
def test_no_run_of_the_core_is_shorter(problem: Problem) -> None:
    """The core with its policy, on tasks that give one partition each, is a schedule as others."""
    chain = problem.operators
    if any(each.gives > 1 for each in chain):
        return
    try:
        best = solve(problem).ticks
    except PlanError:
        return
    stages = [
        Demand("", each.needs, int(each.size), 0, each.ticks, each.most, bounded=True)
        for each in chain
    ]
    truth = [TaskTruth(each.ticks, int(each.size)) for each in chain]
    limit = int(1e9 if problem.buffer is None else problem.buffer)
    trace = VirtualCluster(stages, truth, problem.slots, limit).run(problem.tasks)
    assert best is not None
    if not trace.forced:
        assert trace.seconds >= best


LOAD, TRANSFORM = SolverOperator(2), SolverOperator(1)  # half seconds, partitions of 100 rows
INFER = SolverOperator(1, gives=0, needs=(("gpu", 1),))


@pytest.mark.law
@pytest.mark.parametrize(
    ("buffer_gb", "seconds"), [(0.8, 300.5), (1.2, 200.5), (2, 151), (4, 151), (8, 151)]
)
def test_the_memory_aware_instance_is_solved(buffer_gb: float, seconds: float) -> None:
    """Section 5.3.1, partitions streamed: four slots, and tasks, as one. The paper's has 153 s."""
    slots = {"cpu": 8 // 4, "gpu": 4 // 4}
    tasks = 160 * 5 // 4
    found = solve(Problem((LOAD, TRANSFORM, INFER), tasks, slots, buffer_gb / 0.4))
    assert found.ticks == seconds * 2


@pytest.mark.law
def test_the_memory_aware_instance_without_streaming_needs_more_memory() -> None:
    """The same, where what a load gives comes all at once: 2 GB are not enough to begin with."""
    chain, slots = (SolverOperator(10, gives=5), TRANSFORM, INFER), {"cpu": 2, "gpu": 1}
    found = solve(Problem(chain, 40, slots, 6.4 / 0.4))
    assert found.ticks == 2 * 152
    assert solve(Problem(chain, 40, slots, 4 / 0.4)).ticks == 2 * 222.5


def drawn(seed: int, *, scarce: bool) -> Problem:
    """Up to three operators and 24 tasks; where memory is scarce, some partitions fit."""
    draw = random.Random(seed)
    chain = tuple(
        SolverOperator(
            draw.randint(1, 6),
            size=draw.randint(1, 4),
            needs=((draw.choice(["cpu", "gpu"]) if number else "cpu", 1),),
            most=draw.choice([None, None, None, 2]),
        )
        for number in range(draw.randint(1, 3))
    )
    tasks, slots = draw.randint(1, 24 // len(chain)), {"cpu": draw.randint(1, 4), "gpu": 2}
    room = sum(each.size for each in chain) + draw.randint(0, 6)
    return Problem(chain, tasks, slots, room if scarce else None)


@pytest.mark.law
@pytest.mark.parametrize(("scarce", "worst"), [(False, 1.35), (True, 2.5)])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_core_is_near_the_optimum(worst: float, *, scarce: bool, ordered: bool) -> None:
    """Against the best schedule there is, though the core does not know what comes."""
    ratios = []
    for seed in range(100):
        problem = drawn(seed, scarce=scarce)
        chain, best = problem.operators, solve(problem).ticks
        stages = [
            Demand("", each.needs, int(each.size), 0, each.ticks, each.most, bounded=True)
            for each in chain
        ]
        truth = [TaskTruth(each.ticks, int(each.size)) for each in chain]
        limit = int(problem.buffer or 1e9)
        trace = VirtualCluster(stages, truth, problem.slots, limit, ordered=ordered).run(
            problem.tasks
        )
        assert best is not None
        assert not trace.stuck
        assert not trace.forced
        ratios.append(trace.seconds / best)
    assert min(ratios) >= 1
    assert statistics.median(ratios) <= 1.03
    assert max(ratios) <= worst


def test_two_tasks_of_an_operator_share_two_slots() -> None:
    found = solve(Problem((SolverOperator(3), SolverOperator(2)), 2, {"cpu": 2}))
    assert found.ticks == 5


def test_tasks_that_never_fit_have_no_schedule() -> None:
    with pytest.raises(PlanError, match="no schedule comes to its end"):
        solve(Problem((SolverOperator(1, size=3),), 1, {"cpu": 1}, buffer=2))
    with pytest.raises(PlanError, match="no schedule comes to its end"):
        solve(Problem((SolverOperator(1, needs=(("gpu", 1),)),), 1, {"cpu": 1}))
