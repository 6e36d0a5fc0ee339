"""Test local copies of remote blobs: they save transfers and have no effect on results."""

from __future__ import annotations

import itertools
import math
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dml.cache.eviction import janitor
from dml.cache.parts.parts import PartFilling, PartSource, PartStore, StoreWarning
from dml.cache.store import local_copies, tiers
from dml.cache.store.bucket import Bucket
from dml.cache.store.local_copies import TTL_S, Copying, Times
from dml.cache.store.primitives import ListedName
from tests.cache.store.far import (
    FAST,
    LOSES,
    PAYS,
    SLOW,
    announced,
    copies_in,
    far,
    files,
    left,
    linear,
    opened,
    sent,
)
from tests.cache.store.fills import FP, OTHER, batch, filling, made, same

PARTS = 4


def rows(part: int) -> list[pa.RecordBatch]:
    return [batch(100 * part, 50 + part)]


def stored(root: Path, fingerprint: str = FP) -> None:
    """Parts that another machine has made."""
    store = PartStore(far(root))
    for part in range(PARTS):
        found = filling(store, fingerprint, part)
        for each in rows(part):
            found.add(each)
        assert found.commit() is PartSource.MADE


def read(store: PartStore, fingerprint: str = FP) -> int:
    """Ask for every part, and look at all rows; how many came from copies."""
    near = 0
    for part in range(PARTS):
        got = store.part(fingerprint, part)
        assert same(got, rows(part))
        assert got is not None
        near += got.copied
        assert got.loaded_bytes == (0 if store.tiers.maps and files_of(store) else got.nbytes)
    return near


def files_of(store: PartStore) -> int:
    found = store.tiers.copies
    return 0 if found is None else found.used_bytes()


def size_of(root: Path) -> int:
    return sum(each.size for each in far(root).list_files("blobs"))


def test_what_lies_far_is_fetched_once_by_all_of_a_machine(tmp_path: Path) -> None:
    stored(tmp_path)
    before = sent(tmp_path)
    assert read(opened(tmp_path)) == 0
    assert sent(tmp_path) - before == size_of(tmp_path)
    for _ in range(5):
        assert read(opened(tmp_path)) == PARTS
    assert sent(tmp_path) - before == size_of(tmp_path), "six epochs, five sixths of them near"
    assert len(files(tmp_path)) == PARTS
    assert not left(tmp_path)


def test_bytes_are_counted_by_where_they_came_from(tmp_path: Path) -> None:
    stored(tmp_path)
    store = opened(tmp_path)
    for near in (False, True, True):
        came = [got.came for part in range(PARTS) if (got := store.part(FP, part)) is not None]
        size = size_of(tmp_path)
        assert tuple(map(sum, zip(*came, strict=True))) == ((size, 0) if near else (0, size))


