"""Test quotas: stored bytes never exceed them, and the part of least worth is evicted first."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from bisect import bisect
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.eviction import pins
from dml.cache.eviction.eviction_order import READ_BYTES_PER_S, EvictionCandidate, PartUse, least
from dml.cache.eviction.uses import PartUses
from dml.cache.parts.parts import PartSource, PartStore
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import StorePlace
from tests.cache.store.fills import FOUND, find, get

FPS = [f"{i:08x}" * 4 for i in range(12)]
ROWS = 2000
CANDIDATES = st.builds(
    EvictionCandidate, st.just("f"), st.integers(0, 99), st.integers(1, 99), st.floats(0, 9)
)


def rows(entry: str, part: int) -> pa.Table:
    return pa.table({"x": range(part, part + ROWS), "e": [entry[:8]] * ROWS})


def ask(store: PartStore, entry: str, part: int = 0) -> PartSource | str:
    got = get(store, entry, part, lambda: rows(entry, part))
    assert got.table.equals(rows(entry, part))
    return got.source


def kept(place: StorePlace) -> int:
    return sum(each.size for each in place.list_files(layout.BLOBS))


def one_size(tmp_path: Path) -> int:
    disk = Disk(tmp_path / "one", "v1/shared")
    ask(PartStore(disk), FPS[0])
    return kept(disk)


@pytest.mark.sample(1)
@pytest.mark.law
def test_bytes_never_pass_the_quota(opened: Callable[[], StorePlace], tmp_path: Path) -> None:
    size = one_size(tmp_path)
    store = PartStore(opened(), quota_bytes=3 * size, ttl_s=5)
    for entry in FPS:
        assert ask(store, entry) is PartSource.MADE
        assert kept(opened()) <= 3 * size
    assert kept(opened()) == 3 * size
    assert store.quota is not None
    assert store.quota.evicted == len(FPS) - 3
    assert opened().names("announced") == []


@pytest.mark.law
def test_many_writers_at_once_stay_within_it(tmp_path: Path) -> None:
    size, ended, most = one_size(tmp_path), threading.Event(), list[int]()

    def write(number: int) -> None:
        store = PartStore(Disk(tmp_path / "root", "v1/shared"), quota_bytes=3 * size, ttl_s=5)
        for entry, part in itertools.product(FPS[number::4], range(4)):
            ask(store, entry, part)

    def watch() -> None:
        disk = Disk(tmp_path / "root", "v1/shared")
        while not ended.is_set():
            most.append(kept(disk))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    watching = threading.Thread(target=watch)
    for each in (watching, *threads):
        each.start()
    for each in threads:
        each.join()
    ended.set()
    watching.join()
    assert 0 < max(most) <= 3 * size


def test_what_is_larger_than_the_quota_is_not_kept(tmp_path: Path) -> None:
    size = one_size(tmp_path)
    store = PartStore(Disk(tmp_path / "root", "v1/shared"), quota_bytes=size - 1)
    assert ask(store, FPS[0]) is PartSource.UNKEPT
    assert store.standing.unwritable is None
    assert store.place.names("") == []


@pytest.mark.law
def test_an_entry_larger_than_the_quota_is_kept_in_part_and_stays(tmp_path: Path) -> None:
    """Parts of an entry do not push each other out, epoch after epoch."""
    size = one_size(tmp_path)
    store = PartStore(Disk(tmp_path / "root", "v1/shared"), quota_bytes=3 * size)
    assert [ask(store, FPS[0], part) for part in range(6)].count(PartSource.MADE) == 3
    assert [ask(store, FPS[0], part) for part in range(6)].count(FOUND) == 3


def test_pinned_entries_stay(opened: Callable[[], StorePlace], tmp_path: Path) -> None:
    size = one_size(tmp_path)
    store = PartStore(opened(), quota_bytes=2 * size)
    for entry in FPS[:2]:
        ask(store, entry)
        pins.pin(opened(), entry)
    assert ask(store, FPS[2]) is PartSource.UNKEPT
    pins.unpin(opened(), FPS[0])
    assert ask(store, FPS[2]) is PartSource.MADE
    assert find(store, FPS[1], 0) is not None
    assert find(store, FPS[0], 0) is None


@pytest.mark.law
def test_another_namespace_is_never_evicted_from(tmp_path: Path) -> None:
    size = one_size(tmp_path)
    mine = PartStore(Disk(tmp_path / "root", "v1/mine"), quota_bytes=2 * size)
    ask(mine, FPS[0])
    yours = PartStore(Disk(tmp_path / "root", "v1/yours"), quota_bytes=size)
    for entry in FPS[:4]:
        assert ask(yours, entry) is PartSource.MADE
    assert ask(mine, FPS[0]) == FOUND


def test_what_the_dead_announced_holds_nothing(tmp_path: Path) -> None:
    size, disk = one_size(tmp_path), Disk(tmp_path / "root", "v1/shared")
    disk.put(f"announced/dead-{2 * size}", b"")
    store = PartStore(disk, quota_bytes=2 * size, ttl_s=60)
    assert ask(store, FPS[0]) is PartSource.UNKEPT
    then = time.time() - 100
    os.utime(tmp_path / f"root/v1/shared/announced/dead-{2 * size}", (then, then))
    assert ask(store, FPS[0]) is PartSource.MADE


def test_uses_of_others_count_and_garbage_does_not(opened: Callable[[], StorePlace]) -> None:
    mine, other = PartUses(opened()), PartUses(opened())
    for _ in range(3):
        other.used(FPS[0], 0)
    other.announce(FPS[1], 5)
    mine.used(FPS[0], 0)
    opened().put("uses/garbage.json", b"{")
    uses, epochs = mine.gathered()
    assert uses[FPS[0], 0].count == pytest.approx(4, abs=0.1)
    assert epochs == {FPS[1]: 5.0}
    other.close()
    assert mine.gathered()[1] == {}


@pytest.mark.law
def test_what_was_used_or_announced_stays_longer(tmp_path: Path) -> None:
    size, disk = one_size(tmp_path), Disk(tmp_path / "root", "v1/shared")
    store = PartStore(disk, quota_bytes=3 * size)

    def slow(entry: str) -> pa.Table:
        time.sleep(0.02)  # work that is worth keeping: a hundred times what reading takes
        return rows(entry, 0)

    for entry in FPS[:3]:
        get(store, entry, 0, lambda entry=entry: slow(entry))  # type: ignore[misc]
    for _ in range(50):
        ask(store, FPS[0])
    PartUses(disk).announce(FPS[2], 100)
    get(store, FPS[3], 0, lambda: slow(FPS[3]))
    assert [find(store, entry, 0) is not None for entry in FPS[:4]] == [True, False, True, True]


@pytest.mark.law
@given(st.lists(CANDIDATES), st.integers(-5, 2000))
def test_the_least_are_enough_and_none_too_many(
    candidates: list[EvictionCandidate], nbytes: int
) -> None:
    gone = list(least(candidates, nbytes))
    freed = sum(each.size for each in gone)
    assert freed >= min(nbytes, sum(each.size for each in candidates))
    assert not gone or freed - gone[-1].size < nbytes
    assert [each.worth for each in gone] == sorted(each.worth for each in candidates)[: len(gone)]


# ----------------------------------------------------------------------------------- against LRU


def trace(
    drawn: random.Random, n: int = 400, m: int = 4000
) -> tuple[list[float], list[float], list[int]]:
    """Bytes and seconds of parts, and who is asked for: eight jobs, some of many epochs."""
    size = [10 ** drawn.uniform(0, 2.5) for _ in range(n)]
    cost = [each * 10 ** drawn.uniform(-1.2, 1.2) for each in size]
    order = drawn.sample(range(n), n)
    sums = list(itertools.accumulate(1 / (i + 1) ** 0.9 for i in range(n)))
    asked, live = list[int](), list[list[int]]()
    for _ in range(m):
        while len(live) < 8:
            item = order[bisect(sums, drawn.random() * sums[-1])]
            live.append([item, 1 + (drawn.random() < 0.5) * drawn.randint(1, 9)])
        job = drawn.choice(live)
        asked.append(job[0])
        job[1] -= 1
        if not job[1]:
            live.remove(job)
    return size, cost, asked


def by_worth(size: list[float], cost: list[float], asked: list[int], room: float) -> float:
    """Seconds of making what was not there, by ``worth``."""
    there, uses, floor, spent, held = set[int](), dict[int, PartUse](), 0.0, 0.0, 0.0
    for item in asked:
        uses[item] = uses.get(item, PartUse()).used(floor)
        if item in there:
            continue
        spent += cost[item]
        # the unit of the trace: bytes that take no time to read
        all_there = [
            EvictionCandidate("f", i, int(size[i] * 100), cost[i] * 1e3, uses[i]) for i in there
        ]
        for each in least(all_there, int((held + size[item] - room) * 100) + 1):
            there.discard(each.part)
            held -= size[each.part]
            floor = max(floor, each.worth)
        if held + size[item] <= room:
            there.add(item)
            held += size[item]
    return spent


def by_age(size: list[float], cost: list[float], asked: list[int], room: float) -> float:
    """The same, by LRU."""
    there, spent, held = OrderedDict[int, None](), 0.0, 0.0
    for item in asked:
        if item in there:
            there.move_to_end(item)
            continue
        spent += cost[item]
        while there and held + size[item] > room:
            held -= size[there.popitem(last=False)[0]]
        if held + size[item] <= room:
            there[item] = None
            held += size[item]
    return spent


@pytest.mark.law
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_worth_costs_a_tenth_less_than_age(share: float) -> None:
    assert READ_BYTES_PER_S > 1e6
    ours = theirs = 0.0
    for seed in range(3):
        size, cost, asked = trace(random.Random(seed))
        ours += by_worth(size, cost, asked, share * sum(size))
        theirs += by_age(size, cost, asked, share * sum(size))
    assert ours < 0.9 * theirs
