"""Test rows found in other entries: after files were replaced, and within the memory limit."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.cache.parts.entry import StoredEntry
from dml.cache.rows.row_parts import StoredUnit
from dml.cache.store.disk import Disk
from dml.exec.tasks.task import Parked
from dml.io.source import Unit

ROWS, EACH = 80, 20


def written(path: Path, start: int = 0) -> Path:
    table = pa.table({"x": np.arange(start, start + ROWS)})
    pq.write_table(table, path, row_group_size=EACH, compression="none", use_dictionary=False)
    return path


def kept(ds: Dataset, folder: Path) -> list[dict[str, Any]]:
    options = {"cache_dir": str(folder / "kept"), "executor": "sync"}
    return list(ds.cache(tier="disk").with_options(**options))


def test_columns_of_what_replaces_a_file_are_not_kept_under_its_name(tmp_path: Path) -> None:
    """Computed beside those that were stored of the file as it was."""
    path, other = written(tmp_path / "x.parquet"), written(tmp_path / "other", 1000)
    before = tmp_path / "before"
    before.write_bytes(path.read_bytes())
    seen = path.stat()
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert other.stat().st_size == seen.st_size

    def replacing(x: int) -> int:
        if other.exists():
            other.replace(path)
        return x + 1

    replaces = dml.udf(return_dtype="int64", fingerprint="plus one")(replacing)

    def asked(*names: str) -> list[dict[str, Any]]:
        made = {"a": col("x") * 2, "b": replaces(col("x"))}
        ds = dml.read_parquet(path).with_columns(**{name: made[name] for name in names})
        return kept(ds.select(*names), tmp_path)

    wanted = [{"a": 2 * x, "b": x + 1} for x in range(ROWS)]
    assert asked("a") == [{"a": row["a"]} for row in wanted]
    assert asked("a", "b") != wanted, "else this test could not fail"
    before.replace(path)
    assert asked("a", "b") == wanted


def test_parts_that_lie_in_memory_share_the_room_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a bucket do; two of them are held at once where columns are put side by side."""
    ds = dml.read_parquet(written(tmp_path / "x.parquet"))
    ds = ds.with_columns(a=col("x") * 2, b=col("x") + 1)
    kept(ds.select("a"), tmp_path)
    kept(ds.select("b"), tmp_path)
    rooms, held = list[tuple[int, int]](), list[int]()
    found, hold = StoredUnit.find, Parked.hold

    def watched(entry: StoredEntry, unit: Unit, most_bytes: int) -> StoredUnit | None:
        got = found(entry, unit, most_bytes)
        if got is not None:
            rooms.append((most_bytes, got.loaded_bytes))
        return got

    def holding(self: Parked, nbytes: int) -> None:
        held.append(nbytes)
        hold(self, nbytes)

    monkeypatch.setattr(Disk, "maps", False)
    monkeypatch.setattr(StoredUnit, "find", staticmethod(watched))
    monkeypatch.setattr(Parked, "hold", holding)
    both = kept(ds.select("a", "b"), tmp_path)
    assert both == [{"a": 2 * x, "b": x + 1} for x in range(ROWS)]
    assert len(rooms) == 2 * ROWS // EACH
    for (room, nbytes), (left, _) in list(pairwise(rooms))[::2]:
        assert left == room - nbytes < room
    assert held == [nbytes for _, nbytes in rooms]
