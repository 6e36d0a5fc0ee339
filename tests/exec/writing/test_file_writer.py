"""Test writes: files of bounded size that appear whole, or leave no trace."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, orc

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.errors import PlanError, SchemaError, UDFError
from dml.exec.writing import file_writer
from dml.exec.writing.file_writer import Written
from dml.testing import stream_hash
from tests.refusals import nothing_left, refused

OFF: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 2}


def numbers(rows: int = 1000) -> Dataset:
    return dml.range(rows, atom_rows=100).with_columns(y=col("id") * 0.5).with_options(**OFF)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def values() -> pa.Table:
    moment = dt.datetime(2024, 2, 29, 12, 30, 1, 5)
    columns = {
        "b": pa.array([True, None, False]),
        "i1": pa.array([1, None, -3], pa.int8()),
        "u8": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "f4": pa.array([1.5, float("nan"), None], pa.float32()),
        "s": pa.array(["", None, "ä"]),
        "large": pa.array(["", None, "ä"], pa.large_string()),
        "bytes": pa.array([b"\0", None, b""]),
        "us": pa.array([moment, None, moment]),
        "ns": pa.array([1000, None, 3000], pa.timestamp("ns", "Europe/Berlin")),
        "day": pa.array([moment.date(), None, moment.date()]),
        "took": pa.array([dt.timedelta(seconds=1), None, None]),
        "money": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("-2.00")]),
        "list": pa.array([[1, None], None, []]),
        "nested": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(3, 2, 2)),
    }
    return pa.table(columns)


# -------------------------------------------------------------------------------- what is in files


@pytest.mark.law
@pytest.mark.parametrize("executor", ["threads", "sync"])
def test_what_is_written_reads_as_the_same_stream(executor: str, tmp_path: Path) -> None:
    ds = numbers().map(lambda row: {**row, "s": f"text {row['id']}"}).shuffle(50)
    done = ds.with_options(executor=executor).write_parquet(tmp_path / "rows", rows_per_file=300)
    assert done == Written(str(tmp_path / "rows"), 4, 1000, done.nbytes)
    assert names(tmp_path / "rows") == [f"part-0000{i}.parquet" for i in range(4)]
    assert done.nbytes == sum(path.stat().st_size for path in (tmp_path / "rows").iterdir())
    read = dml.read_parquet(tmp_path / "rows").with_options(**OFF)
    assert stream_hash(read.batch(7)) == stream_hash(ds.batch(7))
    assert "1,000 rows in 4 files" in repr(done)


@pytest.mark.law
def test_every_type_that_parquet_has_comes_back(tmp_path: Path) -> None:
    table = values()
    ds = dml.from_arrow(table).with_options(**OFF)
    ds.write_parquet(tmp_path / "rows")
    read = dml.read_parquet(tmp_path / "rows").with_options(**OFF)
    assert read.to_arrow().schema == ds.to_arrow().schema
    assert str(read.to_arrow().to_pydict()) == str(ds.to_arrow().to_pydict()), "with their nulls"
    assert stream_hash(read) == stream_hash(ds)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_files_hold_every_type(compression: str | None, tmp_path: Path) -> None:
    table = values().append_column(
        "months", pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval())
    )
    ds = dml.from_arrow(table).with_options(**OFF)
    done = ds.write_arrow(tmp_path / "rows", compression=compression, row_group_size=2)
    assert names(tmp_path / "rows") == ["part-00000.arrow"]
    with pa.ipc.open_file(tmp_path / "rows/part-00000.arrow") as reader:
        assert reader.num_record_batches == 2
        assert str(reader.read_all().combine_chunks()) == str(ds.to_arrow().combine_chunks())
    assert (done.files, done.rows) == (1, 3)


@pytest.mark.parametrize("codec", ["snappy", "zstd", "none", None])
def test_parquet_files_have_checksums_and_the_codec(codec: str | None, tmp_path: Path) -> None:
    numbers().write_parquet(tmp_path / "rows", compression=codec)
    path = tmp_path / "rows/part-00000.parquet"
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    assert column.compression == ("UNCOMPRESSED" if codec in ("none", None) else codec.upper())
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset + 200] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_csv_files_hold_what_text_can(tmp_path: Path) -> None:
    table = values().drop(["bytes", "took", "list", "nested", "tensor"])
    ds = dml.from_arrow(table).with_options(**OFF)
    done = ds.write_csv(tmp_path / "rows", rows_per_file=2)
    assert (done.files, done.rows) == (2, 3)
    assert names(tmp_path / "rows") == ["part-00000.csv", "part-00001.csv"]
    types = {field.name: field.type for field in table.schema if field.name != "ns"}
    convert = csv.ConvertOptions(column_types=types, quoted_strings_can_be_null=False)
    convert.strings_can_be_null, convert.null_values = True, [""]
    parts = [
        csv.read_csv(tmp_path / "rows" / name, convert_options=convert)
        for name in names(tmp_path / "rows")
    ]
    read = pa.concat_tables(parts)
    assert str(read.select(list(types)).to_pylist()) == str(table.select(list(types)).to_pylist())
    assert "1970-01-01 01:00:00.000001000+0100" in (tmp_path / "rows/part-00000.csv").read_text()


def test_csv_quotes_and_separators(tmp_path: Path) -> None:
    ds = dml.from_dict({"a;b": ['x"y', "1;2", "two\nlines", "", None], "n": range(5)})
    ds.write_csv(tmp_path / "rows", delimiter=";")
    text = (tmp_path / "rows/part-00000.csv").read_text()
    assert text == '"a;b";"n"\n"x""y";0\n"1;2";1\n"two\nlines";2\n"";3\n;4\n'
    for wrong in ("", ",,", '"', "\n", 7):
        act = partial(ds.write_csv, tmp_path / "other", delimiter=wrong)  # type: ignore[arg-type]
        refused(PlanError, act, "cannot be separated")
    refused(SchemaError, lambda: ds.select("a;b").write_csv(tmp_path / "other"), "empty line")
    assert names(tmp_path) == ["rows"]


def test_json_lines_hold_what_json_can(tmp_path: Path) -> None:
    table = values().drop(["bytes", "took"])
    ds = dml.from_arrow(table).with_options(**OFF)
    assert ds.write_json(tmp_path / "rows").rows == 3
    lines = (tmp_path / "rows/part-00000.jsonl").read_text(encoding="utf-8").splitlines()
    first, second, third = map(json.loads, lines)
    assert first == {
        "b": True,
        "i1": 1,
        "u8": 2**64 - 1,
        "f4": 1.5,
        "s": "",
        "large": "",
        "us": "2024-02-29 12:30:01.000005",
        "ns": "1970-01-01 01:00:00.000001000+0100",
        "day": "2024-02-29",
        "money": "1.10",
        "list": [1, None],
        "nested": {"a": 1, "b": ["x"]},
        "tensor": [[0.0, 1.0], [2.0, 3.0]],
    }
    assert {name for name, value in second.items() if value is not None} == {"u8", "tensor"}
    assert (third["s"], third["list"], third["nested"]) == ("ä", [], {"a": None, "b": None})
    assert '"s":"ä"' in lines[2]


def test_json_of_nested_values(tmp_path: Path) -> None:
    tensor = pa.fixed_shape_tensor(pa.float64(), (2,))
    storage = pa.array([[math.nan, 1.0], None], pa.list_(pa.float64(), 2))
    columns = {
        "moments": pa.array([[dt.date(2024, 1, 2)], None]),
        "floats": pa.array([{"x": [math.nan, 0.5]}, {"x": None}]),
        "tensor": pa.ExtensionArray.from_storage(tensor, storage),
    }
    dml.from_arrow(pa.table(columns)).with_options(**OFF).write_json(tmp_path / "rows")
    lines = (tmp_path / "rows/part-00000.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"moments": ["2024-01-02"], "floats": {"x": [None, 0.5]}, "tensor": [None, 1.0]},
        {"moments": None, "floats": {"x": None}, "tensor": None},
    ]


def test_text_files_of_no_rows(tmp_path: Path) -> None:
    none = numbers().filter(col("id") < 0)
    none.write_csv(tmp_path / "csv")
    none.write_json(tmp_path / "json")
    assert (tmp_path / "csv/part-00000.csv").read_text() == '"id","y"\n'
    assert (tmp_path / "json/part-00000.jsonl").read_text() == ""


@pytest.mark.law
@pytest.mark.parametrize("verb", ["write_csv", "write_json"])
def test_text_files_appear_whole_or_not_at_all(verb: str, tmp_path: Path) -> None:
    def divide(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "x": 1 / (row["id"] - 900)}

    getattr(numbers(10), verb)(tmp_path / "rows")
    with pytest.raises(UDFError, match="Zero"):
        getattr(numbers().map(divide), verb)(tmp_path / "rows", overwrite=True, rows_per_file=7)
    assert names(tmp_path) == ["rows"]
    assert len(names(tmp_path / "rows")) == 1
    getattr(numbers(20), verb)(tmp_path / "rows", overwrite=True, rows_per_file=10)
    assert len(names(tmp_path / "rows")) == 2
    refused(PlanError, lambda: getattr(numbers(), verb)(tmp_path / "rows"), "not empty")
    refused(PlanError, lambda: getattr(numbers().repeat(), verb)(tmp_path / "new"), verb)


@pytest.mark.parametrize("name", ["bytes", "took", "list", "nested", "tensor"])
def test_columns_that_text_cannot_hold(name: str, tmp_path: Path) -> None:
    ds = dml.from_arrow(values().select(["b", name])).with_options(**OFF)
    error = refused(SchemaError, lambda: ds.write_csv(tmp_path / "rows"), "cannot hold")
    assert repr(name) in error.why
    if name in ("bytes", "took"):
        error = refused(SchemaError, lambda: ds.write_json(tmp_path / "rows"), "cannot hold")
        assert repr(name) in error.why
    assert not names(tmp_path)


def test_json_has_no_infinity(tmp_path: Path) -> None:
    ds = dml.from_dict({"x": [1.0, -math.inf]}).with_options(**OFF)
    refused(SchemaError, lambda: ds.write_json(tmp_path / "rows"), "-inf")
    nested = dml.from_items([{"x": [math.inf]}]).with_options(**OFF)
    refused(SchemaError, lambda: nested.write_json(tmp_path / "rows"), "inf")
    assert not names(tmp_path)


@pytest.mark.law
def test_batches_are_written_as_their_rows(tmp_path: Path) -> None:
    ds = numbers().shuffle(30).batch(7)
    ds.write_parquet(tmp_path / "rows", row_group_size=10, rows_per_file=25)
    files = [pq.ParquetFile(path) for path in sorted((tmp_path / "rows").iterdir())]
    groups = [f.metadata.row_group(i).num_rows for f in files for i in range(f.num_row_groups)]
    assert groups == [10, 10, 5] * 40
    read = dml.read_parquet(tmp_path / "rows").with_options(**OFF)
    assert read.to_arrow().equals(ds.to_arrow())


@pytest.mark.law
def test_files_and_row_groups_are_of_bounded_size(tmp_path: Path) -> None:
    ds = dml.range(20_000).random_map(lambda _row, rng: {"x": rng.random()}, seed=1)
    recipe = file_writer.Cuts(group_bytes=16_000, file_bytes=50_000)
    original, file_writer.cuts_of = file_writer.cuts_of, lambda *_: recipe
    try:
        done = ds.with_options(**OFF).write_parquet(tmp_path / "rows", compression=None)
    finally:
        file_writer.cuts_of = original
    sizes = [path.stat().st_size for path in (tmp_path / "rows").iterdir()]
    assert done.files == len(sizes) > 2
    assert max(sizes) < 50_000 + 2 * 65_536
    assert dml.read_parquet(tmp_path / "rows").count() == 20_000


def test_a_small_memory_number_makes_small_row_groups() -> None:
    assert file_writer.cuts_of(None, None, 1 << 40).group_bytes == file_writer.GROUP_BYTES
    assert file_writer.cuts_of(None, None, 1 << 20).group_bytes == 1 << 19


def test_no_rows_still_have_columns(tmp_path: Path) -> None:
    done = numbers().filter(col("id") < 0).write_parquet(tmp_path / "rows")
    assert (done.files, done.rows) == (1, 0)
    read = dml.read_parquet(tmp_path / "rows")
    assert (read.columns, read.count()) == (["id", "y"], 0)
    opaque = numbers().map(lambda row: {"s": str(row["id"])}).filter(lambda row: row["s"] == "no")
    opaque.batch(3).write_parquet(tmp_path / "opaque")
    assert dml.read_parquet(tmp_path / "opaque").columns == ["s"]


@pytest.mark.law
def test_a_write_is_no_epoch(tmp_path: Path) -> None:
    ds = numbers().shuffle(seed=2)
    ds.write_parquet(tmp_path / "first")
    assert iter(ds).epoch == 0
    ds.epoch(1).write_parquet(tmp_path / "second")
    for epoch, name in enumerate(("first", "second")):
        assert dml.read_parquet(tmp_path / name).to_arrow().equals(ds.epoch(epoch).to_arrow())


# ---------------------------------------------------------------------------------------- refusals


def test_an_error_of_a_row_leaves_nothing(tmp_path: Path) -> None:
    def divide(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 / (row["id"] - 900)}

    ds = numbers().map(divide)
    with nothing_left(tmp_path / "temporary"):
        error = refused(
            UDFError,
            lambda: ds.write_parquet(tmp_path / "new/deep/rows", row_group_size=10),
            "ZeroDivisionError",
            "row 900",
        )
    assert error.row == 900
    assert names(tmp_path) == ["temporary"], "the folders above it neither"
    with pytest.raises(UDFError, match="Zero"):
        ds.batch(50).shuffle(3).write_arrow(tmp_path / "rows")
    assert names(tmp_path) == ["temporary"]


def test_what_makes_no_sense_is_refused_before_any_work(tmp_path: Path) -> None:
    called: list[int] = []

    def note(row: dict[str, Any]) -> dict[str, Any]:
        called.append(1)
        return row

    ds = numbers().map(note, schema={"id": "int64", "y": "f8"}, fingerprint="note")
    path = tmp_path / "rows"
    refused(PlanError, lambda: ds.write_parquet(path, compression="bz2"), "no compression")
    refused(PlanError, lambda: ds.write_arrow(path, compression="snappy"), "lz4")
    refused(PlanError, lambda: ds.write_parquet(path, rows_per_file=0), "rows_per_file")
    refused(PlanError, lambda: ds.write_parquet(path, row_group_size=True), "row_group_size")
    refused(PlanError, lambda: ds.repeat().write_arrow(path), "endless")
    assert not called
    assert not names(tmp_path)


def test_files_keep_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "MOST_FILES", 3)
    ds = numbers(40)
    assert ds.write_parquet(tmp_path / "rows", rows_per_file=14).files == 3
    refused(PlanError, lambda: ds.write_parquet(tmp_path / "more", rows_per_file=13), "3 files")
    assert names(tmp_path) == ["rows"]


@pytest.mark.law
def test_columns_that_parquet_cannot_hold(tmp_path: Path) -> None:
    table = pa.table({"m": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    ds = dml.from_arrow(table)
    error = refused(SchemaError, lambda: ds.write_parquet(tmp_path / "rows"), "cannot hold")
    assert "month" in error.why
    unknown = dml.range(0).map(lambda row: {"s": str(row)})
    refused(SchemaError, lambda: unknown.write_parquet(tmp_path / "rows"), "schema=")
    assert not names(tmp_path)


@pytest.mark.law
@pytest.mark.parametrize("compression", ["zstd", "zlib", None])
def test_orc_files_are_read_by_arrow(tmp_path: Path, compression: str | None) -> None:
    ds = numbers().with_columns(s=dml.lit("text"))
    written = ds.write_orc(tmp_path / "out", compression=compression, rows_per_file=300)
    assert (written.files, names(tmp_path / "out")[0]) == (4, "part-00000.orc")
    parts = [orc.read_table(path) for path in sorted((tmp_path / "out").iterdir())]
    assert pa.concat_tables(parts).equals(ds.to_arrow())
    ds.filter(col("id") < 0).write_orc(tmp_path / "out", overwrite=True)
    assert orc.read_table(tmp_path / "out/part-00000.orc").schema == ds.to_arrow().schema
    with pytest.raises(SchemaError, match="orc files cannot hold these columns"):
        dml.from_arrow(pa.table({"x": pa.array([1], pa.uint8())})).write_orc(tmp_path / "no")
    with pytest.raises(PlanError, match="Orc files have no compression 'gzip'"):
        ds.write_orc(tmp_path / "no", compression="gzip")
