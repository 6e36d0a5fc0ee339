"""Test quarantined entries: no process reads or fills them until a user removes them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from dml.cache.eviction import janitor, quarantine
from dml.cache.eviction.catalogue import Catalogue
from dml.cache.parts.parts import PartRows, PartSource, PartStore
from dml.cache.store import layout
from dml.cache.store.primitives import StorePlace, UnusableError
from tests.cache.store.fills import FP, OTHER, batch, filling, get, made

SAID = {"what": "column 'y' is another value", "at": "MapRows(f), row 3", "time": "now"}
Opened = Callable[[], StorePlace]


def test_nobody_reads_what_is_quarantined_nor_fills_it(opened: Opened) -> None:
    mine, other = PartStore(opened()), PartStore(opened())
    for part in range(3):
        made(mine, [batch(part, 10)], part=part)
        assert isinstance(other.part(FP, part), PartRows)
    late = filling(other, part=3)
    late.add(batch(3, 10))
    get(mine, OTHER, 0, lambda: pa.Table.from_batches([batch(0, 10)]))
    assert mine.trusts(FP)
    assert mine.quarantine(FP, SAID)
    assert not mine.trusts(FP)
    assert not other.quarantine(FP, {"what": "later"}), "the first has said it"
    assert late.commit() is PartSource.UNKEPT
    for store in (mine, other, PartStore(opened())):
        for part in range(4):
            assert store.part(FP, part) is None
            assert store.fill(FP, part) is None
        assert store.quarantined(FP) == SAID
        assert store.records(FP) == {}
        assert store.quarantined(OTHER) is None
        assert isinstance(store.part(OTHER, 0), PartRows)
    place = opened()
    assert len(place.names(layout.BLOBS)) == 1, "that of the other entry"
    janitor.sweep(place, ttl_s=0.0, grace_s=0.0)
    assert PartStore(opened()).fill(FP, 0) is None, "that clears away what nobody looks at"


@pytest.mark.parametrize("ways", ["store", "janitor"])
def test_who_removes_it_lets_it_be_filled_again(opened: Opened, ways: str) -> None:
    mine, other = PartStore(opened()), PartStore(opened())
    made(mine, [batch(0, 10)])
    assert isinstance(other.part(FP, 0), PartRows)
    mine.quarantine(FP, SAID)
    assert other.fill(FP, 0) is None
    if ways == "store":
        other.remove(FP)
    else:
        assert janitor.remove(opened(), FP, "by hand")
    for store in (mine, other):
        assert store.quarantined(FP) is None
        assert store.part(FP, 0) is None
    assert made(other, [batch(1, 10)]) is PartSource.MADE
    for store in (mine, other, PartStore(opened())):
        assert isinstance(store.fill(FP, 0), PartRows)
        assert store.trusts(FP)


def test_what_cannot_be_written_is_left_by_this_process(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = PartStore(opened())
    made(mine, [batch(0, 10)])

    def failing(*_: object) -> bool:
        raise UnusableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(type(mine.place), "put_if_absent", failing)
        with pytest.warns(UserWarning, match="without the store"):
            assert mine.quarantine(FP, SAID)
        assert not mine.quarantine(FP, SAID)
    assert mine.part(FP, 0) is None
    assert mine.fill(FP, 0) is None
    assert isinstance(PartStore(opened()).part(FP, 0), PartRows)


def test_a_damaged_reason_is_a_reason(place: StorePlace) -> None:
    store = PartStore(place)
    store.describe(FP, {"operators": [["MapRows(f)", "ab"]]})
    made(store, [batch(0, 10)])
    place.put(f"{layout.entry(FP)}/{layout.QUARANTINE}", b"no JSON")
    fresh = PartStore(place)
    assert fresh.part(FP, 0) is None
    assert fresh.quarantined(FP) == {}
    entry = Catalogue(place).entry(FP)
    assert entry is not None
    assert entry.quarantined == quarantine.words({}) == "nobody can read why"


def test_what_an_entry_was_is_still_told(place: StorePlace) -> None:
    store = PartStore(place)
    about = {"operators": [["MapRows(f)", "ab"]]}
    store.describe(FP, about)
    made(store, [batch(0, 10)])
    store.quarantine(FP, SAID)
    (entry,) = Catalogue(place).entries()
    assert (entry.parts, entry.rows, entry.about) == (0, 0, about)
    assert entry.quarantined == "column 'y' is another value, MapRows(f), row 3, now"
    assert Catalogue(place).verify().parts == 0


def test_who_is_first_is_told_once(opened: Opened) -> None:
    mine, other = PartStore(opened()), PartStore(opened())
    made(mine, [batch(0, 10)])
    assert mine.first(FP, "here")
    assert not other.first(FP, "here")
    assert other.first(FP, "there")
    assert isinstance(other.part(FP, 0), PartRows)
