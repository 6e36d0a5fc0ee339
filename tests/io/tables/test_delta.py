"""Test Delta tables: versions, partitions, the transaction log, unsupported features."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.errors import PlanError, SourceError
from dml.io.source import Source
from dml.io.tables.delta import Delta
from dml.io.user.user_source import read_datasource
from dml.testing.source_laws import check_same_data, check_source

deltalake = pytest.importorskip("deltalake")

FIRST = pa.table({"a": [1, 2, 3], "p": ["x", "y", "x"], "s": ["q", None, "r"]})
SECOND = pa.table({"a": [4, 5], "p": ["z", None], "s": ["t", "u"]})


def written(folder: Path, *tables: pa.Table, **options: Any) -> str:
    for table in tables:
        deltalake.write_deltalake(str(folder), table, mode="append", **options)
    return str(folder)


def source_of(path: str, version: int | None = None) -> Source:
    return read_datasource(Delta(path, version, None), b"n", atom_rows=2)


def own(path: str, version: int | None = None) -> pa.Table:
    """What the library reads, in the order of file names, as dml has it."""
    table = deltalake.DeltaTable(path, version=version)
    found = {each.path: each for each in table.to_pyarrow_dataset().get_fragments()}
    schema = table.to_pyarrow_dataset().schema
    tables = [schema.empty_table()]
    tables += [found[path].to_table(schema=schema) for path in sorted(found)]
    whole = table.to_pyarrow_table()
    assert sorted(map(str, pa.concat_tables(tables).to_pylist())) == sorted(
        map(str, whole.to_pylist())
    )
    return pa.concat_tables(tables)


@pytest.mark.law
@given(st.lists(st.lists(st.tuples(st.integers(0, 99), st.sampled_from("xyz"))), max_size=3))
@settings(max_examples=12)
def test_tables_keep_all_laws(
    tmp_path_factory: pytest.TempPathFactory, writes: list[list[tuple[int, str]]]
) -> None:
    folder = tmp_path_factory.mktemp("delta")
    schema = pa.schema({"a": pa.int64(), "p": pa.string()})
    tables = [
        pa.table({"a": [a for a, _ in rows], "p": [p for _, p in rows]}, schema) for rows in writes
    ]
    empty = pa.Table.from_batches([], schema)
    path = written(folder / "t", empty, *tables, partition_by=["p"])
    source = source_of(path)
    check_source(source, own(path))
    assert source.row_count == sum(map(len, writes))


@pytest.mark.law
def test_a_version_is_pinned(tmp_path: Path) -> None:
    path = written(tmp_path / "t", FIRST, partition_by=["p"])
    first = dml.read_delta(path)
    written(tmp_path / "t", SECOND)
    deltalake.DeltaTable(path).delete("a = 1")
    assert sorted(row["a"] for row in first) == [1, 2, 3]
    assert sorted(row["a"] for row in dml.read_delta(path, version=1)) == [1, 2, 3, 4, 5]
    assert sorted(row["a"] for row in dml.read_delta(path)) == [2, 3, 4, 5]
    names = {dml.read_delta(path, version=n).fingerprint() for n in range(3)}
    assert len(names) == 3
    assert first.fingerprint() == dml.read_delta(path, version=0).fingerprint()


@pytest.mark.law
def test_partitions_are_columns(tmp_path: Path) -> None:
    odd = ["a b", "x/y", "ü", "%20", "k=v", "", "&?#"]
    third = pa.table({"a": range(6, 6 + len(odd)), "p": odd, "s": odd})
    path = written(tmp_path / "t", FIRST, SECOND, third, partition_by=["p"])
    check_source(source_of(path), own(path))
    rows = {row["a"]: row["p"] for row in dml.read_delta(path)}
    named = {i: value or None for i, value in enumerate(odd, 6)}  # Delta has no empty ones
    assert rows == {1: "x", 2: "y", 3: "x", 4: "z", 5: None, **named}
    assert [row["p"] for row in dml.read_delta(path).select("p").filter(dml.col("p") == "z")] == [
        "z"
    ]


@pytest.mark.law
def test_a_copy_has_the_same_name(tmp_path: Path) -> None:
    path = written(tmp_path / "one", FIRST, partition_by=["p"])
    shutil.copytree(path, tmp_path / "two")
    check_same_data(source_of(path), source_of(str(tmp_path / "two")))
    source = source_of(path)
    written(tmp_path / "one", SECOND)
    again = pickle.loads(pickle.dumps(source))
    check_same_data(source, again)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read as a Delta table"):
        dml.read_delta(tmp_path / "none")
    path = written(tmp_path / "t", FIRST)
    with pytest.raises(SourceError, match="cannot be read as a Delta table"):
        dml.read_delta(path, version=9)


def test_what_pyarrow_does_not_follow_is_refused(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "t", FIRST)
    log = tmp_path / "t/_delta_log/00000000000000000000.json"
    text = log.read_text()
    assert '"configuration":{}' in text
    mapping = '"configuration":{"delta.columnMapping.mode":"name"}'
    log.write_text(text.replace('"configuration":{}', mapping))
    with pytest.raises(SourceError, match="other names in its files"):
        dml.read_delta(path)


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(PlanError, match="read_delta needs the library deltalake") as caught:
        dml.read_delta(tmp_path)
    assert "dml[delta]" in caught.value.try_
