"""Test the sync and threads drivers: equal partitions, errors in their places, no threads left."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from dml.errors import InternalError
from dml.exec.drivers.crew import Crew, CrewFeed
from dml.exec.drivers.sync import Sync, SyncFeed
from dml.exec.drivers.threads import Threads, _Threads, _work
from dml.exec.scheduler.messages import Resources, SliceDone
from dml.exec.scheduler.policy import Demand, StreamingPolicy
from dml.exec.tasks.slices import DriverLoop, Outcome
from dml.testing.fuzz import FuzzPolicy

WIDTHS = [3, 0, 1, 5, 2, 0, 4]
EXPECTED = [(unit, k) for unit, width in enumerate(WIDTHS) for k in range(width)]
DRIVERS: list[Sync | Threads] = [Sync(), Threads()]
SMALL = (Demand(output_bytes=10),)
HANG_S = 60.0  # longer than anything here takes; only a hang gets there


def threads_of(feed: CrewFeed) -> list[threading.Thread]:
    assert isinstance(feed._crew, _Threads)
    return feed._crew.threads


def work(unit: int) -> Iterator[Outcome]:
    for k in range(WIDTHS[unit]):
        last = unit % 2 == 0 and k + 1 == WIDTHS[unit]
        yield Outcome((unit, k), 10, 1, done=last)


def drain(feed: SyncFeed) -> list[Any]:
    got = []
    while (outcome := feed.next()) is not None:
        assert len(feed.at) >= 2
        got.append(outcome.value)
    return got


def gone(feed: SyncFeed) -> bool:
    """True when every worker of the feed ends."""
    assert isinstance(feed, CrewFeed)
    for worker in threads_of(feed):
        worker.join(HANG_S)
    return not any(worker.is_alive() for worker in threads_of(feed))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("limit", [1, 25, 10_000])
@pytest.mark.parametrize("ahead", [None, 1])
def test_every_driver_gives_the_same(
    driver: Sync | Threads, slots: int, limit: int, ahead: int | None
) -> None:
    feed = driver.open(range(7), work, slots=slots, limit_bytes=limit, ahead=ahead, stages=SMALL)
    assert drain(feed) == EXPECTED
    assert feed.next() is None
    assert feed.stats()["failures"] == 0


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("seed", range(25))
def test_no_timing_changes_what_is_delivered(driver: Sync | Threads, seed: int) -> None:
    feed = driver.open(range(7), work, limit_bytes=80, stages=SMALL, policy=FuzzPolicy(seed))
    assert drain(feed) == EXPECTED


def upper(place: tuple[int, int]) -> Iterator[Outcome]:
    for letter in "xy":
        yield Outcome((*place, letter), 10, 1)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("seed", [None, *range(10)])
def test_chains_of_stages_run_on_every_driver(driver: Sync | Threads, seed: int | None) -> None:
    policy = StreamingPolicy() if seed is None else FuzzPolicy(seed)
    feed = driver.open(range(7), [work, upper], limit_bytes=200, stages=SMALL * 2, policy=policy)
    assert drain(feed) == [(*place, letter) for place in EXPECTED for letter in "xy"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_without_order_each_partition_comes_once(driver: Sync | Threads) -> None:
    feed = driver.open(range(7), work, slots=3, ordered=False)
    assert sorted(drain(feed)) == EXPECTED


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_exception_is_raised_at_its_place_and_ends_the_run(driver: Sync | Threads) -> None:
    def fails(unit: int) -> Iterator[Outcome]:
        yield from work(unit)
        if unit == 3:
            raise ValueError("row 17")

    feed = driver.open(range(7), fails, slots=3)
    want = [place for place in EXPECTED if place[0] <= 3]
    assert [outcome.value for outcome in (feed.next() for _ in want) if outcome] == want
    with pytest.raises(ValueError, match="row 17"):
        feed.next()
    assert feed.next() is None


@pytest.mark.parametrize("driver", DRIVERS)
def test_until_settled_only_the_head_is_called(driver: Sync | Threads) -> None:
    called = []

    def seen(unit: int) -> Iterator[Outcome]:
        called.append(unit)
        yield from work(unit)

    feed = driver.open([1, 5, 0, 3, 4], seen, slots=4, settling=True)
    first = feed.next()
    assert first is not None
    assert first.value == (0, 0)
    assert called == [1, 5, 0], "two units without rows, then the first with rows"
    feed.settled()
    rest = [place for unit in (0, 3, 4) for place in EXPECTED if place[0] == unit]
    assert [first.value, *drain(feed)] == rest


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("driver", DRIVERS)
def test_memory_is_held_until_released(driver: Sync | Threads) -> None:
    feed = driver.open(range(7), work, slots=2, limit_bytes=30, stages=SMALL)
    assert feed.next() is not None
    assert feed._loop.core.state.offered_bytes >= 10
    feed.release()
    feed.release()
    assert drain(feed) == EXPECTED[1:]
    assert feed.stats()["peak_bytes"] <= 30
    assert feed.stats()["forced"] == 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_slots_and_memory_may_change_on_the_way(driver: Sync | Threads) -> None:
    feed = driver.open(range(7), work, slots=1, stages=SMALL)
    first = feed.next()
    assert first is not None
    feed._tell(Resources({"cpu": 4.0}, 1000))
    assert [first.value, *drain(feed)] == EXPECTED


@pytest.mark.parametrize("driver", DRIVERS)
def test_close_at_any_time_ends_generators_and_delivery(driver: Sync | Threads) -> None:
    ended = []

    def careful(unit: int) -> Iterator[Outcome]:
        try:
            yield from work(unit)
        finally:
            ended.append(unit)

    for taken in range(4):
        feed = driver.open([0, 3, 4, 6], careful, slots=2, ahead=4)
        for _ in range(taken):
            assert feed.next() is not None
        feed.close()
        assert feed.next() is None
        if isinstance(feed, CrewFeed):
            assert gone(feed)
        feed.close()
        assert not feed._loop.stored


def test_sync_makes_nothing_before_it_is_asked() -> None:
    made = []

    def lazy(unit: int) -> Iterator[Outcome]:
        made.append((unit, threading.current_thread()))
        yield Outcome(unit, 1, 1, done=True)

    feed = Sync().open(range(3), lazy)
    assert not made
    feed.next()
    assert made == [(0, threading.current_thread())]


def test_an_interrupt_in_sync_leaves_the_slice_to_be_run_again() -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupted(unit: int) -> Iterator[Outcome]:
        for outcome in work(unit):
            if outcome.value == (3, 2) and interrupts:
                raise interrupts.pop()
            yield outcome

    feed, got = Sync().open(range(7), interrupted), []
    while (outcome := feed.next()) and outcome.value != (3, 1):
        got.append(outcome.value)
    with pytest.raises(KeyboardInterrupt):
        feed.next()
    assert [*got, (3, 1), *drain(feed)] == EXPECTED


def test_threads_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=HANG_S)

    def meet(unit: int) -> Iterator[Outcome]:
        both.wait()
        yield Outcome(unit, 1, 1, done=True)

    assert drain(Threads().open(range(4), meet, slots=2)) == [0, 1, 2, 3]


def test_an_exit_in_a_worker_reaches_the_consumer() -> None:
    def leaves(unit: int) -> Iterator[Outcome]:
        if unit == 0:
            raise SystemExit(3)
        yield Outcome(unit, 1, 1)

    feed = Threads().open(range(2), leaves)
    with pytest.raises(SystemExit):
        feed.next()


@pytest.mark.law
def test_a_forgotten_feed_takes_its_threads_with_it() -> None:
    feed = Threads().open(range(7), work, slots=3, ahead=2)
    assert feed.next() is not None
    workers, crew, ghost = threads_of(feed), weakref.ref(feed._crew), weakref.ref(feed)
    del feed
    gc.collect()
    assert ghost() is None
    for worker in workers:
        worker.join(HANG_S)
        assert not worker.is_alive()
    del workers, worker
    gc.collect()
    assert crew() is None


def test_workers_keep_no_partition_alive() -> None:
    class Block:
        pass

    def one(unit: int) -> Iterator[Outcome]:
        yield Outcome(Block(), 1, 1, done=True)

    feed = Threads().open(range(1), one)
    outcome = feed.next()
    assert outcome is not None
    ghost = weakref.ref(outcome.value)
    del outcome
    feed.release()
    deadline = time.perf_counter() + HANG_S
    while ghost() is not None and time.perf_counter() < deadline:
        gc.collect()
    assert ghost() is None


def test_a_closed_feed_does_not_wait_for_a_slice_that_runs() -> None:
    running, go = threading.Event(), threading.Event()

    def slow(unit: int) -> Iterator[Outcome]:
        running.set()
        go.wait(HANG_S)
        yield Outcome(unit, 1, 1)

    feed = Threads().open(range(3), slow, slots=1)
    assert running.wait(HANG_S)
    feed.close()
    assert threads_of(feed)[0].is_alive()
    go.set()
    assert gone(feed)
    assert not feed._loop.stored


@pytest.mark.law
@pytest.mark.parametrize("stop", ["feed.next()", "feed.close()", "del feed", "raise SystemExit"])
def test_the_interpreter_exits_although_a_worker_never_ends(stop: str) -> None:
    program = f"""
