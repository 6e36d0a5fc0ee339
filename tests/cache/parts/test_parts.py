"""Test parts of entries on disk and in a bucket: one process makes a part, and all find it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.parts.parts import PartFilling, PartRows, PartSource, PartStore
from dml.cache.parts.records import checked, unchecked
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.cache.store.leases import Lease, Leases
from dml.cache.store.primitives import StorePlace
from tests.cache.store.fills import FOUND, FP, OTHER, cut, filling, find, get, same


def rows(part: int, n: int = 1000) -> pa.Table:
    return pa.table({"x": range(part, part + n), "s": [f"word {part}"] * n})


def makes(part: int, made: list[int], n: int = 1000) -> Callable[[], pa.Table]:
    def compute() -> pa.Table:
        made.append(part)
        return rows(part, n)

    return compute


def never() -> pa.Table:
    raise AssertionError("it was there already")


def test_what_one_made_all_find(opened: Callable[[], StorePlace]) -> None:
    first, second = PartStore(opened()), PartStore(opened())
    for part in range(3):
        made = get(first, FP, part, lambda part=part: rows(part))  # type: ignore[misc]
        assert (made.source, made.version) == (PartSource.MADE, (0, 0))
    assert find(second, OTHER, 0) is None
    assert find(second, FP, 3) is None
    for part in range(3):
        found = get(second, FP, part, never)
        assert found.source is FOUND
        assert found.table.equals(rows(part))
        assert find(first, FP, part) == rows(part)
    assert [n for n in second.place.names("e") if "lease" in n] == []
    assert second.place.names("tmp") == []


def test_a_blob_on_disk_is_checked_once_and_mapped(opened: Callable[[], StorePlace]) -> None:
    get(PartStore(opened()), FP, 0, lambda: rows(0, 100_000))
    store = PartStore(opened())
    before = pa.total_allocated_bytes()
    tables = [get(store, FP, 0, never).table for _ in range(3)]
    assert [table.num_rows for table in tables] == [100_000] * 3
    if type(store.place).__name__ == "Disk":
        assert store.blobs.checked == 1
        assert pa.total_allocated_bytes() - before < 10_000
        assert tables[0].column("x").chunk(0).buffers()[1].address % 64 == 0


def test_a_function_that_raises_leaves_the_part_to_others(opened: Callable[[], StorePlace]) -> None:
    store = PartStore(opened(), ttl_s=60)
    with pytest.raises(ZeroDivisionError):
        get(store, FP, 0, lambda: rows(1 // 0))
    assert store.place.names("") == []
    assert get(PartStore(opened(), ttl_s=60), FP, 0, lambda: rows(0)).source is PartSource.MADE


@pytest.mark.law
def test_many_who_ask_at_once_make_it_once(opened: Callable[[], StorePlace]) -> None:
    stores, made, got = (
        [PartStore(opened(), ttl_s=5) for _ in range(4)],
        list[int](),
        list[pa.Table](),
    )
    gate = threading.Barrier(len(stores))

    def ask(store: PartStore) -> None:
        gate.wait()
        for part in range(3):
            got.append(get(store, FP, part, makes(part, made)).table)

    threads = [threading.Thread(target=ask, args=(store,)) for store in stores]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(made) == [0, 1, 2]
    assert len(got) == 12
    assert all(table.equals(rows(table["x"][0].as_py())) for table in got)


def test_a_dead_owner_is_followed_after_the_ttl_and_a_living_one_waited_for(
    opened: Callable[[], StorePlace],
) -> None:
    place, now = opened(), [0.0]
    view = layout.viewed(layout.entry(FP), [])
    assert isinstance(Leases(place, 10.0).take(view, 0), Lease)  # which nobody beats
    mine = Leases(place, 10.0, clock=lambda: now[0])
    view = layout.viewed(view.folder, place.names(view.folder))
    assert mine.take(view, 0) == view.lease(0, 0)
    now[0] = 9.0
    assert mine.take(view, 0) == view.lease(0, 0)
    before = place.stamp(view.lease(0, 0))
    while place.stamp(view.lease(0, 0)) == before:
        place.beat(view.lease(0, 0))
    now[0] = 18.0  # within the ttl of the beat that was seen now for the first time
    assert mine.take(view, 0) == view.lease(0, 0)
    now[0] = 28.5
    lease = mine.take(view, 0)
    assert isinstance(lease, Lease)
    assert lease.name == view.lease(0, 1)
    assert mine.taken_over == 1
    again = layout.viewed(view.folder, place.names(view.folder))
    assert Leases(place, 10.0).take(again, 0) == lease.name


@pytest.mark.law
def test_an_owner_who_takes_longer_than_the_ttl_is_waited_for(tmp_path: Path) -> None:
    stores = [PartStore(Disk(tmp_path, "v1/shared"), ttl_s=1.0) for _ in range(2)]
    mine, pieces = filling(stores[0]), cut(rows(0, 20_000))
    got = list[PartRows | PartFilling | None]()
    thread = threading.Thread(target=lambda: got.append(stores[1].fill(FP, 0)))
    thread.start()
    for each in pieces:
        mine.add(each)
        time.sleep(2.5 / len(pieces))  # beyond two ttls of whoever waits
    assert not got
    assert mine.commit() is PartSource.MADE
    thread.join()
    assert same(got[0] if isinstance(got[0], PartRows) else None, pieces)
    assert stores[1].leases.taken_over == 0


def test_a_clock_that_differs_by_an_hour_loses_no_lease(opened: Callable[[], StorePlace]) -> None:
    place = opened()
    view = layout.viewed(layout.entry(FP), [])
    lease = Leases(place, 0.2, clock=lambda: 3600.0 + time.monotonic()).take(view, 0)
    assert isinstance(lease, Lease)
    watcher = Leases(place, 30.0, clock=lambda: time.monotonic() - 3600.0)
    with lease.hold():
        for _ in range(5):
            now = layout.viewed(view.folder, place.names(view.folder))
            assert watcher.take(now, 0) == lease.name


@pytest.mark.law
def test_whoever_waits_too_long_makes_it_too(opened: Callable[[], StorePlace]) -> None:
    place = opened()
    assert isinstance(Leases(place, 60.0).take(layout.viewed(layout.entry(FP), []), 0), Lease)
    got = get(PartStore(opened(), ttl_s=60.0, patience_s=0.05), FP, 0, lambda: rows(0))
    assert got.source is PartSource.MADE
    assert get(PartStore(opened()), FP, 0, never).table.equals(rows(0))


def test_the_loser_takes_the_rows_of_the_winner(opened: Callable[[], StorePlace]) -> None:
    slow, fast = PartStore(opened()), PartStore(opened(), patience_s=0.0)

    def overtaken() -> pa.Table:
        assert get(fast, FP, 0, lambda: rows(0)).source is PartSource.MADE
        return rows(0)

    got = get(slow, FP, 0, overtaken)
    assert got.source is PartSource.ADOPTED
    assert got.table.equals(rows(0))
    assert len(slow.place.names("blobs")) == 1
    assert slow.place.names("tmp") == []


def test_an_answer_that_was_lost_loses_no_rows(
    opened: Callable[[], StorePlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record was made, and the request made again was told that it is there."""
    store = PartStore(opened())
    put = store.place.put_if_absent
    monkeypatch.setattr(
        store.place, "put_if_absent", lambda name, data: put(name, data) and "part" not in name
    )
    assert get(store, FP, 0, lambda: rows(0)).source is PartSource.MADE
    assert get(PartStore(opened()), FP, 0, never).table.equals(rows(0))


