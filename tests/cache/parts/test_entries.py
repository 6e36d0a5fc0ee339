"""Test memoized entries: an entry is listed once, and later changes are noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dml.cache.eviction import janitor
from dml.cache.parts.parts import PartRows, PartSource, PartStore
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import StorePlace
from tests.cache.store.fills import FP, OTHER, batch, filling, made, same


def test_an_entry_is_listed_once_however_many_parts_it_has(
    opened: Callable[[], StorePlace], whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, listed = PartStore(opened()), list[str]()
    names = store.place.names

    def listing(prefix: str) -> list[str]:
        listed.append(prefix)
        return names(prefix)

    monkeypatch.setattr(store.place, "names", listing)
    some = 1000 if store.place.maps else 100  # a part in a bucket takes a tenth of a second
    count = some if whole else 12
    for part in range(count):
        assert store.part(FP, part) is None
        assert made(store, [batch(part, 1)], part) is PartSource.MADE
    assert len(listed) == 1
    assert all(store.part(FP, part) for part in range(count))
    assert len(listed) == 1
    other = PartStore(opened())
    monkeypatch.setattr(other.place, "names", listing)
    assert all(isinstance(other.fill(FP, part), PartRows) for part in range(count))
    assert len(listed) == 2


def test_what_was_found_before_is_asked_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk, where what was mapped stays."""
    place = Disk(tmp_path / "root", "v1/team")
    made(PartStore(place), [batch(0)])
    store, asked = PartStore(place), list[str]()
    assert isinstance(store.fill(FP, 0), PartRows)
    for name in ("get", "names", "stamp", "list_files"):
        monkeypatch.setattr(store.place, name, lambda *given: asked.append(str(given)))
    for ask in (store.part, store.fill):
        got = ask(FP, 0)
        assert isinstance(got, PartRows)
        assert same(got, [batch(0)])
    assert asked == []


def test_what_another_makes_or_ends_is_seen_without_a_listing(
    opened: Callable[[], StorePlace],
) -> None:
    mine, yours = PartStore(opened()), PartStore(opened())
    assert made(mine, [batch(0)], 0) is PartSource.MADE
    assert same(yours.part(FP, 0), [batch(0)])
    assert made(yours, [batch(1)], 1) is PartSource.MADE
    assert same(mine.part(FP, 1), [batch(1)])
    for turn in range(3):
        assert janitor.evict(opened(), FP, 1)
        assert mine.part(FP, 1) is None
        assert made(yours, [batch(2 + turn)], 1) is PartSource.MADE
        got = mine.fill(FP, 1)
        assert isinstance(got, PartRows)
        assert same(got, [batch(2 + turn)])
        assert janitor.remove(opened(), FP)
        assert yours.part(FP, 1) is None
        assert made(yours, [batch(5 + turn)], 1) is PartSource.MADE
        assert same(mine.part(FP, 1) or mine.fill(FP, 1), [batch(5 + turn)])  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", ["blobs", "e"])
def test_who_finds_damage_makes_the_version_that_others_wait_for(
    opened: Callable[[], StorePlace], folder: str
) -> None:
    mine, yours = (PartStore(opened(), ttl_s=60.0) for _ in range(2))
    assert made(mine, [batch(0)]) is PartSource.MADE
    assert yours.part(FP, 0) is not None
    (name,) = opened().names(folder)
    opened().put(f"{folder}/{name}", b"damaged")
    found = filling(PartStore(opened(), ttl_s=60.0))
    assert found.lease is not None
    assert found.lease.name.endswith("/0/lease.0.1.0")
    found.add(batch(0))
    assert found.commit() is PartSource.MADE
    assert found.version == (0, 1)
    assert same(yours.part(FP, 0) or yours.fill(FP, 0), [batch(0)])  # type: ignore[arg-type]


def test_an_entry_is_described_once(opened: Callable[[], StorePlace]) -> None:
    store = PartStore(opened())
    assert store.described(FP) is None
    store.describe(FP, {"operators": [["read", "12ab"]], "parts": None})
    store.describe(FP, {"operators": []})
    other = PartStore(opened())
    other.describe(FP, {"operators": [["map", "34cd"]]})
    for each in (store, other):
        assert each.described(FP) == {"operators": [["read", "12ab"]], "parts": None}
        assert each.described(OTHER) is None
    assert made(store, [batch(0)]) is PartSource.MADE
    assert janitor.remove(opened(), FP)
    assert store.described(FP) is None
    assert made(store, [batch(0)]) is PartSource.MADE
    store.describe(FP, {"operators": [["map", "34cd"]]})
    assert other.described(FP) == {"operators": [["map", "34cd"]]}


def test_a_damaged_description_is_written_anew(opened: Callable[[], StorePlace]) -> None:
    store = PartStore(opened())
    store.describe(FP, {"a": 1})
    store.place.put(f"{layout.entry(FP)}/ABOUT.json", b"{")
    assert store.described(FP) is None
    PartStore(opened()).describe(FP, {"a": 2})
    assert store.described(FP) == {"a": 2}


class Growing(dict[Any, Any]):
    """Records to which another thread adds one whenever they are looked through."""

    def items(self) -> Any:
        for each in super().items():
            super().__setitem__((99, len(self)), None)
            yield each


def test_records_may_be_added_while_an_entry_is_listed(tmp_path: Path) -> None:
    store = PartStore(Disk(tmp_path / "root", "v1/team"))
    for part in range(4):
        made(store, [batch(part)], part)
    assert len(store.records(FP)) == 4
    known = store._entries.get_memoized(layout.entry(FP))
    known.records = Growing(known.records)
    assert len(store.records(FP)) == 4
