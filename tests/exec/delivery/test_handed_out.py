"""Test batches over the memory of a store: they are writable, and no other code uses them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.cache.elements import disk_cache
from dml.cache.parts import mapped_blob
from dml.data import buffer_ownership

ROWS, EACH = 60, 12


def image(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"], "image": np.full((16, 64), row["x"] % 251, np.uint8)}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Rows with images, on disk."""
    folder = tmp_path_factory.mktemp("kept")
    pq.write_table(pa.table({"x": np.arange(ROWS)}), folder / "x.parquet", row_group_size=EACH)
    ds = dml.read_parquet(folder / "x.parquet").map(image, fingerprint="image")
    ds = ds.cache(tier="disk").with_options(cache_dir=str(folder / "store"), executor="threads")
    for _ in ds:
        pass
    return ds


def wanted(start: int, n: int) -> np.ndarray:
    return np.stack([image({"x": x})["image"] for x in range(start, start + n)])


def lies_there(array: np.ndarray) -> bool:
    """Whether an array lies in a mapped file."""
    return buffer_ownership.handed(array) is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(n=st.integers(1, ROWS), executor=st.sampled_from(["sync", "threads"]))
def test_only_what_crosses_parts_is_copied(kept: Dataset, n: int, executor: str) -> None:
    for number, batch in enumerate(kept.batch(n).with_options(executor=executor)):
        first = number * n
        rows = len(batch["x"])
        assert (batch["image"] == wanted(first, rows)).all()
        assert batch["image"].flags.writeable
        assert lies_there(batch["image"]) == (first // EACH == (first + rows - 1) // EACH)


def test_whoever_writes_changes_nothing_that_others_get(kept: Dataset) -> None:
    for n in (4, EACH, 7):
        ds, other = kept.batch(n), kept.batch(n)
        held = []
        for at, (one, two) in enumerate(zip(ds, other, strict=True)):
            one["image"][:] = 255
            one["x"][:] = -1
            assert (two["image"] == wanted(at * n, len(two["x"]))).all()
            held.append(one)
        assert all((each["image"] == 255).all() for each in held)
        for at, batch in enumerate(ds):
            assert (batch["image"] == wanted(at * n, len(batch["x"]))).all()
            assert batch["x"].tolist() == list(range(at * n, at * n + len(batch["x"])))


@pytest.mark.parametrize("n", [1, 4, 5, EACH, 17])
def test_a_loop_goes_on_wherever_it_stopped(kept: Dataset, n: int) -> None:
    """Blocks of a part are one where batches are cut, and positions are those of its rows."""
    ds = kept.batch(n)
    it = iter(ds.epoch(0))
    states = [it.state_dict() for _ in it]
    for number in range(0, len(states), 3):
        again = iter(ds.epoch(0))
        again.load_state_dict(states[number])
        rows = [x for batch in again for x in batch["x"].tolist()]
        assert rows == list(range((number + 1) * n, ROWS))


Pipeline = Callable[[Dataset], Dataset]
ONCE: dict[str, Pipeline] = {
    "batch": lambda ds: ds.batch(4),
    "select": lambda ds: ds.select("image").batch(4),
    "rename": lambda ds: ds.rename({"image": "picture"}).batch(4),
    "take": lambda ds: ds.take(40).batch(4),
    "skip": lambda ds: ds.skip(3).batch(4),
}
MORE: dict[str, Pipeline] = {
    "twice in a row": lambda ds: ds.with_columns(again=col("image")).batch(4),
    "repeat": lambda ds: ds.repeat(2).batch(4),
    "a function": lambda ds: ds.map_batches(lambda b: b, batch_size=4).batch(4),
    "memory": lambda ds: ds.cache().batch(4),
    "zip": lambda ds: ds.zip(ds.rename({"image": "other", "x": "y"}).skip(1)).batch(4),
    "shuffle": lambda ds: ds.shuffle(buffer_size=20).batch(4),
    "bigger batches of batches": lambda ds: ds.batch(4).map(lambda b: b),
}


@pytest.mark.parametrize("name", [*ONCE, *MORE])
def test_no_two_arrays_of_a_run_are_the_same_memory(kept: Dataset, name: str) -> None:
    ds = {**ONCE, **MORE}[name](kept)
    plain = [{k: v.copy() for k, v in batch.items()} for batch in ds.epoch(0)]
    held = []
    for batch in ds.epoch(0):
        for array in batch.values():
            if array.dtype == np.uint8:
                assert array.flags.writeable
                array[:] = 200
        held.append(batch)
    arrays = [a for batch in held for a in batch.values()]
    assert not buffer_ownership.overlapping([a for a in arrays if a.flags.c_contiguous])
    for _ in range(2):
        again = list(ds.epoch(0))
        assert len(again) == len(plain)
        for got, want in zip(again, plain, strict=True):
            assert all((got[k] == want[k]).all() for k in want)


@pytest.mark.parametrize("name", list(ONCE))
def test_where_rows_only_move_they_are_handed_out_as_they_lie(kept: Dataset, name: str) -> None:
    images = [a for batch in ONCE[name](kept) for a in batch.values() if a.dtype == np.uint8]
    assert sum(map(lies_there, images)) >= len(images) // 2


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_batches_that_were_kept_as_such_are_handed_out(kept: Dataset, executor: str) -> None:
    source = kept._node.inputs[0]
    moved = Dataset(source, kept._settings).shuffle(buffer_size=20, seed=1).batch(7)
    ds = moved.cache(tier="disk").with_options(executor=executor)
    plain = [batch["image"].copy() for batch in ds]
    for _ in range(2):
        held = []
        for got, want in zip(ds, plain, strict=True):
            assert (got["image"] == want).all()
            assert lies_there(got["image"])
            got["image"][:] = 3
            held.append(got["image"])
        assert not buffer_ownership.overlapping(held)
    one, two = iter(ds), iter(ds)
    for got, want in zip(one, plain, strict=True):
        got["image"][:] = 5
        assert (next(two)["image"] == want).all()


KEPT: list[np.ndarray] = []


def keeping(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    KEPT.append(rows["image"])
    return {"y": rows["x"] + 1, **rows}


def keeping_row(row: dict[str, Any]) -> dict[str, Any]:
    KEPT.append(row["image"])
    return {"y": row["x"] + 1, **row}


def keeping_value(image: np.ndarray) -> float:
    KEPT.append(image)
    return float(image[0, 0])


VALUE = dml.udf(return_dtype="float64", fingerprint="keeping value")(keeping_value)
KEEPING: dict[str, Pipeline] = {
    "a value": lambda ds: ds.with_columns(y=VALUE(col("image"))),
    "a batch": lambda ds: ds.map_batches(keeping, batch_size=4, fingerprint="keeping"),
    "a row": lambda ds: ds.map(keeping_row, fingerprint="keeping row"),
}


@pytest.mark.parametrize("name", KEEPING)
def test_functions_over_rows_of_others_may_keep_what_they_saw(kept: Dataset, name: str) -> None:
    """They are below a cache, and run over stored rows: those of a part of their pipeline."""
    made = KEEPING[name](Dataset(kept._node.inputs[0], kept._settings))
    ds = made.cache(tier="disk").batch(4).with_options(executor="sync")
    assert "begins above" in str(ds.cache_status())
    KEPT.clear()
    for batch in ds:
        seen = [array.copy() for array in KEPT]
        batch["image"][:] = 255
        assert all(map(np.array_equal, KEPT, seen))
    assert len(KEPT) > 0


@pytest.mark.parametrize("name", KEEPING)
def test_functions_between_two_caches_may_keep_what_they_saw(kept: Dataset, name: str) -> None:
    ds = KEEPING[name](kept).cache(tier="disk").batch(4).with_options(executor="sync")
    KEPT.clear()
    for batch in ds:
        seen = [array.copy() for array in KEPT]
        batch["image"][:] = 255
        assert all(map(np.array_equal, KEPT, seen))
    assert len(KEPT) > 0


ODD = np.array([0xFFC00001, 0x7FC00002, 0x7FC00000], np.uint32).view(np.float32)


@pytest.mark.parametrize("nan", [False, True])
def test_floats_are_delivered_as_ever(tmp_path: Path, nan: bool) -> None:
    pq.write_table(pa.table({"x": np.arange(24)}), tmp_path / "x.parquet", row_group_size=8)

    def odd(row: dict[str, Any]) -> dict[str, Any]:
        made = np.full((16, 64), row["x"], np.float32)
        if nan and row["x"] > 16:
            made[:3, 0] = ODD
        return {"image": made, "half": row["x"] / 2 if row["x"] % 5 else None}

    ds = dml.read_parquet(tmp_path / "x.parquet").map(odd, fingerprint=f"odd {nan}")
    plain = list(ds.batch(4))
    kept = ds.cache(tier="disk").with_options(cache_dir=str(tmp_path / "kept")).batch(4)
    for _ in range(3):
        for got, want in zip(kept, plain, strict=True):
            for name in want:
                bits = f"u{want[name].itemsize}"
                assert (got[name].view(bits) == want[name].view(bits)).all()
            got["image"][:] = np.nan
    images = [batch["image"] for batch in kept]
    assert all(map(lies_there, images[:4])), "no pass over memory, and no copy"


@pytest.mark.parametrize("shown", ["lists", "exploded", "ragged", "a field"])
def test_floats_in_lists_are_delivered_as_ever(tmp_path: Path, shown: str) -> None:
    flat = pa.array(np.concatenate([ODD, np.arange(9)]).astype(np.float32))
    lists = pa.ListArray.from_arrays(pa.array([0, 3, 6, 9, 12], pa.int32()), flat)
    fields = pa.StructArray.from_arrays([flat[:4]], ["f"])
    table = pa.table({"x": np.arange(4.0), "l": lists, "s": fields})
    pq.write_table(table, tmp_path / "l.parquet")
    asked: dict[str, Pipeline] = {
        "lists": lambda ds: ds.select("x", "l").batch(2),
        "exploded": lambda ds: ds.select("x", "l").explode("l").batch(2),
        "ragged": lambda ds: ds.select("x", "l").ragged_batch(2),
        "a field": lambda ds: ds.select("x", l=col("s").struct.field("f")).batch(2),
    }
    ds = dml.read_parquet(tmp_path / "l.parquet")
    plain = [bits_of(batch["l"]) for batch in asked[shown](ds)]
    kept = ds.cache(tier="disk").with_options(cache_dir=str(tmp_path / "kept"))
    for _ in range(3):
        assert [bits_of(batch["l"]) for batch in asked[shown](kept)] == plain


def bits_of(floats: np.ndarray) -> list[list[int]]:
    """The bits of an array, or of each of the arrays in it."""
    every = floats if floats.dtype == object else [floats]
    return [each.view("u4").tolist() for each in every]


def test_a_part_that_is_gone_is_nobodys_own(kept: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops that have it open read the same memory: what one of them does, no other sees."""
    monkeypatch.setattr(disk_cache, "PART_BYTES", 8 << 10)
    before = {*disk_cache.SHELVES}  # of other tests, that are not forgotten yet
    ds = Dataset(kept._node.inputs[0], kept._settings).shuffle(buffer_size=20, seed=2).batch(4)
    ds = ds.cache(tier="disk").with_options(executor="sync")
    plain = [batch["image"].copy() for batch in ds]
    ahead, *others = (iter(ds) for _ in range(3))
    for each in (ahead, *others):
        next(each)
    (shelf,) = (each for key, each in disk_cache.SHELVES.items() if key not in before)
    there = {*shelf.open}
    read = 1 + sum(1 for _ in iter(lambda: next(ahead) and {*shelf.open} == there, False))
    assert read < len(plain) - 1
    shelf.entry.store.remove(shelf.entry.fingerprint)
    for want in plain[1 : read + 1]:
        for each in others:
            got = next(each)["image"]
            assert (got == want).all()
            got[:] = 7


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count(".arrow")


def test_batches_hold_no_files_and_let_go_of_mappings(kept: Dataset) -> None:
    before = mappings()
    held = [batch for _ in range(5) for batch in kept.batch(4)]
    assert mappings() - before >= ROWS // EACH
    assert not [each for each in os.listdir("/proc/self/fd") if _is_blob(each)]
    del held
    gc.collect()
    assert mappings() <= before


def _is_blob(handle: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{handle}").endswith(".arrow")
    except OSError:
        return False


def test_without_room_for_mappings_parts_are_read(
    kept: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError("no mapping is left")

    monkeypatch.setattr(mapped_blob, "mapping", refused)
    for at, batch in enumerate(kept.batch(4)):
        assert (batch["image"] == wanted(at * 4, 4)).all()
        assert batch["image"].flags.writeable
