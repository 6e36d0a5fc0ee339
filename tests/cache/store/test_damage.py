"""Damage every file of a store: rows are read exactly or recomputed, never wrong."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dml.cache.parts.parts import PartSource, PartStore
from dml.cache.store.disk import Disk
from tests.cache.store.fills import FOUND, FP, find, get, made

PARTS = 2


def loaded(*_: object, **__: object) -> None:
    raise AssertionError("a pickle was loaded")


class Trap:
    """What does harm to whoever unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return loaded, ()


def rows(part: int) -> pa.Table:
    return pa.table({"x": pa.array(range(part, part + 40), "i4"), "s": [f"w{part}"] * 40})


def filled(root: Path) -> PartStore:
    store = PartStore(Disk(root, "v1/shared"))
    for part in range(PARTS):
        get(store, FP, part, lambda part=part: rows(part))  # type: ignore[misc]
    return store


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    filled(root)
    return root


def files(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


def asked(root: Path) -> tuple[int, int]:
    """Ask for every part as a new process would; how many were made again, and found later."""
    made = 0
    store = PartStore(Disk(root, "v1/shared"), ttl_s=0.2)
    for part in range(PARTS):
        got = get(store, FP, part, lambda part=part: rows(part))  # type: ignore[misc]
        assert got.table.equals(rows(part)), "wrong rows"
        assert got.source in (FOUND, PartSource.MADE)
        made += got.source is PartSource.MADE
    again = PartStore(Disk(root, "v1/shared"))
    return made, sum(find(again, FP, part) == rows(part) for part in range(PARTS))


def damaged(root: Path, tmp_path: Path, name: Path, change: Callable[[bytes], bytes]) -> None:
    """A copy of a store with one file changed, asked for all parts."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    before = (root / name).read_bytes()
    (copy / name).write_bytes(change(before))
    made, found = asked(copy)
    assert made == 1
    assert found == PARTS


@pytest.mark.law
def test_flipped_bits_of_every_file(
    whole_store: Path, tmp_path: Path, sampled: Callable[[Iterable[int], int], list[int]]
) -> None:
    for name in files(whole_store):
        for bit in sampled(range(8 * (whole_store / name).stat().st_size), 20):
            damaged(whole_store, tmp_path, name, lambda data, bit=bit: _flipped(data, bit))  # type: ignore[misc]


@pytest.mark.law
def test_every_file_cut_short(
    whole_store: Path, tmp_path: Path, sampled: Callable[[Iterable[int], int], list[int]]
) -> None:
    for name in files(whole_store):
        for size in {0, *sampled(range((whole_store / name).stat().st_size), 8)}:
            damaged(whole_store, tmp_path, name, lambda data, size=size: data[:size])  # type: ignore[misc]
            damaged(
                whole_store, tmp_path, name,
                lambda data, size=size: data[:size] + bytes(len(data) - size) + b"\0",  # type: ignore[misc]
            )  # fmt: skip


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_file_gone(whole_store: Path, tmp_path: Path) -> None:
    for number, name in enumerate(files(whole_store)):
        copy = Path(shutil.copytree(whole_store, tmp_path / str(number)))
        (copy / name).unlink()
        assert asked(copy)[1] == PARTS


def test_wrong_rows_under_the_right_name(whole_store: Path, tmp_path: Path) -> None:
    """Blobs of the two parts, which are as long, put in each other's place."""
    copy = Path(shutil.copytree(whole_store, tmp_path / "copy"))
    first, second = sorted((copy / "v1/shared/blobs").iterdir())
    assert first.stat().st_size == second.stat().st_size
    first.rename(copy / "aside")
    second.rename(first)
    (copy / "aside").rename(second)
    assert asked(copy) == (2, 2)


def test_damage_is_noticed_by_who_has_checked_the_file_before(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert find(store, FP, 0) == rows(0)
    for blob in (tmp_path / "v1/shared/blobs").iterdir():
        data = bytearray(blob.read_bytes())
        data[len(data) // 2] ^= 1
        fresh = blob.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.rename(blob)
    assert find(store, FP, 0) is None
    assert get(store, FP, 0, lambda: rows(0)).source is PartSource.MADE


def test_no_pickle_is_ever_loaded(
    whole_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = pickle.dumps(Trap())
    for which in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, which, loaded)
    for number, name in enumerate(files(whole_store)):
        copy = Path(shutil.copytree(whole_store, tmp_path / str(number)))
        (copy / name).write_bytes(trap)
        assert asked(copy)[1] == PARTS


def test_records_that_point_elsewhere_are_not_followed(tmp_path: Path) -> None:
    from dml.cache.parts.records import checked, unchecked

    filled(tmp_path)
    secret = tmp_path / "v1/other/blobs/mine.arrow"
    secret.parent.mkdir(parents=True)
    blob = next((tmp_path / "v1/shared/blobs").iterdir())
    shutil.copy(blob, secret)
    for record in (tmp_path / "v1/shared/e").rglob("part.*.json"):
        body = unchecked(record.read_bytes())
        assert isinstance(body, dict)
        record.write_bytes(checked({**body, "blob": "blobs/../../other/blobs/mine.arrow"}))
    assert asked(tmp_path) == (2, 2)
    assert secret.exists(), "it was cleared away"


def test_garbage_beside_what_counts(tmp_path: Path) -> None:
    filled(tmp_path)
    r, entry = random.Random(5), next((tmp_path / "v1/shared/e/ab").iterdir())
    for name in (
        "0/part.0.json",
        "0/lease.x",
        "0/.nfs0001",
        "part.0.0.json",
        "TOMB.",
        "0/deep/a/b",
    ):
        path = entry / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(r.randbytes(30))
    (tmp_path / "v1/shared/blobs/x").write_bytes(b"")
    assert asked(tmp_path) == (0, 2)


def test_arrow_alone_would_not_notice(whole_store: Path) -> None:
    """Why every blob is hashed: most flips of its rows read as other rows."""
    blob = next((whole_store / "v1/shared/blobs").iterdir()).read_bytes()
    at = blob.index(pa.array(range(40), "i4").buffers()[1].to_pybytes()[4:40])
    table = pa.ipc.open_file(pa.py_buffer(_flipped(blob, 8 * at))).read_all()
    table.validate(full=True)
    assert table.num_rows == 40
    assert json.dumps(table["x"].to_pylist()) != json.dumps(rows(0)["x"].to_pylist())


@pytest.mark.parametrize("wide", [False, True])
def test_offsets_that_lead_beside_a_blob_are_damage(tmp_path: Path, wide: bool) -> None:
    """Whoever may write to a store says what digest its blobs have."""
    from dml.cache.parts import blob_digest
    from dml.cache.parts.records import checked, unchecked

    columns: dict[str, Any] = {"s": pa.array(["abcdef"] * 10)}
    if wide:
        kind = pa.fixed_shape_tensor(pa.uint8(), (2048,))
        flat = pa.FixedSizeListArray.from_arrays(pa.array(bytes(20_480), pa.uint8()), 2048)
        columns["image"] = pa.ExtensionArray.from_storage(kind, flat)
    made(PartStore(Disk(tmp_path, "v1/any")), [pa.record_batch(columns)])
    blob, record = next(tmp_path.rglob("blobs/*")), next(tmp_path.rglob("part.*.json"))
    found = bytearray(blob.read_bytes())
    last = found.find(np.arange(0, 66, 6, dtype=np.int32).tobytes()) + 40
    found[last : last + 4] = np.int32(5000).tobytes()
    blob.write_bytes(found)
    body = unchecked(record.read_bytes())
    assert isinstance(body, dict)
    digest = blob_digest.digest(blob_digest.of_piece(found))
    assert body["digest"] != digest
    record.write_bytes(checked({**body, "digest": digest}))
    store = PartStore(Disk(tmp_path, "v1/any"))
    assert store.part(FP, 0) is None
    assert store.blobs.checked == 1, "its bytes are those that the record tells of"
