"""Test how the content of files is identified, between processes and machines."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dml.errors import SourceError
from dml.io.files import file_content
from dml.io.files.file_content import revisions, state, unchanged_since_ns
from dml.io.parquet.parquet import read_parquet
from tests.io.counted_store import CountedStore, counted, noted, pauses, uploaded

__all__ = ["counted", "pauses"]

PAST = 1_000_000_000


def aged(path: Path, moment: int = PAST) -> Path:
    os.utime(path, ns=(moment, moment))
    return path


def test_small_files_are_told_apart_by_all_their_bytes(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "elsewhere"
    path.write_bytes(b"one")
    other.write_bytes(b"one")
    assert revisions([str(path)]) == revisions([str(aged(other))]), "wherever, whenever written"
    before = revisions([str(aged(path))])
    path.write_bytes(b"two")
    assert revisions([str(aged(path))]) != before


def test_large_files_are_read_at_their_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_content, "HASHED_BYTES", 100)
    monkeypatch.setattr(file_content, "EDGE_BYTES", 10)
    monkeypatch.setattr(file_content, "settled_state", file_content.state)
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(bytes(200))
    other.write_bytes(bytes(200))
    first = revisions([str(aged(path))])
    assert first == revisions([str(aged(other))]), "the same data, mounted elsewhere"
    for place, moment in ((0, PAST), (199, PAST), (100, PAST + 1)):
        data = bytearray(200)
        data[place] = 1
        path.write_bytes(bytes(data))
        assert revisions([str(aged(path, moment))]) != first
    path.write_bytes(bytes(201))
    assert revisions([str(aged(path))]) != first


def test_large_files_that_are_young_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_content, "HASHED_BYTES", 100)
    path = tmp_path / "a"
    path.write_bytes(bytes(1 << 18))
    stamp = path.stat().st_mtime_ns
    before = revisions([str(path)])
    data = bytearray(1 << 18)
    data[1 << 17] = 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stamp, stamp))
    assert revisions([str(path)]) != before, "within the clock's resolution, in the middle"


def test_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        revisions([str(tmp_path / "gone")])


def test_files_of_a_store_are_told_apart_without_reading_them(
    tmp_path: Path, counted: type[CountedStore]
) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "data" / "a.parquet")
    url = uploaded(tmp_path / "data", "counted://bucket/data")
    files = [file.remote for file in read_parquet(url).files.files if file.remote]
    versions = [[replace(file, version=v, certain=True) for file in files] for v in "112"]
    with noted(counted) as asked:
        first, again, other = map(revisions, versions)
    assert first == again != other
    assert not asked, "no bytes were asked for"
    with noted(counted) as asked:
        assert revisions([replace(files[0], certain=False)])
    assert asked, "what does not say its version is read"


def test_what_changes_after_a_file_was_named_says_that_time_or_a_later_one(tmp_path: Path) -> None:
    """The clock of files is behind others: a new file may say the same time as its name."""
    file = tmp_path / "x"
    for number in range(200):
        file.write_bytes(b"%d" % number)
        before = state(str(file))[-1]
        named_ns = unchanged_since_ns()
        file.write_bytes(b"%d" % number)
        assert before < named_ns <= state(str(file))[-1]


def test_a_file_of_a_clock_that_is_ahead_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not kept under a name, since it may have changed since."""
    later = time.time_ns() + 10**12
    monkeypatch.setattr(file_content, "_newest", [later])
    assert unchanged_since_ns() < later
