"""Test that Parquet is read completely, in order, in atoms that depend on the data alone."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dml
from dml.data.block import Block
from dml.data.schema import tensor
from dml.errors import PlanError, SchemaError, SourceError
from dml.io.files import file_content
from dml.io.parquet.parquet import exactly, read_parquet
from dml.testing.source_laws import (
    blocks,
    check_other_process,
    check_same_data,
    check_source,
    everything,
    id_pairs,
)
from tests.idle import descriptors

ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(width=32),
        "s": st.none() | st.text(max_size=4),
        "b": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
        "d": st.none() | st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text(max_size=2)}),
    }
)
SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "f": pa.float32(),
        "s": pa.string(),
        "b": pa.bool_(),
        "l": pa.list_(pa.field("element", pa.int16())),
        "d": pa.struct({"a": pa.int8(), "b": pa.string()}),
    }
)


def write(path: Path, *groups: list[dict[str, Any]], **options: Any) -> pa.Table:
    """Write row groups of these rows, empty ones too; returns all rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = [pa.Table.from_pylist(rows, SCHEMA) for rows in groups]
    with pq.ParquetWriter(path, SCHEMA, **options) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    return pa.concat_tables([SCHEMA.empty_table(), *tables])


def numbers(path: Path, n: int, **options: Any) -> pa.Table:
    """A small file with one column of numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"x": pa.array(range(n), pa.int32())})
    pq.write_table(table, path, **options)
    return table


@pytest.mark.law
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.lists(ROWS, max_size=7), max_size=4), min_size=1, max_size=3),
    st.integers(1, 9),
    st.sampled_from([{}, {"use_dictionary": False}, {"data_page_size": 8, "write_batch_size": 2}]),
)
def test_the_laws_hold_for_any_row_groups(
    tmp_path: Path,
    files: list[list[list[dict[str, Any]]]],
    atom_rows: int,
    options: dict[str, Any],
) -> None:
    folder = tmp_path / "data"
    shutil.rmtree(folder, ignore_errors=True)
    tables = [
        write(folder / f"part-{i}.parquet", *groups, **options) for i, groups in enumerate(files)
    ]
    source = read_parquet(folder, atom_rows=atom_rows)
    check_source(source, pa.concat_tables(tables))
    check_source(read_parquet(folder), pa.concat_tables(tables))


@pytest.mark.law
def test_other_types_pass_through(tmp_path: Path) -> None:
    matrix = pa.FixedShapeTensorArray.from_numpy_ndarray(
        np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    )
    table = pa.table(
        {
            "t": matrix,
            "when": pa.array([dt.datetime(2020, 1, 1), None, None], pa.timestamp("us", "UTC")),
            "coded": pa.array(["a", None, "a"]).dictionary_encode(),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int8())),
            "deep": [[{"a": [1]}], None, []],
            "a.b": [1, 2, 3],
            "a": [{"b": 1}, {"b": 2}, None],
            "none": pa.nulls(3),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    source = read_parquet(tmp_path / "x.parquet", atom_rows=2)
    assert source.schema["t"] == tensor("f4", (2, 2))
    assert source.schema["coded"] == pa.string()
    stored = pq.read_table(tmp_path / "x.parquet")
    check_source(source, stored)
    assert everything(source, ["a.b"]).to_arrow()["a.b"].to_pylist() == [1, 2, 3]


@pytest.mark.law
def test_atoms_are_equal_and_hold_8_mib(tmp_path: Path) -> None:
    wide = {f"c{i}": np.zeros(30_000) for i in range(100)}
    pq.write_table(pa.table(wide), tmp_path / "wide.parquet", row_group_size=25_000)
    source = read_parquet(tmp_path / "wide.parquet")
    shapes = [(source.unit(i).rows, source.unit(i).atom_rows) for i in range(2)]
    assert shapes == [(25_000, 8_334), (5_000, 5_000)]
    narrow = read_parquet(tmp_path / "wide.parquet", columns=["c0"])
    assert [(u.rows, u.atom_rows) for u in map(narrow.unit, range(2))] == shapes
    numbers(tmp_path / "long.parquet", 65_537)
    assert read_parquet(tmp_path / "long.parquet").unit(0).atom_rows == 32_769


@pytest.mark.law
def test_names_and_ids_do_not_depend_on_the_place(tmp_path: Path) -> None:
    for name in ("a/1.parquet", "a/2.parquet", "b/1.parquet"):
        numbers(tmp_path / "here" / name, 5, row_group_size=2)
    here = read_parquet(tmp_path / "here")
    assert [f.name for f in here.files.files] == ["a/1.parquet", "a/2.parquet", "b/1.parquet"]
    shutil.copytree(tmp_path / "here", tmp_path / "else" / "where")
    check_same_data(here, read_parquet(tmp_path / "else" / "where"))
    check_same_data(here, read_parquet(str(tmp_path / "here" / "*" / "*.parquet")))
    listed = [tmp_path / "here" / "b" / "1.parquet", tmp_path / "here" / "a"]
    check_same_data(here, read_parquet(listed))
    check_other_process(
        here,
        "from dml.io.parquet.parquet import read_parquet\n"
        f"source = read_parquet({str(tmp_path / 'here')!r})",
    )
    numbers(tmp_path / "here" / "c.parquet", 1)
    more = read_parquet(tmp_path / "here")
    assert more.digest != here.digest
    assert np.array_equal(id_pairs(everything(more))[:15], id_pairs(everything(here)))


def test_what_a_folder_means(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.pq", "_temporary/x.parquet", ".hidden.parquet", "n/c.parq"):
        numbers(tmp_path / name, 1)
    (tmp_path / "README").write_text("words")
    (tmp_path / "n" / "round").symlink_to(tmp_path)
    files = read_parquet(tmp_path).files.files
    assert [f.name for f in files] == ["a.pq", "b.parquet", "n/c.parq"]


def test_columns_are_selected_and_ordered(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", [{"i": 1, "s": "a"}])
    source = read_parquet(tmp_path / "x.parquet", columns=["s", "i"])
    assert everything(source).to_arrow().to_pydict() == {"s": ["a"], "i": [1]}
    check_source(source, pa.table({"s": ["a"], "i": [1]}))
    with pytest.raises(SchemaError, match="read_parquet needs column 'j'"):
        read_parquet(tmp_path / "x.parquet", columns=["j"])
    with pytest.raises(PlanError, match="atom_rows"):
        read_parquet(tmp_path / "x.parquet", atom_rows=0)


def test_identity_follows_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    numbers(path, 3)
    first = read_parquet(path).identity()
    numbers(path, 3)
    assert read_parquet(path).identity() == first
    pq.write_table(pa.table({"x": pa.array([0, 1, 7], pa.int32())}), path)
    assert read_parquet(path).identity() != first


def test_content_is_read_again_when_the_file_may_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one")
    monkeypatch.setattr(file_content, "SETTLED_NS", -(10**12))
    reads: list[str] = []
    hashed = file_content._hashed

    def counted(name: str) -> bytes:
        reads.append(name)
        return hashed(name)

    monkeypatch.setattr(file_content, "_hashed", counted)
    first = file_content.content(str(path))
    assert file_content.content(str(path)) == first
    assert len(reads) == 1
    stamp = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert file_content.content(str(path)) != first  # same size and mtime: ctime tells
    assert len(file_content.contents([str(path)] * 3)) == 3


def test_fresh_files_are_never_remembered(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one")
    file_content.content(str(path))
    assert file_content.state(str(path)) not in file_content._known


def test_a_young_file_has_one_name_for_a_process_however_old_it_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # names by state would find nothing that was kept while the file was too young for them
    monkeypatch.setattr(file_content, "SETTLED_NS", 10**18)
    old, young = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for path in (old, young):
        pq.write_table(pa.table({"x": [1, 2]}), path)
    source = read_parquet([old, young])
    first = source.opened()
    monkeypatch.setattr(file_content, "SETTLED_NS", -(10**18))
    assert source.opened() == first
    stamp = young.stat()
    pq.write_table(pa.table({"x": [1, 3]}), young)
    os.utime(young, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert read_parquet([old, young]).opened() != first


def test_only_files_that_are_young_are_read_to_tell_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{name}.parquet" for name in "ab"]
    for path in paths:
        pq.write_table(pa.table({"x": [1, 2]}), path)
    source = read_parquet(paths)
    asked: list[str] = []

    def seen(path: str) -> bytes:
        asked.append(path)
        return b""

    monkeypatch.setattr(file_content, "_hashed", seen)
    monkeypatch.setattr(file_content, "_young", {file_content.state(str(paths[1]))[:2]})
    monkeypatch.setattr(file_content, "SETTLED_NS", -(10**18))
    source.opened()
    assert asked == [str(paths[1])]


@given(st.lists(st.integers(0, 7), max_size=8), st.integers(1, 6))
def test_batches_are_cut_again_exactly(sizes: list[int], rows: int) -> None:
    total = sum(sizes)
    ends = np.cumsum(sizes)
    batches = [
        pa.record_batch({"x": np.arange(end - size, end)})
        for size, end in zip(sizes, ends, strict=True)
    ]
    held, got = list[pa.RecordBatch](), list[pa.RecordBatch]()
    for batch in batches:
        held.append(batch)
        got += exactly(held, rows)
    got += exactly(held, total % rows)
    assert sum(batch.num_rows for batch in held) == 0
    assert [b.num_rows for b in got] == [min(rows, total - i) for i in range(0, total, rows)]
    assert [x for b in got for x in b["x"].to_pylist()] == list(range(total))


def test_a_reader_that_is_dropped_closes_its_file(tmp_path: Path) -> None:
    numbers(tmp_path / "x.parquet", 10)
    source = read_parquet(tmp_path / "x.parquet", atom_rows=2)
    before = descriptors()
    reading = source.read(source.unit(0), ("x",))
    next(reading)
    assert len(descriptors() - before) == 1
    reading.close()  # type: ignore[attr-defined]
    assert not descriptors() - before


def test_shown_as_written(tmp_path: Path) -> None:
    numbers(tmp_path / "x.parquet", 1)
    path = str(tmp_path / "x.parquet")
    source = read_parquet(path, columns=["x"], atom_rows=2)
    assert source.title() == f"ParquetSource({path!r}, columns=['x'], atom_rows=2)"
    assert source.unit(0).place == "x.parquet, row group 0"
    assert len(blocks(source, source.unit(0))) == 1


def test_a_set_without_rows(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet")
    source = read_parquet(tmp_path)
    assert (source.row_count, source.unit_count, source.atom_count) == (0, 0, 0)
    check_source(source, SCHEMA.empty_table())


def test_a_file_in_place_of_another_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    numbers(path, 6)
    source = read_parquet(path, atom_rows=2)
    reading = source.read(source.unit(0), ("x",))
    next(reading)
    numbers(path, 600)
    with pytest.raises(SourceError, match="has changed since it was opened"):
        next(reading)
    with pytest.raises(SourceError, match="has changed since it was opened"):
        next(source.read(source.unit(0), ()))
    path.unlink()
    with pytest.raises(SourceError, match="does not exist"):
        next(source.read(source.unit(0), ("x",)))
    with pytest.raises(SourceError, match="cannot be read"):
        source.identity()


def test_travels_to_another_process_without_reading_footers_again(tmp_path: Path) -> None:
    table = numbers(tmp_path / "x.parquet", 10, row_group_size=4)
    source = pickle.loads(pickle.dumps(read_parquet(tmp_path, atom_rows=3)))
    check_source(source, table)
    check_same_data(source, read_parquet(tmp_path, atom_rows=3))


@pytest.mark.law
def test_no_dataset_and_no_pandas_are_imported() -> None:
    code = (
        "import sys, dml.io.parquet.parquet\n"
        "print({'pyarrow.dataset', 'pandas', 'numba', 'dask'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_nulls_of_a_leaf_are_not_those_of_its_struct(tmp_path: Path) -> None:
    kind = pa.struct({"a": pa.int64()})
    table = pa.table(
        {
            "s": pa.array([{"a": None}] * 3, kind),
            "n": pa.array([None, None, {"a": 1}], kind),
            "x": pa.array([None, 1, 2]),
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    ds = dml.read_parquet(str(tmp_path / "s.parquet")).with_options(telemetry_dir="off")
    assert ds.filter(~dml.col("s").is_null()).count() == 3
    assert ds.filter(dml.col("s").is_null()).count() == 0
    assert ds.filter(dml.col("n").is_null()).count() == 2
    source = read_parquet(str(tmp_path / "s.parquet"))
    assert (source.null_in("s"), source.null_in("n")) == ("", "")
    assert "1 of 3 rows" in source.null_in("x")


def test_a_damaged_row_group_gives_the_same_atoms_however_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    numbers(
        path, 9000, use_dictionary=False, compression="none", write_page_checksum=True,
        data_page_size=4000, write_batch_size=1000,
    )  # fmt: skip
    content = bytearray(path.read_bytes())
    content[24_000] ^= 1
    path.write_bytes(content)
    source = read_parquet(str(path), atom_rows=500)
    for at_once in (False, True):
        unit = dataclasses.replace(source.unit(0), at_once=at_once)
        for skipped in (0, 3):
            got: list[Block] = []
            with pytest.raises(SourceError, match="column 'x' of row group 0"):
                got.extend(source.read(unit, ("x",), skipped))
            assert [block.n for block in got] == [500] * (10 - skipped)
