"""Test reports on a cache store: its entries, what a pipeline finds there, and why it misses."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml import col
from dml.api import cache_contents, run_storage, session
from dml.api.catalog import Catalog, describe_pipeline
from dml.cache.parts.parts import PartFilling, PartStore
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.errors import CacheError, FingerprintError, PlanError
from dml.optimize.explain.fingerprint_text import to_json

NAMES = [f"{number:02x}" * 16 for number in range(256)]


def kept(
    root: Path, fingerprint: str, parts: int = 2, rows: int = 10, of: int | None = None
) -> None:
    """Keep some parts of an entry."""
    store = PartStore(Disk(root, layout.namespace("default")))
    for part in range(parts):
        filling = store.fill(fingerprint, part)
        assert isinstance(filling, PartFilling)
        filling.add(pa.record_batch({"x": list(range(rows))}))
        filling.commit()
    if of is not None:
        store.describe(fingerprint, {"parts": of})
    store.close()


def described(root: Path, ds: dml.Dataset, parts: int = 2, of: int = 2) -> str:
    """Keep an entry for a pipeline that stores, which says what it is."""
    plan = session.optimized(ds._node, ds._settings).plan
    asked = cache_contents.asked_of(plan, ds._settings)
    assert asked is not None
    about, name = (
        run_storage.describe_rows(plan.operators[-1], "atoms", of, seed=ds._settings.seed),
        asked[1],
    )
    PartStore(Disk(root, layout.namespace("default"))).describe(name, about)
    kept(root, name, parts)
    return name


def files_below(root: Path) -> list[tuple[str, int]]:
    found = [path for path in root.rglob("*") if path.is_file()]
    return sorted((str(path), path.stat().st_size) for path in found)


def base(factor: int = 2, rows: int = 100) -> dml.Dataset:
    made = dml.range(rows).filter(col("id") > 3).with_columns(y=col("id") * factor)
    return made.cache(tier="disk")


# ---------------------------------------------------------------------------------------- looking


@pytest.mark.law
@settings(max_examples=10)
@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), max_size=4))
def test_every_entry_is_told_with_what_its_parts_add_up_to(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, int]
) -> None:
    root = tmp_path_factory.mktemp("store")
    for name, parts in entries.items():
        kept(root, name, parts, rows=parts)
    found = {each.fingerprint: each for each in Catalog(root)}
    assert {name: each.parts for name, each in found.items()} == entries
    assert list(found) == sorted(entries)
    for name, parts in entries.items():
        assert found[name].rows == parts * parts
        assert found[name].of is None
        assert not found[name].whole
        assert found[name].uses > 0
        alone = Catalog(root).entry(name)  # uses decay meanwhile
        assert replace(alone, uses=0.0, used_s=0.0) == replace(found[name], uses=0.0, used_s=0.0)
    blobs = sum(path.stat().st_size for path in root.rglob("*.arrow"))
    assert sum(each.nbytes for each in found.values()) == blobs


def test_looking_writes_nothing(tmp_path: Path) -> None:
    name = described(tmp_path, base())
    before = files_below(tmp_path)
    catalog = Catalog(tmp_path)
    assert list(catalog)
    assert catalog.entry(name).whole
    assert catalog.lookup(base())
    assert not catalog.why_miss(base())
    assert files_below(tmp_path) == before


@pytest.mark.law
def test_a_look_up_lists_few_folders_however_much_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(tmp_path, base())
    for name in NAMES[:40]:
        kept(tmp_path, name, parts=1)
    listed, scandir = list[str](), os.scandir

    def counting(path: Any) -> Any:
        listed.append(os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    catalog = Catalog(tmp_path)
    folder = layout.entry(catalog.lookup(base()).fingerprint)
    listed.clear()
    assert catalog.lookup(base()).state == "hit"
    assert all(folder in each for each in listed)
    assert len(listed) == 2, "the entry, and the one incarnation of it"
    listed.clear()
    assert catalog.lookup(base(7)).state == "miss"
    assert len(listed) <= 6, "the entry, and what is said beside it of rows like these"


@pytest.mark.parametrize(
    ("parts", "of", "state"), [(2, 2, "hit"), (1, 2, "partial"), (0, 2, "miss")]
)
def test_a_look_up_tells_hits_and_parts_and_misses(
    tmp_path: Path, parts: int, of: int, state: str
) -> None:
    name = described(tmp_path, base(), parts, of)
    found = Catalog(tmp_path).lookup(base())
    assert found.state == state
    assert found.fingerprint == name
    assert state in str(found)


def test_a_pipeline_that_knows_its_parts_needs_no_description(tmp_path: Path) -> None:
    """The description of an entry is written once, and may be lost or damaged."""
    rows = 2 * 65_536 + 1
    name = catalog_at(tmp_path).lookup(base(rows=rows)).fingerprint
    for parts, state in ((2, "partial"), (3, "hit")):
        root = tmp_path / state
        kept(root, name, parts)
        found = Catalog(root).lookup(base(rows=rows))
        assert (found.state, found.parts, found.of) == (state, parts, 3)
        assert bool(Catalog(root).why_miss(base(rows=rows))) == (state == "partial")


def test_a_stream_is_whole_where_its_last_part_is_kept(tmp_path: Path) -> None:
    ds = base().shuffle(8).cache(tier="disk")
    name = catalog_at(tmp_path).lookup(ds).fingerprint
    kept(tmp_path, name, parts=3)
    found = Catalog(tmp_path).lookup(ds)
    assert (found.state, found.parts, found.of) == ("partial", 3, None)
    run = ds.with_options(cache_dir=str(tmp_path / "run"), telemetry_dir="off")
    list(run)
    assert Catalog(tmp_path / "run").lookup(run).state == "hit"


def test_no_rows_are_all_there(tmp_path: Path) -> None:
    found = catalog_at(tmp_path).lookup(base(rows=0))
    assert (found.state, found.parts, found.of) == ("hit", 0, 0)


def catalog_at(root: Path) -> Catalog:
    """A catalog of a store that has an entry."""
    kept(root, NAMES[0])
    return Catalog(root)


def test_what_reads_rows_in_other_batches_finds_the_same_entry(tmp_path: Path) -> None:
    """What stands above the cache is nothing to what is kept below it."""
    described(tmp_path, base())
    catalog = Catalog(tmp_path)
    for above in (base().batch(3), base().batch(4), base().shuffle().take(9), base().select("y")):
        assert catalog.lookup(above).state == "hit"


def test_a_function_without_a_name_cannot_be_looked_up(tmp_path: Path) -> None:
    lock = __import__("threading").Lock()

    def held(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return row

    with pytest.raises(FingerprintError, match="held has no fingerprint"):
        Catalog(tmp_path).lookup(dml.range(3).map(held))


# ------------------------------------------------------------------------------------ why it is not


def test_the_nearest_entry_says_what_differs(tmp_path: Path) -> None:
    described(tmp_path, base(2, rows=7))
    described(tmp_path, base(5))
    described(tmp_path, dml.from_dict({"a": [1]}).cache(tier="disk"))
    found = Catalog(tmp_path).why_miss(base(6))
    assert (found.kind, found.here) == ("constant", "6")
    assert re.fullmatch("something with digest [0-9a-f]{8}", found.there)
    assert found.operator.startswith("WithColumns(y=(id * 6))")


def test_an_entry_that_is_named_is_compared(tmp_path: Path) -> None:
    described(tmp_path, base(5))
    other = described(tmp_path, dml.from_dict({"a": [1]}).cache(tier="disk"))
    found = Catalog(tmp_path).why_miss(base(6), other[:6])
    assert found.operator.startswith("Range(")


def test_a_hit_differs_in_nothing_and_a_part_says_what_is_missing(tmp_path: Path) -> None:
    described(tmp_path, base(), parts=2, of=2)
    assert not Catalog(tmp_path).why_miss(base())
    described(tmp_path, base(3), parts=1, of=4)
    found = Catalog(tmp_path).why_miss(base(3))
    assert (found.kind, found.here, found.there) == ("parts", "4 parts", "1 part")


def test_where_nothing_says_what_it_is_that_is_said(tmp_path: Path) -> None:
    kept(tmp_path, NAMES[3])
    assert Catalog(tmp_path).why_miss(base()).kind == "nothing"


# ----------------------------------------------------------------------------------------- ending


def test_an_evicted_entry_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    kept(tmp_path, NAMES[1])
    kept(tmp_path, NAMES[2])
    catalog = Catalog(tmp_path)
    assert catalog.evict(NAMES[1])
    assert not catalog.evict(NAMES[1])
    assert [each.fingerprint for each in catalog] == [NAMES[2]]
    with pytest.raises(CacheError, match="no one entry"):
        catalog.entry(NAMES[1])
    assert catalog.gc().names == 0
    assert len(list(tmp_path.rglob("*.arrow"))) == 2


def test_a_pinned_entry_is_not_evicted_by_hand_either(tmp_path: Path) -> None:
    kept(tmp_path, NAMES[1])
    catalog = Catalog(tmp_path)
    catalog.pin(NAMES[1])
    assert catalog.entry(NAMES[1]).pinned
    with pytest.raises(CacheError, match="is pinned"):
        catalog.evict(NAMES[1])
    catalog.unpin(NAMES[1])
    assert catalog.evict(NAMES[1])


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [_flipped, _cut, _gone], ids=lambda harm: harm.__name__)
def test_verify_finds_what_is_damaged_and_clears_it_away(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    kept(tmp_path, NAMES[1], parts=3)
    kept(tmp_path, NAMES[2], parts=2)
    catalog = Catalog(tmp_path)
    assert catalog.verify().damaged == ()
    assert catalog.verify().parts == 5
    view = catalog._kept.view(NAMES[1])
    record = (tmp_path / "v1" / "default" / view.record(1)).read_text()
    blob = record.partition('"blob":"')[2].partition('"')[0]
    harm(tmp_path / "v1" / "default" / blob)
    assert catalog.verify(NAMES[2]).damaged == ()
    assert catalog.verify().damaged == ((NAMES[1], 1),)
    assert catalog.verify().damaged == ()
    assert catalog.entry(NAMES[1]).parts == 2


def test_verify_clears_away_records_that_are_damaged(tmp_path: Path) -> None:
    kept(tmp_path, NAMES[1], parts=1)
    catalog = Catalog(tmp_path)
    _flipped(tmp_path / "v1" / "default" / catalog._kept.view(NAMES[1]).record(0))
    assert catalog.verify().damaged == ((NAMES[1], 0),)
    assert not list(catalog)


# ----------------------------------------------------------------------- names that mean nothing


def test_first_letters_stand_for_a_fingerprint_where_one_begins_so(tmp_path: Path) -> None:
    one, other = "ab" * 16, "ab" * 15 + "cd"
    kept(tmp_path, one)
    catalog = Catalog(tmp_path)
    assert catalog.entry("abab").fingerprint == one
    kept(tmp_path, other)
    with pytest.raises(CacheError, match="no one entry"):
        catalog.entry("abab")
    assert catalog.entry(other).fingerprint == other


@pytest.mark.parametrize("given", ["", "abc", "xyzw", "../../etc", "ABCD", "ab/cd"])
def test_what_is_no_fingerprint_is_an_error(tmp_path: Path, given: str) -> None:
    catalog = Catalog(tmp_path)
    for verb in (catalog.entry, catalog.pin, catalog.evict, catalog.verify):
        with pytest.raises(PlanError, match="is not a fingerprint"):
            verb(given)


@pytest.mark.parametrize("name", ["..", "", "a/b", "-a", "x" * 65])
def test_what_is_no_namespace_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match="not the name of a namespace"):
        Catalog(tmp_path, namespace=name)


def test_a_store_that_is_not_there_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="there is no store"):
        Catalog(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_without_a_path_it_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "dml" / "store").mkdir(parents=True)
    assert Catalog().path == str(tmp_path / "dml" / "store")


@pytest.mark.law
def test_a_damaged_account_of_an_entry_is_no_account(tmp_path: Path) -> None:
    name = described(tmp_path, base())
    _flipped(tmp_path / "v1" / "default" / layout.entry(name) / "ABOUT.json")
    assert Catalog(tmp_path).entry(name).about == {}
    assert Catalog(tmp_path).why_miss(base(3)).kind == "nothing"


ODD: tuple[Any, ...] = (None, 3, "text", [], [[]], [3], [["title"]], {"a": 1}, [["t", "n", "m"]])


@pytest.mark.law
@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("key", ["operators", "parts", "made_of", "written"])
def test_odd_accounts_are_read_without_error(tmp_path: Path, key: str, odd: Any) -> None:
    """Whoever may write to the namespace may write anything there."""
    about = {**to_json(describe_pipeline(base(), "ds", "test")), key: odd}
    PartStore(Disk(tmp_path, layout.namespace("default"))).describe(NAMES[1], about)
    kept(tmp_path, NAMES[1], parts=1)
    catalog = Catalog(tmp_path)
    assert str(catalog.why_miss(base(3)))
    assert len(list(catalog)) == 1


# --------------------------------------------------------------------------------- what a run keeps


def written(folder: Path, factor: int = 3) -> dml.Dataset:
    made = dml.range(1000, atom_rows=100).map(lambda row: {"z": str(row["id"]) * factor})
    return made.cache(tier="disk").with_options(cache_dir=str(folder))


def test_what_a_run_kept_is_found_and_told(tmp_path: Path) -> None:
    ds = written(tmp_path)
    list(ds.batch(100))
    catalog = Catalog(tmp_path / "store")
    assert (
        str(catalog.lookup(ds.batch(7)))
        == f"hit  {next(iter(catalog)).fingerprint}  10 of 10 parts"
    )
    (entry,) = catalog
    assert (entry.parts, entry.of, entry.rows, entry.about["tier"]) == (10, 10, 1000, "atoms")
    assert [title.partition("(")[0] for title, _ in entry.about["operators"]] == [
        "Range",
        "MapRows",
    ]
    assert not catalog.why_miss(ds)
    found = catalog.why_miss(written(tmp_path, 4))
    assert (found.kind, found.here) == ("closure", "4")
    assert re.fullmatch("something with digest [0-9a-f]{8}", found.there)
    list(written(tmp_path / "plain").with_options(plain_text=True))
    told = Catalog(tmp_path / "plain" / "store").why_miss(written(tmp_path, 4))
    assert (told.kind, told.here, told.there) == ("closure", "4", "3")


@pytest.mark.law
def test_what_a_run_kept_before_it_was_stopped_is_a_part(tmp_path: Path) -> None:
    ds = written(tmp_path).with_options(executor="sync")
    with iter(ds.batch(100)) as batches:
        for _ in range(5):
            next(batches)
    found = Catalog(tmp_path / "store").lookup(ds)
    assert found.state == "partial"
    assert 4 <= found.parts < 10
    assert Catalog(tmp_path / "store").why_miss(ds).kind == "parts"


def test_the_last_part_of_a_stream_says_that_it_is_the_last(tmp_path: Path) -> None:
    """How many parts a stream has is known at its end alone."""
    store = PartStore(Disk(tmp_path, layout.namespace("default")))
    found = []
    for part in range(3):
        filling = store.fill(NAMES[1], part)
        assert isinstance(filling, PartFilling)
        filling.add(pa.record_batch({"x": [part]}))
        filling.commit({"last": part == 2})
        found.append(
            (Catalog(tmp_path).entry(NAMES[1]).parts, Catalog(tmp_path).entry(NAMES[1]).of)
        )
    assert found == [(1, None), (2, None), (3, 3)]


def test_what_others_have_is_told_with_what_differs(tmp_path: Path) -> None:
    data = dml.range(100).filter(col("id") > 3).with_columns(y=col("id") * 2, z=col("id") * 3)
    options: dict[str, Any] = {"cache_dir": str(tmp_path), "executor": "sync"}
    first = data.cache(tier="disk")
    list(first.with_options(**options))
    catalog = Catalog(tmp_path / "store")
    (entry,) = catalog
    other = data.filter(col("id") > 50).select("y", "id", w=col("z") % 7).cache(tier="disk")
    told = f"takes y, id, w from {entry.fingerprint[:8]} where (id > 50)"
    found = catalog.lookup(other)
    assert (found.state, found.reuse) == ("miss", told)
    assert str(found).endswith(f"; {told}")
    assert str(catalog.why_miss(other)).endswith(f"\n  also  {told}")
    assert not catalog.lookup(first).reuse
    assert not catalog.lookup(data.select("id")).reuse, "it is not cached"
    line = next(x for x in other.with_options(**options).explain().splitlines() if told in x)
    assert line.strip().startswith("cache ")
    assert len(list(catalog)) == 1, "looking writes nothing"
