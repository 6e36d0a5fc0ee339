"""Compare the search for an arrangement with exhaustive search, and test its time limit."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml.optimize.engine import no_clock
from dml.optimize.search.dynamic_programme import (
    MAY,
    MUST,
    NEVER,
    ArrangedWay,
    ChainProblem,
    DriverCosts,
    StepCosts,
    search,
    seconds,
    usual_way,
)
from tests.sampling import amount

THREADS = DriverCosts("threads", shares_lock=True)
PROCESSES = DriverCosts("processes", 0.5, 0.01, 1e-9)
amounts = st.one_of(st.just(0.0), st.floats(0.001, 100))


@st.composite
def steps(draw: st.DrawFn, begins: tuple[str, ...]) -> StepCosts:
    spent = draw(amounts)
    return StepCosts(
        spent,
        draw(st.sampled_from([0.0, spent / 2, spent])),
        draw(st.floats(0, 1e4)),
        draw(st.sampled_from(begins)),
        draw(st.sampled_from([math.inf, 1.0, 3.0])),
        draw(st.booleans()),
    )


@st.composite
def chains(draw: st.DrawFn) -> ChainProblem:
    read = draw(steps((NEVER,)))
    rest = draw(st.lists(steps((NEVER, MAY, MAY, MUST)), max_size=5))
    over = draw(st.lists(steps((NEVER,)), max_size=3))
    least = 1 + sum(each.begins == MUST for each in rest)
    sizes = {
        stages: tuple(draw(st.lists(st.sampled_from([10, 100, 1000]), min_size=1, unique=True)))
        for stages in range(least, least + draw(st.integers(1, 3)))
    }
    drivers = draw(st.sampled_from([(THREADS,), (PROCESSES,), (THREADS, PROCESSES)]))
    return ChainProblem(
        (read, *rest),
        tuple(over),
        draw(st.integers(1, 5)),
        drivers,
        sizes,
        {size: draw(st.integers(1, 6)) for size in (10, 100, 1000)},
        draw(st.sampled_from([1.0, 4.0, 1000.0])),
        draw(st.floats(0, 10)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from([0.0, 500.0, 1e5])),
        draw(st.floats(0, 1e-3)),
    )


def every_way(chain: ChainProblem) -> Iterator[ArrangedWay]:
    """All ways without a cache, and then with one, written down without a thought."""
    kept: list[int | None] = [None]
    if chain.passes > 1 and chain.kept_bytes:
        kept += [i for i, each in enumerate((*chain.steps, *chain.over)) if each.keeps]
    for cache in kept:
        end = len(chain.steps) if cache is None else min(cache + 1, len(chain.steps))
        if end < len(chain.steps) and chain.steps[end].begins != MAY:
            continue
        may = [i for i in range(1, end) if chain.steps[i].begins == MAY]
        must = [i for i in range(1, end) if chain.steps[i].begins == MUST]
        counts = range(len(may) + 1)
        for some in itertools.chain(*(itertools.combinations(may, count) for count in counts)):
            cuts = tuple(sorted((*must, *some)))
            sizes = chain.sizes.get(len(cuts) + 1, ())
            for driver, size in itertools.product(chain.drivers, sizes):
                yield ArrangedWay(driver, size, cuts, cache)


def plainly(chain: ChainProblem, way: ArrangedWay) -> float:
    """What a way takes, by the definition: stage by stage, pass by pass."""
    driver, steps_, whole = way.driver, (*chain.steps, *chain.over), len(chain.steps)
    end = whole if way.kept is None else min(way.kept + 1, whole)
    bounds = [0, *way.cuts, end]
    tasks = chain.tasks[way.size]
    work = locked = caller = ends = 0.0
    for first, stop in itertools.pairwise(bounds):
        out = steps_[stop - 1].given_bytes
        gives = max(chain.tasks[way.size], min(math.ceil(out / way.size), int(chain.atoms)))
        mine = sum(each.seconds for each in steps_[first:stop]) + gives * driver.partition_s
        at_once = min(chain.workers, tasks, steps_[first].width)
        alone = math.ceil(tasks / at_once) * mine / tasks
        ends = max(chain.unit_s + alone, ends + mine / tasks) if first else alone
        work, caller, tasks = work + mine, caller + out * driver.byte_s, gives
        locked += sum(each.locked_s for each in steps_[first:stop])
    spent = driver.start_s
    for number in range(chain.passes):
        part, late = 1.0, steps_[end:]
        more = 0.0
        if way.kept is not None:
            nbytes = steps_[way.kept].given_bytes
            share = min(1.0, chain.kept_bytes / nbytes) if nbytes else 1.0
            part = 1.0 if number == 0 else 1 - share
            more = share * nbytes * chain.keep_s
            late = steps_[way.kept + 1 :]
        between = steps_[end : (end if way.kept is None else way.kept + 1)]
        mine = part * (caller + sum(each.seconds for each in between))
        mine += more + sum(each.seconds for each in late)
        lock = part * (locked + sum(each.locked_s for each in between))
        lock += sum(each.locked_s for each in late)
        lock = lock if driver.shares_lock else 0.0
        spent += max(part * work / chain.workers, lock, mine, part * ends)
    return spent


@pytest.mark.law
@settings(max_examples=amount(150, 400), deadline=None)
@given(chains())
def test_nothing_is_better_than_what_is_found(chain: ChainProblem) -> None:
    found = search(chain, no_clock)
    assert found.whole
    ways = list(every_way(chain))
    plain = [plainly(chain, way) for way in ways if way.kept is None]
    kept = [plainly(chain, way) for way in ways if way.kept is not None]
    best = found.ranked[0]
    assert best.seconds == pytest.approx(min(plain))
    assert (found.kept is not None) == bool(kept)
    if found.kept is not None:
        assert found.kept.seconds == pytest.approx(min(kept))
        assert found.kept.seconds == pytest.approx(plainly(chain, found.kept.way))
    assert {each.way for each in found.ranked} <= set(ways)
    for each in found.ranked:
        assert each.seconds == pytest.approx(plainly(chain, each.way))
        assert each.seconds == pytest.approx(seconds(chain, each.way))


@pytest.mark.law
@settings(max_examples=amount(50, 100), deadline=None)
@given(chains())
def test_the_next_best_is_the_best_of_another_kind(chain: ChainProblem) -> None:
    found = search(chain, no_clock)
    families: dict[tuple[str, int, int], float] = {}
    for way in every_way(chain):
        if way.kept is None:
            kind = (way.driver.name, len(way.cuts), way.size)
            families[kind] = min(families.get(kind, math.inf), plainly(chain, way))
    assert [each.seconds for each in found.ranked] == pytest.approx(sorted(families.values()))


@pytest.mark.law
@settings(max_examples=50, deadline=None)
@given(chains())
def test_the_same_question_has_the_same_answer(chain: ChainProblem) -> None:
    again = dataclasses.replace(chain, sizes=dict(chain.sizes), tasks=dict(chain.tasks))
    assert search(chain, no_clock) == search(again, no_clock)


class Ticking:
    """A clock that goes on by a second whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.law
