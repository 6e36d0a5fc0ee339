"""Test quotas while parts are written: unfinished parts count, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.parts import blob_digest, part_fill
from dml.cache.parts.parts import PartFilling, PartSource, PartStore
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import StorePlace
from tests.cache.store.fills import FP, OTHER, batch, filling, made

UNASKED, PIECE = 20_000, 4_096


@pytest.fixture(autouse=True)
def _little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_fill, "UNASKED_BYTES", UNASKED)
    monkeypatch.setattr(blob_digest, "PIECE_BYTES", PIECE)


def written(place: StorePlace) -> int:
    """Bytes that are there, or are being written."""
    return sum(each.size for prefix in (layout.BLOBS, "tmp") for each in place.list_files(prefix))


def announced(place: StorePlace) -> int:
    return sum(int(each.name.partition("-")[2]) for each in place.list_files("announced"))


def one(part: int) -> pa.RecordBatch:
    """About eight kilobytes."""
    return pa.record_batch({"x": range(part, part + 1000)})


def test_what_is_written_is_announced_and_then_there(opened: Callable[[], StorePlace]) -> None:
    place, store = opened(), PartStore(opened(), quota_bytes=200_000)
    found, most = filling(store), 0
    for part in range(20):
        found.add(one(part))
        size = 8_000 * (part + 1)
        assert size <= max(announced(place), UNASKED)
        assert announced(place) <= 200_000
        most = max(most, announced(place))
    assert most > 160_000
    assert len(place.names("announced")) == 1, "what was announced before is taken back"
    assert found.commit() is PartSource.MADE
    assert place.names("announced") == []
    assert store.part(FP, 0) is not None


@pytest.mark.parametrize("how", ["drop", "void"])
def test_what_is_given_up_leaves_its_room(opened: Callable[[], StorePlace], how: str) -> None:
    place, store = opened(), PartStore(opened(), quota_bytes=200_000)
    found = filling(store)
    for part in range(15):
        found.add(one(part))
    assert announced(place) > 100_000
    if how == "drop":
        found.drop()
    else:
        found.add(batch(0))  # of another schema
    assert place.names("announced") == []
    assert made(store, [one(part) for part in range(20)], 1) is PartSource.MADE


def test_what_is_larger_than_the_quota_is_given_up_on_the_way(tmp_path: Path) -> None:
    place = Disk(tmp_path, "v1/shared")
    store = PartStore(place, quota_bytes=100_000)
    found, sizes = filling(store), list[int]()
    for part in range(20):
        found.add(one(part))
        sizes.append(written(place))
    assert 50_000 < max(sizes) <= 100_000
    assert sizes[-1] == 0
    assert found.commit() is PartSource.UNKEPT
    assert store.standing.whole
    assert made(store, [batch(0)]) is PartSource.MADE


@pytest.mark.law
@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["add", "add", "add", "commit"]))),
    quota=st.integers(30_000, 200_000),
)
def test_many_fillings_at_once_stay_within_it(
    steps: list[tuple[int, str]], quota: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = Disk(tmp_path_factory.mktemp("any"), "v1/shared")
    stores = [PartStore(place, quota_bytes=quota) for _ in range(2)]
    begun: dict[int, PartFilling] = {}
    parted = 0
    for number, step in steps:
        if number not in begun:
            begun[number] = filling(stores[number % 2], (FP, OTHER)[number // 2], parted)
            parted += 1
        found = begun[number]
        if step == "add":
            for part in range(3):
                found.add(one(part))
        else:
            assert begun.pop(number).commit() in (PartSource.MADE, PartSource.UNKEPT)
        assert written(place) <= quota + UNASKED * len(begun)
    for found in begun.values():
        found.drop()
    assert sum(each.size for each in place.list_files(layout.BLOBS)) <= quota
    assert place.names("announced") == place.names("tmp") == []