def test_what_is_made_here_is_copied_as_it_is_made(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for part in range(PARTS):
        assert made(store, rows(part), part) is PartSource.MADE
    before = sent(tmp_path)
    assert read(store) == PARTS
    assert read(opened(tmp_path)) == PARTS
    assert sent(tmp_path) == before
    assert not left(tmp_path)


def test_what_is_not_committed_leaves_no_copy(tmp_path: Path) -> None:
    mine, yours = opened(tmp_path, patience_s=-1.0), opened(tmp_path, patience_s=-1.0)
    first, second, third = filling(mine), filling(yours), filling(yours, OTHER)
    for each in (first, second, third):
        each.add(batch(0))
    assert first.commit() is PartSource.MADE
    assert second.commit() is PartSource.ADOPTED
    third.drop()
    assert len(files(tmp_path)) == 1
    assert not left(tmp_path)


@pytest.mark.parametrize("end", ["evicted", "removed", "damaged there", "removed by itself"])
def test_the_store_decides_what_is_there(tmp_path: Path, end: str) -> None:
    stored(tmp_path)
    store, other = opened(tmp_path), opened(tmp_path)
    read(store)
    read(other)
    if end == "removed":
        janitor.remove(far(tmp_path), FP)
    elif end == "removed by itself":
        store.remove(FP)
        assert not files(tmp_path)
    else:
        for part in range(PARTS):
            janitor.evict(far(tmp_path), FP, part, end)
    for each in (store, other, opened(tmp_path)):
        assert [each.part(FP, part) for part in range(PARTS)] == [None] * PARTS
    assert made(other, [batch(7)]) is PartSource.MADE
    assert same(store.part(FP, 0), [batch(7)])


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "longer", "gone", "a folder"])
def test_a_damaged_copy_is_read_anew_from_the_store(tmp_path: Path, how: str) -> None:
    stored(tmp_path)
    read(opened(tmp_path))
    for path in files(tmp_path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.unlink()
        if how == "a folder":
            path.mkdir()
        elif how != "gone":
            cut = {"cut": data[:-9], "empty": b"", "longer": bytes(data) + b"."}
            path.write_bytes(bytes(cut.get(how, data)))
    before, store = sent(tmp_path), opened(tmp_path)
    if how == "a folder":
        with pytest.warns(StoreWarning, match="without copies on this machine"):
            read(store)
        return
    assert read(store) == 0
    assert sent(tmp_path) - before == size_of(tmp_path)
    assert read(store) == PARTS, "and copied anew"
    assert sent(tmp_path) - before == size_of(tmp_path)


@pytest.mark.parametrize(
    ("times", "later", "made_here", "copied"),
    [
        (PAYS, math.inf, False, True),
        (PAYS, 1, False, True),
        (PAYS, 0, False, False),
        (PAYS, 0, True, False),
        (PAYS, 1, True, True),
        (LOSES, math.inf, True, False),
        (Times(FAST, SLOW, SLOW), 1, False, False),
        (Times(FAST, SLOW, SLOW), 2, False, True),
    ],
)
def test_copies_are_made_where_they_pay(
    tmp_path: Path, times: Times, later: float, made_here: bool, copied: bool
) -> None:
    """What a use saves, as often as there will be uses, is more than what writing takes."""
    ticks = itertools.count()
    if made_here:
        found = opened(tmp_path, times=times).fill(FP, 0, later=later)
        assert isinstance(found, PartFilling)
        found.add(batch(0, 50))
        found.commit()
    else:
        stored(tmp_path)
        store = opened(tmp_path, times=times)
        assert store.tiers.copies is not None
        store.tiers.clock = lambda: next(ticks) * times.far(size_of(tmp_path) / PARTS)
        assert store.part(FP, 0, later=later) is not None
    assert len(files(tmp_path)) == copied


def test_a_copy_that_takes_longer_is_not_read(tmp_path: Path) -> None:
    stored(tmp_path)
    read(opened(tmp_path))
    store = opened(tmp_path, times=LOSES)
    assert [store.part(FP, part).copied for part in range(PARTS)] == [False] * PARTS  # type: ignore[union-attr]


def test_a_store_that_turns_out_to_be_near_is_not_copied(tmp_path: Path) -> None:
    """By what it took to read parts just now, whatever was believed."""
    stored(tmp_path)
    store = opened(tmp_path, times=Times(linear(1e-3, 1e9), FAST, SLOW))
    store.tiers.clock = lambda: 0.0
    for part in range(PARTS):
        assert store.part(FP, part) is not None
    assert not files(tmp_path)
    assert isinstance(filling(store, OTHER), PartFilling)
    assert store.tiers.beside(OTHER, 1.0) is None, "nor is what is made here"


def test_what_exceeds_memory_is_brought_in_pieces(tmp_path: Path) -> None:
    stored(tmp_path)
    store, before = opened(tmp_path), sent(tmp_path)
    assert PartStore(far(tmp_path)).part(FP, 0, 100) is None
    got = store.part(FP, 0, 100)
    assert same(got, rows(0))
    assert got is not None
    assert got.loaded_bytes == 0
    assert sent(tmp_path) - before == got.nbytes
    assert store.part(FP, 0, 0) is not None
    assert store.part(FP, 1, 100, 0) is None, "not for one use"
    full = opened(tmp_path, most_bytes=got.nbytes + 10)
    assert full.part(FP, 2, 100) is None, "nor without room"
    assert sent(tmp_path) - before == got.nbytes
    assert not left(tmp_path)


def test_an_entry_that_does_not_fit_keeps_a_part_of_itself(tmp_path: Path) -> None:
    stored(tmp_path)
    most = size_of(tmp_path) * 5 // 8
    for turn in range(4):
        store = opened(tmp_path, most)
        near = sum(bool((got := store.part(FP, part)) and got.copied) for part in range(PARTS))
        assert near == (2 if turn else 0)
        assert sum(each.stat().st_size for each in files(tmp_path)) <= most


def test_entries_that_nobody_reads_make_room_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path)
    stored(tmp_path, OTHER)
    most = size_of(tmp_path) * 3 // 4
    read(opened(tmp_path, most))
    for fingerprint in (OTHER, FP):  # the first one is in use
        read_all(opened(tmp_path, most), fingerprint)
    assert counts(tmp_path) == {FP: PARTS, OTHER: 2}
    monkeypatch.setattr(local_copies, "BUSY_S", -1.0)
    read_all(opened(tmp_path, most), OTHER)
    assert counts(tmp_path) == {FP: 2, OTHER: PARTS}


