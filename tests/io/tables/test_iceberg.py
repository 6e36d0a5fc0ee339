"""Test Iceberg tables: snapshots, evolved schemas, deleted rows."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dml
from dml.errors import PlanError, SourceError
from dml.io.source import Source
from dml.io.tables.iceberg import read_iceberg
from dml.io.user.user_source import read_datasource
from dml.testing.source_laws import check_same_data, check_source

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")  # the catalog that needs no server
catalogs = pytest.importorskip("pyiceberg.catalog.sql")
types = pytest.importorskip("pyiceberg.types")


def rows(start: int, stop: int) -> pa.Table:
    values = range(start, stop)
    texts = [str(i) if i % 3 else None for i in values]
    return pa.table({"a": pa.array(values, pa.int64()), "s": pa.array(texts, pa.string())})


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Two appends of 5 and 7 rows."""
    place = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    catalog = catalogs.SqlCatalog("tests", **place)
    catalog.create_namespace("n")
    made = catalog.create_table("n.t", schema=rows(0, 1).schema)
    made.append(rows(0, 5))
    made.append(rows(5, 12))
    yield made
    catalog.close()


def source_of(table: Any, snapshot: int | None = None) -> Source:
    return read_datasource(read_iceberg(table, snapshot, ""), b"n", atom_rows=3)


def values(ds: dml.Dataset) -> list[int]:
    return sorted(row["a"] for row in ds)


@pytest.mark.law
def test_a_table_keeps_all_laws(table: Any) -> None:
    tasks = sorted(table.scan().plan_files(), key=lambda task: task.file.file_path)
    parts = [rows(0, 5) if task.file.record_count == 5 else rows(5, 12) for task in tasks]
    source = source_of(table)
    check_source(source, pa.concat_tables(parts))
    assert source.row_count == 12
    check_same_data(source, pickle.loads(pickle.dumps(source)))


@pytest.mark.law
def test_a_snapshot_is_pinned(table: Any) -> None:
    latest, first = dml.read_iceberg(table), table.history()[0].snapshot_id
    table.append(rows(12, 14))
    assert values(latest) == list(range(12))
    assert values(dml.read_iceberg(table, snapshot=first)) == list(range(5))
    assert values(dml.read_iceberg(table)) == list(range(14))
    names = {dml.read_iceberg(table, snapshot=n).fingerprint() for n in (None, first)}
    assert len(names | {latest.fingerprint()}) == 3


@pytest.mark.law
def test_a_schema_that_grew_is_that_of_the_snapshot(table: Any) -> None:
    before = table.current_snapshot().snapshot_id
    with table.update_schema() as update:
        update.add_column("b", types.LongType())
    table.append(rows(12, 13).append_column("b", pa.array([9])))
    found = {row["a"]: row["b"] for row in dml.read_iceberg(table)}
    assert found == {**dict.fromkeys(range(12)), 12: 9}
    assert dml.read_iceberg(table, snapshot=before).columns == ["a", "s"]
    assert [row["b"] for row in dml.read_iceberg(table).select("b")].count(9) == 1


@pytest.mark.law
def test_deleted_rows_are_gone(table: Any) -> None:
    table.delete("a = 7")
    assert values(dml.read_iceberg(table)) == [*range(7), *range(8, 12)]


def test_a_table_without_a_snapshot_has_no_rows(table: Any) -> None:
    empty = table.catalog.create_table("n.empty", schema=rows(0, 1).schema)
    assert dml.read_iceberg(empty).count() == 0


def test_what_is_not_there_is_refused(table: Any) -> None:
    with pytest.raises(SourceError, match="the table has no snapshot 17"):
        dml.read_iceberg(table, snapshot=17)
    with pytest.raises(SourceError, match="read_iceberg needs a table, got 3"):
        dml.read_iceberg(3)
    with pytest.raises(SourceError, match=r"has no table 'n\.t'"):
        dml.read_iceberg("n.t", catalog="nowhere")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(PlanError, match="read_iceberg needs the library") as caught:
        dml.read_iceberg("n.t")
    assert "dml[iceberg]" in caught.value.try_
