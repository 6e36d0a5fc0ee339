"""Test which slices fit together, and that no schedule beats the bound computed from that."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml.errors import PlanError
from dml.exec.scheduler.policy import Demand
from dml.verify.simulate.schedule_solver import Problem, SolverOperator, solve
from dml.verify.simulate.virtual_cluster import TaskTruth
from tests.exec.schedule_bound import Boxes, SliceKind, lower_bound
from tests.sampling import amount

NEARLY = 1e-6
amounts = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0])


@st.composite
def boxes(draw: st.DrawFn) -> Boxes:
    """Up to three kinds on two resources; each fits at least once."""
    there_is = (draw(st.sampled_from([1.0, 2.0, 3.5])), draw(st.sampled_from([1.0, 3.0])))
    kinds = [
        SliceKind(tuple(min(draw(amounts), have) for have in there_is), draw(st.integers(1, 4)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    return Boxes(there_is, tuple(kinds))


def sets(given_: Boxes) -> Iterator[tuple[int, ...]]:
    """All that fits, by trying everything."""
    for counts in itertools.product(*(range(int(each.most) + 1) for each in given_.kinds)):
        if all(
            sum(n * each.takes[r] for n, each in zip(counts, given_.kinds, strict=True)) <= have
            for r, have in enumerate(given_.there_is)
        ):
            yield counts


def weighed(weights: Sequence[float], counts: Sequence[float]) -> float:
    return sum(w * n for w, n in zip(weights, counts, strict=True))


@pytest.mark.law
@settings(max_examples=amount(80, 200))
@given(boxes(), st.data())
def test_whatever_fits_weighs_at_most_one_and_the_weights_are_the_best(
    given_: Boxes, data: st.DataObject
) -> None:
    """No weights are better: sets that fit, each for some seconds, cover the work in that time."""
    work = [data.draw(st.sampled_from([0.0, 0.5, 1.0, 4.0, 30.0])) for _ in given_.kinds]
    weights, fitting = given_.weigh(work), list(sets(given_))
    assert min(weights) >= 0
    assert max(weighed(weights, counts) for counts in fitting) <= 1 + NEARLY
    found = weighed(weights, work)
    assert found == pytest.approx(tried(fitting, work), rel=1e-5, abs=1e-9)


def tried(fitting: Sequence[tuple[int, ...]], work: Sequence[float]) -> float:
    """The best weights stand where as many conditions hold exactly as there are weights."""
    size = len(work)
    conditions = [(counts, 1.0) for counts in fitting if any(counts)]
    conditions += [(tuple(int(i == j) for j in range(size)), 0.0) for i in range(size)]
    best = 0.0
    for chosen in itertools.combinations(conditions, size):
        weights = solved([list(map(float, row)) for row, _ in chosen], [one for _, one in chosen])
        if weights is None or min(weights) < -1e-9:
            continue
        if all(weighed(weights, counts) <= 1 + 1e-9 for counts in fitting):
            best = max(best, weighed(weights, work))
    return best


def solved(rows: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss and Jordan; None where the rows do not say enough."""
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda j: abs(rows[j][i]))
        if abs(rows[pivot][i]) < 1e-9:
            return None
        rows[i], rows[pivot], right[i], right[pivot] = rows[pivot], rows[i], right[pivot], right[i]
        for j in range(size):
            if j != i:
                times = rows[j][i] / rows[i][i]
                rows[j] = [a - times * b for a, b in zip(rows[j], rows[i], strict=True)]
                right[j] -= times * right[i]
    return [right[i] / rows[i][i] for i in range(size)]


def test_many_small_ones_are_counted_without_trying_all() -> None:
    """Six kinds of a quarter each, sixteen processors: more sets than anybody could try."""
    given_ = Boxes((16.0,), tuple(SliceKind((0.25,), math.inf) for _ in range(6)))
    assert weighed(given_.weigh([64.0] * 6), [64.0] * 6) == pytest.approx(6.0)


# -------------------------------------------------------------------------------------- the bound


@st.composite
def chains(draw: st.DrawFn) -> Problem:
    """Up to three operators and twelve tasks, on fractions of two resources, and little memory."""
    operators = [
        SolverOperator(
            draw(st.integers(1, 5)),
            size=draw(st.integers(0, 3)),
            needs=draw(
                st.sampled_from(
                    [
                        (("cpu", 1.0),),
                        (("cpu", 2.0),),
                        (("cpu", 0.5),),
                        (("gpu", 0.5),),
                        (("gpu", 1.0), ("cpu", 0.5)),
                    ]
                )
            ),
            most=draw(st.sampled_from([None, None, 1, 2])),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    tasks = draw(st.integers(1, 12 // len(operators)))
    slots = {"cpu": draw(st.sampled_from([2.0, 2.5, 3.0])), "gpu": 1.0}
    return Problem(tuple(operators), tasks, slots, draw(st.sampled_from([None, 4, 6, 9])))


@pytest.mark.law
@settings(max_examples=amount(100, 300))
@given(chains())
def test_no_schedule_beats_the_bound(problem: Problem) -> None:
    """The exact solver finds the shortest schedule there is; the bound never says more."""
    try:
        best = solve(problem).ticks
    except PlanError:
        return
    assert best is not None
    demands = [
        Demand(str(i), each.needs, int(each.size), 0, each.ticks, each.most, bounded=True)
        for i, each in enumerate(problem.operators)
    ]
    truth = [TaskTruth(each.ticks, int(each.size)) for each in problem.operators]
    limit = 10**9 if problem.buffer is None else int(problem.buffer)
    bound = lower_bound(demands, truth, problem.slots, limit, problem.tasks, ordered=False)
    assert bound.seconds <= best * (1 + 1e-9), bound


def test_stages_that_shut_each_other_out_are_added_up() -> None:
    """One takes the whole processor; of the other, a quarter each, only two may run."""
    demands = [Demand("a"), Demand("b", (("cpu", 0.25),), max_parallel=2)]
    truth = [TaskTruth(1.0, 1), TaskTruth(10.0, 1)]
    bound = lower_bound(demands, truth, {"cpu": 1.0}, 10**9, 8)
    assert bound.reasons["work on cpu"] < 45
    assert bound.seconds >= 8 + 40
    assert bound.bottleneck == "work side by side"


def test_few_are_at_work_at_the_beginning_and_at_the_end() -> None:
    """Four tasks on two processors: the second stage has one of them until both could start."""
    demands, truth = (
        [Demand("a", max_parallel=1), Demand("b", (("gpu", 1.0),))],
        [
            TaskTruth(1.0, 1),
            TaskTruth(4.0, 1),
        ],
    )
    assert lower_bound(demands, truth, {"cpu": 1.0, "gpu": 2.0}, 10**9, 4).seconds >= 9