import threading
from dml.exec.drivers.crew import CrewFeed
from dml.exec.drivers import threads
from dml.exec.drivers.threads import Threads, _Threads, _work
from dml.exec.tasks.slices import Outcome

threads.ENDING_S = 0.2

def start(unit):
    if unit:
        threading.Event().wait()
    yield Outcome(unit, 1, 1, done=True)

feed = Threads().open(range(9), start, slots=4)
assert feed.next().value == 0
{stop if stop != "feed.next()" else "pass"}
"""
    subprocess.run([sys.executable, "-c", program], timeout=HANG_S, check=True)


def test_a_crew_must_say_how_slices_are_handed_out_and_workers_leave() -> None:
    class Idle(Crew):
        """Says nothing."""

    loop = DriverLoop.over(range(1), work, {}, 1)
    with pytest.raises(TypeError, match=r"abstract.*hand_out.*leave"):
        Idle(loop)  # type: ignore[abstract]


def test_a_long_wait_says_which_unit_it_waits_for() -> None:
    events, go = [], threading.Event()

    def told(event: dict[str, Any]) -> None:
        if (event["unit"], event["slice"]) == (1, 1):  # others may be late on a busy machine
            events.append(event)
        if len(events) == 2:
            go.set()

    def slow(unit: int) -> Iterator[Outcome]:
        yield Outcome(unit, 1, 1)
        if unit == 1:
            go.wait(HANG_S)

    stages = (Demand("decode"),)
    feed = Threads().open(range(3), slow, slots=1, watchdog_s=0.01, on_event=told, stages=stages)
    assert drain(feed) == [0, 1, 2]
    first, second = events[:2]
    assert (first["event"], first["stage"], first["unit"], first["slice"]) == (
        "stalled",
        "decode",
        1,
        1,
    )
    assert second["waited_s"] > first["waited_s"] >= 0.01
    assert second["running_s"] > first["running_s"]


def test_sync_tells_of_a_slow_slice_when_it_has_ended() -> None:
    events: list[dict[str, Any]] = []
    feed = Sync().open(range(1), work, watchdog_s=1e-9, on_event=events.append)
    drain(feed)
    assert {(event["event"], event["unit"]) for event in events} == {("stalled", 0)}


def test_a_slice_handed_out_before_the_end_is_not_begun_after_it() -> None:
    called = []

    def seen(unit: int) -> Iterator[Outcome]:
        called.append(unit)
        yield from work(unit)

    crew = _Threads(DriverLoop.over(range(7), seen, {}, slots=1))
    crew.tasks.put(crew.loop.begin()[0])
    crew.dismiss()
    _work(crew)
    assert not called
    assert crew.loop.core.closed


def test_a_bug_inside_the_core_is_raised_and_does_not_hang() -> None:
    feed = Threads().open(range(7), work, slots=1, ahead=1)
    assert feed.next() is not None

    def broken(event: SliceDone, now: float, actions: list[Any]) -> None:
        raise ZeroDivisionError

    feed._loop.core._on[SliceDone] = broken
    with pytest.raises(InternalError, match="inside its scheduler"):
        drain(feed)
    assert gone(feed)


def test_no_units_end_at_once() -> None:
    for driver in DRIVERS:
        assert driver.open([], work).next() is None


@pytest.mark.slow
def test_a_partition_costs_under_60_microseconds() -> None:
    def empty(unit: int) -> Iterator[Outcome]:
        for k in range(10):
            yield Outcome(None, 1, 0, done=k == 9)

    def once() -> float:
        begin = time.perf_counter()
        assert len(drain(Threads().open(range(1000), empty, slots=2))) == 10_000
        return (time.perf_counter() - begin) / 10_000

    assert min(once() for _ in range(5)) < 60e-6
