"""Test Lance datasets: versions, deletions, rows at any positions."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.errors import PlanError, SourceError
from dml.io.tables.lance import Lance
from dml.io.user.user_source import GivenRows, read_datasource
from dml.testing.source_laws import check_same_data, check_source

lance = pytest.importorskip("lance")


def table(rows: int, start: int = 0) -> pa.Table:
    values = range(start, start + rows)
    vectors = pa.array([[float(i), 0.5] for i in values], pa.list_(pa.float32(), 2))
    return pa.table({"a": values, "s": [str(i) if i % 3 else None for i in values], "v": vectors})


def written(folder: Path, rows: int, **options: Any) -> str:
    lance.write_dataset(table(rows), str(folder), max_rows_per_file=5, **options)
    return str(folder)


def source_of(path: str, version: int | None = None) -> GivenRows:
    source = read_datasource(Lance(path, version, None), b"n", atom_rows=3)
    assert isinstance(source, GivenRows)
    return source


@pytest.mark.law
@given(st.integers(1, 17), st.sets(st.integers(0, 16)))
@settings(max_examples=12)
def test_datasets_keep_all_laws(
    tmp_path_factory: pytest.TempPathFactory, rows: int, deleted: set[int]
) -> None:
    path = written(tmp_path_factory.mktemp("lance") / "t", rows)
    if deleted & set(range(rows)) and len(deleted) < rows:
        lance.dataset(path).delete(f"a in ({', '.join(map(str, deleted))})")
    check_source(source_of(path), lance.dataset(path).to_table())


@pytest.mark.law
def test_a_version_is_pinned(tmp_path: Path) -> None:
    path = written(tmp_path / "t", 7)
    first = dml.read_lance(path)
    lance.write_dataset(table(3, start=7), path, mode="append")
    lance.dataset(path).delete("a = 2")
    assert [row["a"] for row in first] == list(range(7))
    assert [row["a"] for row in dml.read_lance(path, version=2)] == list(range(10))
    assert [row["a"] for row in dml.read_lance(path)] == [0, 1, *range(3, 10)]
    names = {dml.read_lance(path, version=n).fingerprint() for n in (1, 2, 3)}
    assert len(names) == 3
    assert first.fingerprint() in names


def test_a_shuffle_reads_in_its_order(tmp_path: Path) -> None:
    ds = dml.read_lance(written(tmp_path / "t", 17)).shuffle(seed=1)
    assert "in the order of ShuffleAll" in ds.explain("physical")
    assert sorted(row["a"] for row in ds) == list(range(17))


def test_another_process_opens_the_same_version(tmp_path: Path) -> None:
    path = written(tmp_path / "t", 7)
    source = source_of(path)
    lance.write_dataset(table(3, start=7), path, mode="append")
    check_same_data(source, pickle.loads(pickle.dumps(source)))


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read as a Lance dataset"):
        dml.read_lance(tmp_path / "none")
    with pytest.raises(SourceError, match="cannot be read as a Lance dataset"):
        dml.read_lance(written(tmp_path / "t", 3), version=9)


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(PlanError, match="read_lance needs the library lance") as caught:
        dml.read_lance(tmp_path)
    assert "dml[lance]" in caught.value.try_