@settings(max_examples=50, deadline=None)
@given(chains(), st.integers(1, 40))
def test_when_time_is_up_there_is_an_answer_no_worse_than_the_usual(
    chain: ChainProblem, deadline: int
) -> None:
    clock = Ticking()
    found = search(chain, clock, float(deadline))
    assert clock.now <= deadline + 1
    assert found.ranked[0].seconds <= found.usual.seconds
    assert found.usual.way == usual_way(chain)
    whole = search(chain, no_clock)
    assert found.ranked[0].seconds >= whole.ranked[0].seconds
    if found.whole:
        assert found == whole


def test_no_time_at_all_is_the_usual() -> None:
    chain = ChainProblem(
        (StepCosts(9.0), StepCosts(9.0, begins=MAY)), (), 2, (THREADS,), {1: (9,), 2: (9,)}, {9: 1}
    )
    found = search(chain, Ticking(), 0.0)
    assert not found.whole
    assert [each.way for each in found.ranked] == [usual_way(chain)] == [ArrangedWay(THREADS, 9)]


def test_one_unit_is_read_by_one_and_worked_on_by_all() -> None:
    heavy = StepCosts(8.0, given_bytes=800, begins=MAY)
    chain = ChainProblem(
        (StepCosts(1.0, given_bytes=800), heavy), (), 4, (THREADS,), {1: (10,), 2: (10,)}, {10: 1}
    )
    found = search(chain, no_clock)
    assert found.ranked[0].way.cuts == (1,)
    assert found.ranked[0].seconds == pytest.approx(9 / 4)
    assert found.usual.seconds == pytest.approx(9)


def test_python_is_as_slow_in_threads_as_in_one_until_it_moves() -> None:
    chain = ChainProblem(
        (StepCosts(0.1), StepCosts(8.0, 8.0)), (), 4, (THREADS, PROCESSES), {1: (10,)}, {10: 40}
    )
    found = search(chain, no_clock)
    assert [each.way.driver.name for each in found.ranked] == ["processes", "threads"]
    assert found.usual.seconds == pytest.approx(8.1 if chain.workers < 2 else 8.0)
    light = dataclasses.replace(chain, steps=(StepCosts(0.1), StepCosts(0.2, 0.2)))
    assert search(light, no_clock).ranked[0].way.driver is THREADS


def test_a_cache_spares_what_is_below_it_on_later_passes() -> None:
    below, above = StepCosts(3.0, given_bytes=100, keeps=True), StepCosts(0.5, given_bytes=100)
    chain = ChainProblem(
        (below,), (above,), 1, (THREADS,), {1: (10,)}, {10: 1}, passes=4, kept_bytes=50
    )
    found = search(chain, no_clock)
    assert found.kept is not None
    assert found.kept.way.kept == 0
    assert found.usual.seconds == pytest.approx(4 * 3.0)
    assert found.kept.seconds == pytest.approx(3.0 + 3 * 1.5), "half of it fits"


def test_a_thousand_operators_are_no_trouble() -> None:
    many = tuple(
        StepCosts(1.0 + i % 7, given_bytes=1e6, begins=MAY if i % 64 == 1 else NEVER)
        for i in range(1000)
    )
    sizes = dict.fromkeys((1, 2, 3), (1 << 24, 1 << 22, 1 << 20, 1 << 18))
    tasks = dict.fromkeys(sizes[1], 1)
    chain = ChainProblem(many, (), 2, (THREADS, PROCESSES), sizes, tasks)
    clock = Ticking()
    found = search(chain, clock, 1e9)
    assert found.whole
    assert clock.now < 2 * 3 * 4 * 20, "a look at the clock for each place where a stage may end"