def counts(root: Path) -> dict[str, int]:
    return dict(Counter(each.parent.name for each in files(root)))


def read_all(store: PartStore, fingerprint: str) -> None:
    for part in range(PARTS):
        assert same(store.part(fingerprint, part), rows(part))
    store.close()


def test_the_dead_leave_nothing_for_longer_than_the_ttl(tmp_path: Path) -> None:
    held = copies_in(tmp_path)
    made = Copying(held, FP, "blobs/dead.arrow")
    made.write(memoryview(b"half"))
    held_up = [*left(tmp_path), *announced(tmp_path)]
    assert len(held_up) == 2
    for each in held_up:
        os.utime(each, (1, time.time() - TTL_S - 1))
    copies_in(tmp_path).clear()
    assert not [*left(tmp_path), *announced(tmp_path)]
    made.write(memoryview(b"more"))
    assert not made.finish(), "whoever slept through it has no copy"
    assert not files(tmp_path)
    assert held.standing.whole


def test_room_is_asked_for_at_once_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask lists all copies."""
    store, asked = opened(tmp_path), list[str]()
    assert store.tiers.copies is not None
    found = store.tiers.copies.disk.list_files

    def finding(prefix: str) -> list[ListedName]:
        asked.append(prefix)
        return found(prefix)

    monkeypatch.setattr(store.tiers.copies.disk, "list_files", finding)
    for part in range(40):
        assert made(store, rows(part), part) is PartSource.MADE
    assert len(files(tmp_path)) == 40
    assert asked.count("blobs") == 1
    assert len(announced(tmp_path)) == 1
    store.tiers.copies.close()
    assert not announced(tmp_path)


def test_room_that_others_took_for_that_of_the_dead_is_asked_for_anew(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for part in range(3):
        assert made(store, rows(part), part) is PartSource.MADE
        (told,) = announced(tmp_path)
        os.utime(told, (1, time.time() - TTL_S - 1))
        copies_in(tmp_path).clear()
        assert not announced(tmp_path)
    assert len(files(tmp_path)) == 3


def noted(asked: list[str], real: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and the name that it is asked for."""

    def asking(name: str, *given: Any) -> Any:
        asked.append(name)
        return real(name, *given)

    return asking


@pytest.mark.cluster
def test_an_object_store_is_asked_for_each_blob_once(
    bucket_options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, in pieces, and for its records alone once there are copies."""
    url = f"s3://keeping/{uuid.uuid4().hex}"

    def another() -> PartStore:
        return PartStore(Bucket(url, "v1/shared", bucket_options), copies=copies_in(tmp_path))

    theirs = PartStore(Bucket(url, "v1/shared", bucket_options))
    for part in range(3):
        assert made(theirs, rows(part), part) is PartSource.MADE
    store, asked = another(), list[str]()
    place = store.place
    assert isinstance(place, Bucket)
    monkeypatch.setattr(tiers, "LARGE_PIECE_BYTES", 1000)
    for name in ("fetch", "piece"):
        monkeypatch.setattr(place, name, noted(asked, getattr(place, name)))
    assert same(store.part(FP, 0), rows(0))
    got = store.part(FP, 1, 1000)
    assert same(got, rows(1))
    assert got is not None
    assert len(asked) == 1 + -(-got.nbytes // 1000)
    asked.clear()
    for part in range(2):
        assert same(store.part(FP, part), rows(part))
        assert same(another().part(FP, part), rows(part))
    assert not asked
    assert made(store, rows(5), 5) is PartSource.MADE
    assert same(store.part(FP, 5), rows(5))
    assert not asked
    janitor.evict(theirs.place, FP, 0)
    assert store.part(FP, 0) is None
