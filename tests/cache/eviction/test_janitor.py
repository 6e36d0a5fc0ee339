"""Test eviction, removal, pins and sweeping: nothing that is in use is removed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.eviction import janitor, pins
from dml.cache.eviction.janitor import Swept, sweep
from dml.cache.parts.parts import PartSource, PartStore
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import StorePlace
from tests.cache.store.fills import FOUND, find, get

FP, OTHER = "ab" * 16, "cd" * 16


def rows(part: int) -> pa.Table:
    return pa.table({"x": range(part, part + 100)})


def fill(place: StorePlace, fingerprint: str = FP, parts: int = 3) -> PartStore:
    store = PartStore(place, ttl_s=1.0)
    for part in range(parts):
        get(store, fingerprint, part, lambda part=part: rows(part))  # type: ignore[misc]
    return store


def never() -> pa.Table:
    raise AssertionError("it was there already")


def aged(root: Path, seconds: float) -> None:
    """Everything below ``root`` as if it had been written earlier."""
    then = time.time() - seconds
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def test_an_evicted_part_is_made_again_and_the_others_stay(
    opened: Callable[[], StorePlace],
) -> None:
    store = fill(opened())
    mapped = get(store, FP, 1, never).table
    assert janitor.evict(opened(), FP, 1)
    assert not janitor.evict(opened(), FP, 1)
    assert mapped.equals(rows(1)), "rows that are mapped stay"
    assert find(store, FP, 1) is None
    assert get(store, FP, 0, never).table.equals(rows(0))
    again = get(store, FP, 1, lambda: rows(1))
    assert (again.source, again.version) == (PartSource.MADE, (0, 1))
    assert len(opened().names("blobs")) == 3
    assert get(PartStore(opened()), FP, 1, never).version == (0, 1)


def test_a_removed_entry_begins_again(opened: Callable[[], StorePlace]) -> None:
    store = fill(opened())
    fill(opened(), OTHER)
    assert janitor.remove(opened(), FP)
    assert len(opened().names("blobs")) == 3
    assert find(store, FP, 0) is None
    assert get(store, FP, 0, lambda: rows(0)).version == (1, 0)
    assert get(store, OTHER, 0, never).table.equals(rows(0))


def test_who_sleeps_through_an_eviction_commits_what_is_looked_at(
    opened: Callable[[], StorePlace],
) -> None:
    store = PartStore(opened())

    def slow() -> pa.Table:
        fill(opened(), FP, 0)
        other = PartStore(opened(), patience_s=0.0)
        get(other, FP, 0, lambda: rows(0))
        assert janitor.evict(opened(), FP, 0)
        return rows(0)

    assert get(store, FP, 0, slow).version == (0, 1)
    assert get(PartStore(opened()), FP, 0, never).table.equals(rows(0))


def test_a_record_committed_after_its_tomb_is_not_looked_at(
    opened: Callable[[], StorePlace],
) -> None:
    store, place = fill(opened(), FP, 1), opened()
    name = f"{layout.entry(FP)}/0/part.0.0.json"
    text = place.get(name)
    assert text is not None
    assert janitor.evict(place, FP, 0)
    assert place.put_if_absent(name, text)
    assert find(PartStore(opened()), FP, 0) is None
    assert get(store, FP, 0, lambda: rows(0)).version == (0, 1)
    assert sweep(place, ttl_s=60).names == 1
    assert place.get(name) is None


def test_a_sweep_takes_what_the_dead_left_and_no_more(tmp_path: Path) -> None:
    disk = Disk(tmp_path, "v1/shared")
    fill(disk)
    for name in ("tmp/dead", f"blobs/{'1' * 32}.arrow"):
        disk.put(name, b"12345")
    view = layout.viewed(layout.entry(FP), disk.names(layout.entry(FP)))
    disk.put(view.lease(0, 0), b"left by the dead")
    disk.put(view.lease(7, 0), b"alive")
    aged(tmp_path, 100)
    disk.put("tmp/alive", b"")
    disk.put(f"blobs/{'2' * 32}.arrow", b"its record comes soon")
    assert sweep(disk, ttl_s=50, grace_s=200) == Swept(temporary=1, names=1)
    assert sweep(disk, ttl_s=50, grace_s=50) == Swept(blobs=1, nbytes=5)
    assert sweep(disk, ttl_s=50, grace_s=50) == Swept()
    assert disk.names("tmp") == ["alive"]
    store = PartStore(disk)
    assert all(get(store, FP, part, never).table.equals(rows(part)) for part in range(3))


def test_a_sweep_of_a_bucket_or_a_disk_keeps_what_counts(opened: Callable[[], StorePlace]) -> None:
    store = fill(opened())
    opened().put("tmp/dead", b"")
    opened().put(f"blobs/{'1' * 32}.arrow", b"12345")
    swept = sweep(opened(), ttl_s=-60, grace_s=-60)
    assert (swept.temporary >= 1, swept.blobs) == (True, 1)
    assert all(get(store, FP, part, never).table.equals(rows(part)) for part in range(3))


def test_blobs_stay_while_a_newer_program_may_have_named_them(tmp_path: Path) -> None:
    from dml.cache.parts.records import checked

    disk = Disk(tmp_path, "v1/shared")
    fill(disk, FP, 1)
    view = layout.viewed(layout.entry(FP), [])
    disk.put(view.record(1), checked({"v": 2, "where": "blobs"}))
    disk.put(f"blobs/{'1' * 32}.arrow", b"12345")
    assert sweep(disk, ttl_s=0, grace_s=-60).blobs == 0


def test_a_writer_whose_blob_was_swept_costs_a_part_and_no_rows(tmp_path: Path) -> None:
    disk = Disk(tmp_path, "v1/shared")
    store = fill(disk, FP, 1)
    for name in disk.names("blobs"):
        disk.delete(f"blobs/{name}")
    again = get(PartStore(disk), FP, 0, lambda: rows(0))
    assert (again.source, again.version) == (PartSource.MADE, (0, 1))
    assert get(store, FP, 0, never).table.equals(rows(0))


def test_pins_hold_until_they_are_removed(opened: Callable[[], StorePlace]) -> None:
    place = opened()
    pins.pin(place, FP)
    pins.pin(opened(), OTHER)
    assert pins.list_pinned(opened()) == {FP, OTHER}
    pins.unpin(place, FP)
    assert pins.list_pinned(place) == {OTHER}
    pins.unpin(place, OTHER)
    assert pins.list_pinned(place) == set()


@pytest.mark.law
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["get", "evict", "remove", "sweep", "anew"]), st.integers(0, 2)),
        max_size=25,
    )
)
def test_whatever_is_done_rows_are_right(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = Disk(tmp_path_factory.mktemp("any"), "v1/shared")
    store = PartStore(disk)
    there = set[int]()
    for step, part in steps:
        if step == "get":
            got = get(store, FP, part, lambda part=part: rows(part))  # type: ignore[misc]
            assert got.table.equals(rows(part))
            assert got.source is (FOUND if part in there else PartSource.MADE)
            there.add(part)
        elif step == "evict":
            assert janitor.evict(disk, FP, part) == (part in there)
            there.discard(part)
        elif step == "remove":
            assert janitor.remove(disk, FP)
            there.clear()
        elif step == "sweep":
            sweep(disk, ttl_s=-60, grace_s=-60)
        else:
            store = PartStore(disk)
    assert len(disk.names("blobs")) == len(there)
