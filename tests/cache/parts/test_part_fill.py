"""Test parts that are written while rows are delivered: they contain the same batches."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.eviction import janitor
from dml.cache.parts import blob_digest
from dml.cache.parts.parts import PartRows, PartSource, PartStore
from dml.cache.store.disk import Disk, Writing
from dml.cache.store.primitives import Fetched, StorePlace
from tests.cache.parts.test_aligned_format import TYPES, buffers, values
from tests.cache.store.fills import FP, OTHER, batch, filling, find, made, same

TENSOR = pa.fixed_shape_tensor(pa.float32(), (2, 3))
PLAIN = [kind for kind in TYPES if not pa.types.is_dictionary(kind)]


def tensors(n: int, salt: int) -> pa.Array:
    flat = pa.array([float(i + salt) for i in range(6 * n)], pa.float32())
    storage = pa.FixedSizeListArray.from_arrays(flat, 6)
    return pa.ExtensionArray.from_storage(TENSOR, storage)


@st.composite
def cuts(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Batches of one schema: any types, empty ones, slices that begin anywhere."""
    kinds = draw(st.lists(st.sampled_from([*PLAIN, TENSOR]), min_size=1, max_size=4))
    metadata = draw(st.sampled_from([None, {b"k": b"v"}]))
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)], metadata=metadata)
    found = []
    for n in draw(st.lists(st.integers(0, 300), max_size=5)):
        salt = draw(st.integers(0, 9))
        arrays = [
            tensors(n, salt) if kind == TENSOR else values(kind, n, salt + i)
            for i, kind in enumerate(kinds)
        ]
        start = draw(st.integers(0, n))
        found.append(pa.RecordBatch.from_arrays(arrays, schema=schema).slice(start))
    return found


