"""Test that rows of several files in one unit, whose ids are not consecutive, are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml import col
from dml.io.binary import binary

Verbs = Callable[[dml.Dataset], dml.Dataset]
FILES = 30
VERBS: dict[str, Verbs] = {
    "as read": lambda ds: ds,
    "computed": lambda ds: ds.with_columns(n=col("path").str.len_chars()),
    "filtered": lambda ds: ds.filter(col("path") != "07"),
    "called": lambda ds: ds.map(_longer).filter(_odd),
}


def _longer(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "bytes": row["bytes"] * 2}


def _odd(row: dict[str, Any]) -> bool:
    return int(row["path"]) % 2 == 1


@pytest.mark.parametrize("executor", ["sync", "threads"])
@pytest.mark.parametrize("name", VERBS)
def test_a_folder_of_files_is_kept_and_not_read_again(
    tmp_path: Path, name: str, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    for number in range(FILES):
        (tmp_path / "files" / f"{number:02}").write_bytes(bytes([number]) * number)
    plain = VERBS[name](dml.read_binary_files(tmp_path / "files", atom_rows=8))
    options: dict[str, Any] = {"cache_dir": tmp_path / "kept", "verify": "off"}  # no samples again
    plain = plain.with_options(telemetry_dir="off", executor=executor, **options)
    cached = plain.cache(tier="disk")
    wanted = list(plain)
    assert list(cached) == wanted
    assert "keeps all 4 parts" in str(cached.cache_status())
    monkeypatch.setattr(binary, "_content", lambda _: pytest.fail("read again"))
    assert list(cached) == wanted
    assert [row["path"] for row in cached.shuffle(seed=1)] != [row["path"] for row in wanted]


def test_a_folder_of_small_arrays_is_kept(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    for number in range(5):
        np.save(tmp_path / "arrays" / f"{number}.npy", np.arange(3) + 10 * number)
    ds = dml.read_numpy(tmp_path / "arrays", atom_rows=4).cache(tier="disk")
    ds = ds.with_options(telemetry_dir="off", cache_dir=tmp_path / "kept")
    first = [row["item"] for row in ds]
    assert "keeps all" in str(ds.cache_status())
    assert [row["item"] for row in ds] == first
    assert sorted(first) == sorted(10 * n + i for n in range(5) for i in range(3))