def test_what_a_newer_program_wrote_is_left_alone(opened: Callable[[], StorePlace]) -> None:
    store = PartStore(opened())
    get(store, FP, 0, lambda: rows(0))
    name = f"{layout.entry(FP)}/0/part.0.0.json"
    body = unchecked(store.place.get(name) or b"")
    assert isinstance(body, dict)
    newer = checked({**body, "v": 2})
    store.place.delete(name)
    assert store.place.put_if_absent(name, newer)
    got = get(PartStore(opened()), FP, 0, lambda: rows(0))
    assert got.source is PartSource.UNKEPT
    assert store.place.get(name) == newer


def test_other_versions_of_the_layout_are_not_looked_at(opened: Callable[[], StorePlace]) -> None:
    store = PartStore(opened())
    store.place.put("../../v2/shared/e/what", b"ever")
    assert get(store, FP, 0, lambda: rows(0)).source is PartSource.MADE


@pytest.mark.law
@given(n=st.integers(0, 300), size=st.integers(0, 3))
def test_any_rows_come_back(n: int, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("any")
    columns = {
        f"c{i}": pa.array([None if j % 3 == i else j for j in range(n)]) for i in range(size)
    }
    table = pa.table(columns)
    get(PartStore(Disk(root, "v1/any")), FP, 0, lambda: table)
    assert get(PartStore(Disk(root, "v1/any")), FP, 0, never).table.equals(table)
