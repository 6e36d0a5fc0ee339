"""Test the index of a store: recorded entries are found, damaged records are ignored."""

from __future__ import annotations

from pathlib import Path

from dml.cache.lookup.cache_index import CacheIndex, Family, IndexMember
from dml.cache.parts.parts import PartStore
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.ops.implication import Conjunct

BASE, ROWS, MORE, NAME, OTHER = ("0123456789abcdef0123456789abcde" + each for each in "12345")
SMALL = Conjunct("small", "x", "gt", 5)
LARGE = Conjunct("large", "x", "gt", 3)


def opened(folder: Path) -> PartStore:
    return PartStore(Disk(str(folder), layout.namespace("default")))


def indexed(store: PartStore) -> CacheIndex:
    return CacheIndex(store.place, store.standing)


def test_who_has_all_rows_is_found_by_another_process(tmp_path: Path) -> None:
    store = opened(tmp_path)
    equal = IndexMember(NAME, Family(BASE, ROWS, (SMALL,)), {"a": "x"})
    wider = IndexMember(OTHER, Family(BASE, MORE, (LARGE,)), {"a": "x", "b": "y"})
    for each in (equal, wider):
        indexed(store).tell(each)
    again = opened(tmp_path)
    assert indexed(again).members(equal.family, {}) == [equal, wider], "equal rows first"
    assert indexed(again).members(wider.family, {}) == [wider], "the others are fewer"
    assert not indexed(again).members(Family(NAME, ROWS, (SMALL,)), {})


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    store = opened(tmp_path)
    family = Family(BASE, ROWS, (SMALL,))
    indexed(store).tell(IndexMember(NAME, family, {"a": "x"}))
    indexed(store).tell(IndexMember(OTHER, Family(BASE, MORE, (LARGE,)), {"a": "x"}))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and BASE in str(path))
    assert len(files) == 4
    for path in files:
        text = path.read_bytes()
        for wrong in (b"", text[:-3], text.replace(b"x", b"y"), b"[]", b'{"about":1}'):
            path.write_bytes(wrong)
            for found in indexed(opened(tmp_path)).members(family, {}):
                assert found.columns == {"a": "x"}
        path.write_bytes(text)
    (files[0].parent / "../../../etc").mkdir(parents=True, exist_ok=True)
    (files[0].parent / "no name").write_bytes(files[0].read_bytes())
    assert {each.fingerprint for each in indexed(opened(tmp_path)).members(family, {})} <= {
        NAME,
        OTHER,
    }
    assert not indexed(opened(tmp_path / "other")).members(family, {})
