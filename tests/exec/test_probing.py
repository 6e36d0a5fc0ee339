"""Tests of how long a store takes, as it was measured there."""

from __future__ import annotations

from pathlib import Path

from dml.exec.probing import measured


def test_a_store_that_cannot_be_measured_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in ("s3://bucket/kept", str(tmp_path / "file")):
        read, write = measured(root, "here")
        assert len(read) == len(write) > 1
    read, _ = measured(str(tmp_path / "store"), "here")
    assert measured(str(tmp_path / "store"), "here")[0] == read, "measured once"
    assert [each.name for each in (tmp_path / "store" / "v1").iterdir()] == ["calib.json"]
    for damaged in ("", "[]", '{"here": {"at": 0}}', '{"here": {"at": 1e99, "read": [[1]]}}'):
        (tmp_path / "store" / "v1" / "calib.json").write_text(damaged)
        assert len(measured(str(tmp_path / "store"), "here")[0]) > 1
