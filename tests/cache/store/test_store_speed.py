"""Test the measured read and write times of a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dml
from dml.cache.store.store_speed import COLD_SIZES, measured, measured_cold


def test_a_store_that_cannot_be_measured_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in ("s3://bucket/kept", str(tmp_path / "file")):
        read, write = measured(root, "here")
        assert len(read) == len(write) > 1
    read, _ = measured(str(tmp_path / "store"), "here")
    assert measured(str(tmp_path / "store"), "here")[0] == read, "measured once"
    assert [each.name for each in (tmp_path / "store" / "v1").iterdir()] == ["calib.json"]
    deep = "[" * 100_000
    for damaged in ("", "[]", deep, '{"here": {"at": 0}}', '{"here": {"at": 1e99, "read": [[1]]}}'):
        (tmp_path / "store" / "v1" / "calib.json").write_text(damaged)
        assert len(measured(str(tmp_path / "store"), "here")[0]) > 1


def test_what_is_in_no_memory_is_measured_beside_what_it_is_compared_with(tmp_path: Path) -> None:
    near, far = str(tmp_path / "near"), str(tmp_path / "far")
    read, write = measured_cold(far, near)
    assert [size for size, _ in read] == [size for size, _ in write] == [*map(float, COLD_SIZES)]
    assert measured_cold(far, near) == (read, write), "measured once"
    assert measured_cold(near, near)[0] != read
    assert [each.name for each in (tmp_path / "near" / "v1").iterdir()] == ["calib.json"]
    assert not [*(tmp_path / "far" / "v1").iterdir()]


@pytest.mark.parametrize("by", ["gc", "measuring"])
def test_what_a_process_left_that_died_while_it_measured_goes(by: str, tmp_path: Path) -> None:
    for name in ("probe-old", "probe-new"):
        (tmp_path / "v1" / name / "v1").mkdir(parents=True)
        (tmp_path / "v1" / name / "v1" / "blob").write_bytes(b"rows")
    os.utime(tmp_path / "v1" / "probe-old", (1.0, 1.0))
    if by == "gc":
        dml.Catalog(tmp_path).gc()
    else:
        measured(str(tmp_path), "here")
    left = {each.name for each in (tmp_path / "v1").iterdir()}
    assert "probe-old" not in left
    assert "probe-new" in left, "somebody may measure just now"