@pytest.mark.law
@given(batches=cuts(), small=st.booleans())
def test_any_batches_come_back_as_they_were_added(
    batches: list[pa.RecordBatch], small: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any")
    about = {"ids": [1, 2], "deep": {"a": None}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blob_digest, "PIECE_BYTES", 100 if small else 4 << 20)
        assert made(PartStore(Disk(root, "v1/any")), batches, about=about) is PartSource.MADE
        store = PartStore(Disk(root, "v1/any"))
        found = [ask(FP, 0) for ask in (store.part, store.fill)]
    for got in found:
        assert isinstance(got, PartRows)
        assert got.about == about
        assert same(got, batches)
        for each in got.batches:
            each.validate(full=True)


@pytest.mark.law
@given(batches=cuts())
def test_what_comes_back_is_the_file_and_begins_at_multiples_of_64(
    batches: list[pa.RecordBatch], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any")
    made(PartStore(Disk(root, "v1/any")), batches)
    before = pa.total_allocated_bytes()
    got = PartStore(Disk(root, "v1/any")).part(FP, 0)
    assert got is not None
    inside = mapped(root)
    for each in got.batches:
        for column in each.columns:
            for held in buffers(column):
                assert any(held.address in one for one in inside), "it was copied"
                assert held.address % 64 == 0
    assert pa.total_allocated_bytes() - before < 4096


def mapped(root: Path) -> list[range]:
    """Where files below ``root`` are mapped into this process."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(root) in line:
            begin, end = line.partition(" ")[0].split("-")
            found.append(range(int(begin, 16), int(end, 16)))
    return found


def test_a_part_without_rows_is_there(opened: Callable[[], StorePlace]) -> None:
    assert made(PartStore(opened()), [], about={"n": 0}) is PartSource.MADE
    got = PartStore(opened()).part(FP, 0)
    assert got is not None
    assert (list(got.batches), got.about) == ([], {"n": 0})
    assert PartStore(opened()).part(FP, 1) is None


def test_what_one_fills_all_find(opened: Callable[[], StorePlace]) -> None:
    batches = [batch(0), batch(100, 0), batch(100, 7)]
    store = PartStore(opened())
    assert store.part(FP, 3) is None
    assert made(store, batches, 3, {"ids": "0-106"}) is PartSource.MADE
    for each in (store, PartStore(opened())):
        got = each.part(FP, 3)
        assert same(got, batches)
        assert got is not None
        assert got.about == {"ids": "0-106"}
        assert each.part(FP, 0) is None
        assert each.part(OTHER, 3) is None
        assert isinstance(each.fill(FP, 3), PartRows)
        table = find(each, FP, 3)
        assert table is not None
        assert table.num_rows == 107
    assert opened().names("tmp") == []
    assert [name for name in opened().names("e") if "lease" in name] == []


@pytest.mark.law
def test_rows_are_written_as_they_come(tmp_path: Path) -> None:
    """Ten times what is added at once is never held."""
    store, most, n = PartStore(Disk(tmp_path, "v1/shared")), 0, 200_000
    found = filling(store)
    before = pa.total_allocated_bytes()
    for start in range(10):
        one = pa.record_batch({"x": pa.array(range(start, start + n), pa.int64())})
        found.add(one)
        (name,) = store.place.names("tmp")
        size = (tmp_path / "v1/shared/tmp" / name).stat().st_size
        assert size >= (start + 1) * one.nbytes - blob_digest.PIECE_BYTES
        del one
        most = max(most, pa.total_allocated_bytes() - before)
    assert found.commit() is PartSource.MADE
    assert most < 100_000
    got = store.part(FP, 0)
    assert got is not None
    assert [each["x"][0].as_py() for each in got.batches] == list(range(10))


def test_a_batch_of_another_schema_makes_it_void(opened: Callable[[], StorePlace]) -> None:
    store = PartStore(opened())
    for other in (
        pa.record_batch({"x": [1.5]}),
        batch(0).replace_schema_metadata({"k": "v"}),
        batch(0).rename_columns(["a", "s"]),
    ):
        assert made(store, [batch(0), other, batch(0)]) is PartSource.UNKEPT
        assert opened().names("") == []
    assert store.standing.whole
    assert made(store, [batch(0)]) is PartSource.MADE


@pytest.mark.sample(1)
@pytest.mark.law
def test_what_is_dropped_or_forgotten_leaves_nothing(opened: Callable[[], StorePlace]) -> None:
    store = PartStore(opened())
    for begun in (False, True):
        for how in ("drop", "forget", "late"):
            found = filling(store)
            if begun:
                found.add(batch(0, 100_000))
            if how == "forget":
                del found
                gc.collect()
            else:
                found.drop()
                found.drop()
                if how == "late":
                    found.add(batch(0))
                    assert found.commit() is PartSource.UNKEPT
            assert opened().names("") == []
    assert made(store, [batch(0)]) is PartSource.MADE


@pytest.mark.law
def test_another_process_of_a_fork_leaves_it_alone(tmp_path: Path) -> None:
    store = PartStore(Disk(tmp_path, "v1/shared"))
    found = filling(store)
    found.add(batch(0, 100_000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads and of libraries beside a fork
        child = os.fork()
    if not child:
        found.drop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert found.commit() is PartSource.MADE
    assert same(store.part(FP, 0), [batch(0, 100_000)])


def test_the_second_to_commit_adopts(opened: Callable[[], StorePlace]) -> None:
    slow = filling(PartStore(opened()))
    slow.add(batch(0))
    fast = filling(PartStore(opened(), patience_s=-1.0))
    fast.add(batch(0))
    assert fast.commit() is PartSource.MADE
    assert slow.commit() is PartSource.ADOPTED
    assert len(opened().names("blobs")) == 1
    assert opened().names("tmp") == []
    other = PartStore(opened(), patience_s=-1.0)
    for ours, theirs in (([batch(0)], [pa.record_batch({"y": [1]})]), ([], [batch(0)])):
        janitor.evict(opened(), FP, 0)
        slow = filling(PartStore(opened()))
        for each in ours:
            slow.add(each)
        assert made(other, theirs) is PartSource.MADE
        assert slow.commit() is PartSource.UNKEPT, "rows of another schema are not the same"


def test_whoever_sleeps_through_an_eviction_commits_what_is_looked_at(
    opened: Callable[[], StorePlace],
) -> None:
    slow = filling(PartStore(opened()))
    slow.add(batch(0))
    assert made(PartStore(opened(), patience_s=-1.0), [batch(0)]) is PartSource.MADE
    assert janitor.evict(opened(), FP, 0)
    assert slow.commit() is PartSource.MADE
    assert slow.version == (0, 1)
    assert same(PartStore(opened()).part(FP, 0), [batch(0)])
    assert janitor.remove(opened(), FP)
    store = PartStore(opened())
    found = filling(store)
    assert janitor.remove(opened(), FP)
    found.add(batch(0))
    assert found.commit() is PartSource.MADE
    assert found.version == (2, 0)
    assert same(PartStore(opened()).part(FP, 0), [batch(0)])


class Loading(Disk):
    """A folder whose files are read as an object store's are: all at once, into memory."""

    maps = False

    def fetch(self, name: str) -> Any:
        data = self.get(name)
        return None if data is None else Fetched(data)


def test_a_part_that_is_too_large_for_memory_is_left_where_it_is(tmp_path: Path) -> None:
    mine = [batch(0, 1000)]
    for kind, limited in ((Disk, False), (Loading, True)):
        place = kind(tmp_path / kind.__name__, "v1/shared")
        made(PartStore(place), mine)
        (size,) = (each.size for each in place.list_files("blobs"))
        for ask in (PartStore(place).part, PartStore(place).fill):
            got: Any = ask(FP, 0, size - 1)
            assert (got is None) == limited
            got = ask(FP, 0, size)
            assert same(got, mine)
            assert got.loaded_bytes == (size if limited else 0)
        assert not [name for name in place.names("e") if "tomb" in name or "lease" in name]


def test_who_looks_at_frames_may_hold_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the profiler of a worker of Dask does: it has the locals of functions that returned."""
    held, write = list[Any](), Writing.write

    def writing(sink: Writing, data: memoryview) -> None:
        held.append(memoryview(data).cast("B"))
        write(sink, data)

    monkeypatch.setattr(Writing, "write", writing)
    store = PartStore(Disk(tmp_path / "root", "v1/shared"))
    assert made(store, [batch(0), batch(100)]) is PartSource.MADE
    assert held
    assert same(store.part(FP, 0), [batch(0), batch(100)])
