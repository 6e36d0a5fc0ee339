"""Test the number of concurrent slices of a function that waits, on simulated machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from dml.exec.scheduler.concurrency import (
    LATER,
    MOST,
    SLICE_BYTES,
    Concurrency,
    ConcurrencyChange,
    SliceFigures,
    Tuning,
)
from dml.exec.scheduler.core import Core
from dml.exec.scheduler.messages import Arrive, Consumed, Offer, Run, SliceDone
from dml.exec.scheduler.policy import Demand
from tests.exec.scheduler.waiting import Machine, Part, Simulation

NUMBERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MIB = 1 << 20

Row = Callable[[np.random.Generator, float], Sequence[Part]]


def noisy(draw: np.random.Generator, seconds: float, sigma: float = 0.5) -> float:
    """Log-normal seconds with the given mean."""
    return seconds * math.exp(sigma * draw.standard_normal() - sigma * sigma / 2)


def parts(*each: Part) -> Row:
    return lambda draw, _now: [(name, noisy(draw, seconds)) for name, seconds in each]


def bursts(wait: float, cpu: float, period: float) -> Row:
    """Every other ``period`` seconds, waits are ten times as long."""

    def row(draw: np.random.Generator, now: float) -> Sequence[Part]:
        factor = 10 if int(now / period) % 2 else 1
        return [("", noisy(draw, wait * factor)), ("lock", noisy(draw, cpu))]

    return row


LOCK, FREE, LARGE = {"lock": 1}, {"cpu": 2}, {"cpu": 16}
MACHINES = {
    # a function that waits, and then computes under Python's lock
    "10 ms, 0.1 under the lock": (Machine(LOCK, parts(("", 0.01), ("lock", 1e-4))), 20_000, 0.97),
    "10 ms, 1 under the lock": (Machine(LOCK, parts(("", 0.01), ("lock", 1e-3))), 10_000, 0.97),
    "1 ms, 0.1 under the lock": (Machine(LOCK, parts(("", 1e-3), ("lock", 1e-4))), 40_000, 0.97),
    "300 ms": (Machine(LOCK, parts(("", 0.3), ("lock", 2e-3))), 6_000, 0.96),
    "2 ms, 2 under the lock": (Machine(LOCK, parts(("", 2e-3), ("lock", 2e-3))), 4_000, 0.97),
    # computing without the lock, on two and on sixteen processors
    "10 ms, 1 on any of two": (Machine(FREE, parts(("", 0.01), ("cpu", 1e-3))), 20_000, 0.97),
    "10 ms, 5 on any of two": (Machine(FREE, parts(("", 0.01), ("cpu", 5e-3))), 4_000, 0.97),
    "10 ms, 1 of sixteen": (Machine(LARGE, parts(("", 0.01), ("cpu", 1e-3)), 16), 20_000, 0.97),
    "10 ms, 5 of sixteen": (Machine(LARGE, parts(("", 0.01), ("cpu", 5e-3)), 16), 20_000, 0.97),
    # computing alone
    "1 ms on any of two": (Machine(FREE, parts(("cpu", 1e-3))), 10_000, 0.97),
    # something else is scarce: a server with few connections, a disk
    **{
        f"a server of {n}": (
            Machine({**LOCK, "server": n}, parts(("server", 0.01), ("lock", 1e-4))),
            1_000 * n,
            0.97,
        )
        for n in (1, 3, 5, 10, 20)
    },
    "one disk": (Machine({**FREE, "disk": 1}, parts(("disk", 0.01), ("cpu", 5e-4))), 1_000, 0.97),
    "four disks": (Machine({**FREE, "disk": 4}, parts(("disk", 0.01), ("cpu", 5e-4))), 6_000, 0.97),
    # seconds that change by themselves
    "bursts of 3 s": (Machine(LOCK, bursts(0.01, 2e-4, 3.0)), 30_000, 0.97),
    "bursts of 0.5 s": (Machine(LOCK, bursts(1e-3, 2e-4, 0.5)), 30_000, 0.94),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", MACHINES)
def test_it_comes_near_the_best_number(name: str) -> None:
    machine, rows, least = MACHINES[name]
    numbers = [n for n in NUMBERS if n >= machine.slots]
    best = min(Simulation(machine, rows, 1, fixed=n).run() for n in numbers)
    run = Simulation(machine, rows, 1)
    run.tuned.cleared = True  # the simulation has no other tuner, which tells these from the lock
    assert best / run.run() > least, run.numbers
    assert max(run.numbers) <= MOST


def test_slices_that_may_wait_for_the_lock_are_left_alone() -> None:
    machine = Machine(LOCK, parts(("lock", 1e-3)))  # two slices take turns: each waits for half
    run = Simulation(machine, 3000, 1)
    run.run()
    assert run.numbers == [machine.slots]


@pytest.mark.parametrize(("others_s", "numbers"), [(0.02, {2}), (0.08, {2, 4})], ids=str)
def test_slices_that_hardly_overlap_do_not_seem_to_use_two_processors(
    others_s: float, numbers: set[int]
) -> None:
    """Two slices of which each has computed for 70 % of its time: one after the other, or not."""
    tuned, found = Concurrency(2, 64), {2}
    for _ in range(8):
        if (change := tuned.measured(100, 0.1, 0.07, 2, others_s)) is not None:
            found.add(change.parallel)
    assert found == numbers


@pytest.mark.parametrize(
    ("cpu_s", "others_s", "more"),
    [
        (0.08, 0.08, True),  # the other one computes as much: both wait for a fifth of their time
        (0.08, 0.11, False),  # the loop takes the rest of the processors
        (0.01, 0.1, True),  # a function that waits is not in its way
        (0.01, 0.19, True),
    ],
)
def test_processors_that_others_use_are_not_there_for_more_slices(
    cpu_s: float, others_s: float, more: bool
) -> None:
    tuned = Concurrency(2, 64)
    tuned.cleared = True
    changes = [tuned.measured(100, 0.1, cpu_s, 2, others_s) for _ in range(6)]
    assert any(changes) == more


@pytest.mark.parametrize("slots", [2, 16])
def test_slices_that_compute_are_as_many_as_processors(slots: int) -> None:
    run = Simulation(Machine({"cpu": slots}, parts(("cpu", 1e-3)), slots), 5_000 * slots, 1)
    run.tuned.cleared = True
    run.run()
    assert run.numbers == [slots]


def changes_with(tuned: Concurrency, at_once: int, intervals: int, seed: int = 0) -> list[int]:
    """The numbers that a server of ``at_once`` calls brings; its seconds have a noise of 5 %."""
    draw, found = np.random.default_rng(seed), list[int]()
    for _ in range(intervals):  # of as many slices as run at once
        for _ in range(tuned.parallel):
            seconds = 0.05 * (1 + 0.05 * draw.uniform(-1, 1))
            seconds *= max(1.0, tuned.parallel / at_once)
            change = tuned.measured(5, seconds, 5e-4, tuned.parallel)
            found += [] if change is None else [change.parallel]
    return found


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 8, 13, 20, 32, 50, 100])
def test_noise_flips_nothing(at_once: int) -> None:
    tuned = Concurrency(2, 64)
    tuned.cleared = True
    changes = changes_with(tuned, at_once, 10)
    assert len(changes) <= 4, changes
    assert min(64, at_once) <= tuned.parallel
    assert not changes_with(tuned, at_once, 100, seed=1)


@pytest.mark.parametrize(("before", "after"), [(5, 50), (20, 60), (20, 4), (64, 6)])
def test_a_server_that_becomes_faster_or_slower_is_noticed(before: int, after: int) -> None:
    tuned = Concurrency(2, 64)
    tuned.cleared = True
    changes_with(tuned, before, 100)
    changes = changes_with(tuned, after, 12)
    assert len(changes) <= 4, changes
    assert tuned.parallel >= min(64, after)
    assert not changes_with(tuned, after, 100, seed=1)


def test_a_server_that_answers_more_calls_than_before_is_tried_again() -> None:
    """As long as two run at once, they are as fast as they were."""
    tuned = Concurrency(2, 64)
    tuned.cleared = True
    changes_with(tuned, 2, 100)
    assert tuned.parallel < 8
    changes_with(tuned, 100, LATER)
    assert tuned.parallel == 64
    assert not changes_with(tuned, 100, 100, seed=1)


@pytest.mark.parametrize(
    ("beside", "rows"),
    [(1, 5), (0, 0)],  # the consumer does not need more; and no slice ran with another one
)
def test_slices_that_do_not_fill_their_places_say_nothing(beside: int, rows: int) -> None:
    tuned = Concurrency(2, 64)
    assert all(tuned.measured(rows, 0.1, 1e-4, beside) is None for _ in range(100))
    assert tuned.parallel == 2


def test_the_next_run_begins_where_this_one_ended() -> None:
    tuned = Concurrency(2, 64)
    changes = [tuned.measured(5, 0.1, 1e-4, tuned.parallel) for _ in range(200)]
    last = [each for each in changes if each is not None][-1]
    assert last.parallel == 64
    again = Concurrency(2, 64, last).begin()
    assert again is not None
    assert (again.before, again.parallel) == (2, 64)
    less = Concurrency(2, 32, last).begin()  # less memory
    assert less is not None
    assert less.parallel == 32


def test_more_slices_that_make_fewer_rows_end_with_the_run_before() -> None:
    """A run was over before what it had tried was judged: the next one goes back."""
    first = SliceFigures(16, 80.0, 0.3)
    tuned = Concurrency(16, 64, ConcurrencyChange(16, 64, 0.1, "they wait", first))
    tuned.begin()
    rates = {64: 8.0, 32: 24.0, 16: 80.0}  # rows per second of one slice
    seen = [tuned.parallel]
    for _ in range(1000):
        tuned.measured(1, 1 / rates[tuned.parallel], 0.1 / rates[tuned.parallel], tuned.parallel)
        seen += [tuned.parallel] if tuned.parallel != seen[-1] else []
    assert seen[:3] == [64, 32, 16]
    assert tuned.parallel == 16


def test_slices_of_unknown_use_are_charged_all_processors_together() -> None:
    """Or other stages would get processors that these may use."""
    tuned = Concurrency(2, 64, ConcurrencyChange(0, 16, 0.0, ""))
    begun = tuned.begin()
    assert begun is not None
    assert (begun.parallel, begun.cpu) == (16, 2 / 16)
    fewer = tuned.bounded(4)
    assert fewer is not None
    assert (fewer.before, fewer.parallel, fewer.cpu) == (16, 4, 2 / 4)


def core(limit_bytes: int, demand: Demand, known: dict[bytes, object]) -> Core:
    tuning = Tuning((b"f",), known, limit_bytes)  # type: ignore[arg-type]
    return Core((demand,), 2, limit_bytes, tuning=tuning)


def drained(core: Core, slices: int, nbytes: int = 1000) -> int:
    """Run ``slices`` slices of 100 ms that wait; return the most that ran at once."""
    most, now = 0, 0.0
    actions = core.step(Arrive(slices), now)
    running = [each for each in actions if isinstance(each, Run)]
    while running:
        most, now = max(most, len(running)), now + 0.1
        for run in running:
            done = SliceDone(run.seq, nbytes, 0.1, more=False, rows=5, cpu_s=1e-4)
            actions = core.step(done, now)
            while offers := [each for each in actions if isinstance(each, Offer)]:
                running += [each for each in actions if isinstance(each, Run)]
                actions = [a for each in offers for a in core.step(Consumed(each.seq), now)]
            running += [each for each in actions if isinstance(each, Run)]
            running.remove(run)
    return most


WAITS = Demand("f", output_bytes=32 * MIB, bounded=True, may_wait=True, divides=True)


@pytest.mark.parametrize(
    ("limit_bytes", "demand", "most"),
    [
        (1 << 32, WAITS, 64),
        (16 * SLICE_BYTES, WAITS, 16),  # each slice at once has its part of the memory
        (1 << 30, Demand("f", output_bytes=32 * MIB, bounded=True), 2),  # it stated what it needs
        (1 << 30, Demand("f", may_wait=True, divides=True, max_parallel=5), 5),  # concurrency=5
    ],
)
def test_a_core_runs_more_slices_than_it_has_slots(
    limit_bytes: int, demand: Demand, most: int
) -> None:
    known: dict[bytes, object] = {}
    first = core(limit_bytes, demand, known)
    assert drained(first, 500) == most
    assert first.free == first.total
    assert first.peak_bytes <= limit_bytes
    assert drained(core(limit_bytes, demand, known), 200) == most


def test_a_core_without_names_keeps_its_slots() -> None:
    assert drained(Core((WAITS,), 2, 1 << 30), 100) == 2


def test_slices_that_take_turns_fall_back_to_the_slots_also_in_the_next_run() -> None:
    known: dict[bytes, object] = {b"f": ConcurrencyChange(2, 16, 0.1, "they waited")}
    first = core(1 << 32, WAITS, known)
    assert drained(first, 40) == 16
    first = core(1 << 32, WAITS, known)
    first.tuning.locked()
    drained(first, 40)
    assert first.tuning.changes[-1].after == 2
    assert "turns" in first.tuning.changes[-1].reason
    second = core(1 << 32, WAITS, known)
    assert second.state.loads[0].parallel == 2
