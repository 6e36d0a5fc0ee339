"""Test leases while a part is written: when other threads and processes wait for the writer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dml.cache.parts.parts import PartFilling, PartRows, PartSource, PartStore
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import StorePlace
from tests.cache.store.fills import FP, batch, filling, same


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_who_works_keeps_the_lease_and_who_does_not_loses_it(
    opened: Callable[[], StorePlace],
) -> None:
    clock = Clock()
    mine = filling(PartStore(opened(), ttl_s=10.0, clock=clock))
    watcher = PartStore(opened(), ttl_s=10.0, clock=clock)

    def alive() -> bool:
        view = layout.viewed(layout.entry(FP), watcher.place.names(layout.entry(FP)))
        return isinstance(watcher.leases.take(view, 0), str)

    assert alive()
    for _ in range(6):
        seen = opened().stamp(f"{layout.entry(FP)}/0/lease.0.0.0")
        clock.now += 4.0
        while opened().stamp(f"{layout.entry(FP)}/0/lease.0.0.0") == seen:
            mine.add(batch(0, 1))  # a quarter of the ttl has gone by, or the disk's clock has not
            clock.now += 2.5
        assert alive(), "whoever works is alive"
    clock.now += 9.0
    assert alive()
    clock.now += 1.1
    assert not alive(), "whoever adds nothing for the ttl is not"


def test_a_lease_is_beaten_four_times_in_its_ttl_and_not_at_each_batch(tmp_path: Path) -> None:
    clock, beats = Clock(), list[float]()
    store = PartStore(Disk(tmp_path, "v1/shared"), ttl_s=10.0, clock=clock)
    found = filling(store)
    assert found.lease is not None
    found.lease.beat = lambda: beats.append(clock.now)  # type: ignore[method-assign]
    for _ in range(200):
        clock.now += 0.1
        found.add(batch(0, 1))
    assert len(beats) in (7, 8)
    assert threading.active_count() == len(threading.enumerate())
    assert [each for each in threading.enumerate() if each.name == "dml-lease"] == []


def test_what_no_thread_can_beat_is_done_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: object) -> None:
        raise RuntimeError("can't start new thread")

    lease = filling(PartStore(Disk(tmp_path, "v1/shared"), ttl_s=10.0)).lease
    assert lease is not None
    monkeypatch.setattr(threading.Thread, "start", failing)
    done = []
    with lease.beaten():
        done.append(1)
    assert done


@pytest.mark.law
def test_a_resting_filling_of_this_process_is_not_waited_for(
    opened: Callable[[], StorePlace],
) -> None:
    store, asked = PartStore(opened(), ttl_s=60.0), list[PartRows | PartFilling | None]()
    found = filling(store)
    assert store.fill(FP, 0) is None, "this thread would wait for itself"
    thread = threading.Thread(target=lambda: asked.append(store.fill(FP, 0)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive(), "who works is waited for"
    found.resting = True
    thread.join(30)
    assert asked == [None]
    found.resting = False
    found.add(batch(0))
    again = threading.Thread(target=lambda: asked.append(store.fill(FP, 0)))
    again.start()
    again.join(0.1)
    assert found.commit() is PartSource.MADE
    again.join(30)
    got = asked[1]
    assert isinstance(got, PartRows)
    assert same(got, [batch(0)])


def test_rests_and_writing_cost_nothing(tmp_path: Path) -> None:
    clock = Clock()
    store = PartStore(Disk(tmp_path, "v1/shared"), clock=clock)
    found = filling(store)
    clock.now += 3.0
    found.resting = found.resting = True
    clock.now += 100.0
    assert found.cost_s == pytest.approx(3.0)
    found.resting = found.resting = False
    clock.now += 2.0
    found.add(batch(0))
    assert found.cost_s == pytest.approx(5.0)


@pytest.mark.law
def test_another_process_is_waited_for(opened: Callable[[], StorePlace]) -> None:
    first, second = PartStore(opened(), ttl_s=60.0), PartStore(opened(), ttl_s=60.0)
    found, asked = filling(first), list[PartRows | PartFilling | None]()
    found.resting = True  # which another process cannot know
    thread = threading.Thread(target=lambda: asked.append(second.fill(FP, 0)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    found.add(batch(0))
    assert found.commit() is PartSource.MADE
    thread.join(30)
    assert isinstance(asked[0], PartRows)
    dropped = filling(first, FP, 1)
    thread = threading.Thread(target=lambda: asked.append(second.fill(FP, 1)))
    thread.start()
    thread.join(0.2)
    dropped.drop()
    thread.join(30)
    assert isinstance(asked[1], PartFilling), "what was given back can be made"


@pytest.mark.law
def test_time_of_ttl_goes_by_on_no_clock_but_the_readers(tmp_path: Path) -> None:
    """Two processes whose clocks differ by a day wait for each other as they should."""
    early = PartStore(Disk(tmp_path, "v1/shared"), ttl_s=0.3, clock=lambda: time.monotonic() - 9e4)
    late = PartStore(Disk(tmp_path, "v1/shared"), ttl_s=0.3)
    dead = filling(early)
    got = filling(late)
    got.add(batch(0))
    assert got.commit() is PartSource.MADE
    assert late.leases.taken_over == 1
    dead.add(batch(0))
    assert dead.commit() is PartSource.ADOPTED


def waits(store: PartStore, asked: list[PartRows | PartFilling | None]) -> threading.Thread:
    """Somebody who asks for a part that another makes."""
    thread = threading.Thread(target=lambda: asked.append(store.fill(FP, 0)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive(), "two make one part"
    return thread


@pytest.mark.law
def test_who_saw_a_lease_long_ago_takes_none_beside_another(
    opened: Callable[[], StorePlace],
) -> None:
    """One has listed the entry when nobody had the part, one when somebody had it who has not."""
    early, late = (PartStore(opened(), ttl_s=60.0) for _ in range(2))
    assert early.part(FP, 0) is None
    first = filling(PartStore(opened(), ttl_s=60.0))
    assert late.part(FP, 0) is None
    first.drop()
    for one, other in ((late, early), (early, late)):
        made, asked = filling(one), list[PartRows | PartFilling | None]()
        thread = waits(other, asked)
        made.drop()
        thread.join(30)
        (got,) = asked
        assert isinstance(got, PartFilling)
        got.drop()
    assert opened().names("") == []


@pytest.mark.law
def test_who_was_taken_over_leaves_room_for_nobody(opened: Callable[[], StorePlace]) -> None:
    clock, asked = Clock(), list[PartRows | PartFilling | None]()
    early = PartStore(opened(), ttl_s=60.0)
    assert early.part(FP, 0) is None
    slow = filling(PartStore(opened(), ttl_s=10.0, clock=clock))
    watcher = PartStore(opened(), ttl_s=10.0, clock=clock, patience_s=20.0)
    view = layout.viewed(layout.entry(FP), opened().names(layout.entry(FP)))
    assert watcher.leases.take(view, 0) == view.lease(0, 0)
    clock.now += 11.0
    mine = filling(watcher)
    assert watcher.leases.taken_over == 1
    slow.drop()
    thread = waits(early, asked)
    mine.add(batch(0))
    assert mine.commit() is PartSource.MADE
    thread.join(30)
    assert isinstance(asked[0], PartRows)
