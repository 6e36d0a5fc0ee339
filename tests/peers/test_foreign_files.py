"""Read files of other libraries, and compare the values with those of their own readers."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml

ROWS = 300
MIDNIGHT = dt.datetime(1965, 3, 4, tzinfo=dt.UTC)


def rows(*, maps: bool = True) -> pa.Table:
    """Every kind of column that tables in a lake have, with nulls in all of them."""
    numbers = range(ROWS)

    def column(make: Callable[[int], Any], kind: Any = None) -> pa.Array:
        return pa.array([None if k % 7 == 3 else make(k) for k in numbers], kind)

    columns = {
        "i": column(lambda k: (k - 150) * 10**16),
        "f": column(lambda k: k / 7, pa.float32()),
        "when": column(
            lambda k: MIDNIGHT + dt.timedelta(days=k * 99, microseconds=k),
            pa.timestamp("us", "UTC"),
        ),
        "day": column(lambda k: (MIDNIGHT + dt.timedelta(days=k)).date()),
        "price": column(lambda k: decimal.Decimal(k) / 100, pa.decimal128(9, 2)),
        "wide": column(lambda k: decimal.Decimal(k - 9) * 10**25, pa.decimal128(38, 4)),
        "word": column(lambda k: "abc"[k % 3] * (k % 5)),
        "raw": column(lambda k: bytes([k % 256, 0])),
        "flag": column(lambda k: k % 2 == 0),
        "tags": column(
            lambda k: [str(j) if j else None for j in range(k % 4)], pa.list_(pa.string())
        ),
        "nested": column(lambda k: {"a": k, "b": [{"c": str(k), "d": [k] * (k % 3)}] * (k % 3)}),
    }
    if maps:
        columns["m"] = column(
            lambda k: [(f"k{j}", j) for j in range(k % 3)], pa.map_(pa.string(), pa.int32())
        )
    return pa.table(columns)


def same(ours: pa.Table, theirs: pa.Table) -> None:
    """Equal values by column; how they are encoded is a reader's own business."""
    assert ours.column_names == theirs.column_names
    for name in ours.column_names:
        assert ours[name].to_pylist() == theirs[name].to_pylist(), name


STYLES: dict[str, dict[str, Any]] = {
    "spark, moments of 96 bits": {"flavor": "spark", "use_deprecated_int96_timestamps": True},
    "spark 1, decimals as bytes": {"flavor": "spark", "version": "1.0", "compression": "snappy"},
    "decimals as integers": {"store_decimal_as_integer": True, "row_group_size": 64},
    "pages of the second version": {"data_page_version": "2.0", "compression": "zstd"},
    "lists as hive wrote them": {"use_compliant_nested_type": False, "compression": "gzip"},
    "no dictionaries": {"use_dictionary": False, "write_statistics": False, "compression": "lz4"},
    "small dictionaries and pages": {"dictionary_pagesize_limit": 64, "data_page_size": 128},
    "no schema of Arrow's": {"store_schema": False, "write_page_index": True},
}


@pytest.mark.law
@pytest.mark.parametrize("style", STYLES)
def test_parquet_in_the_styles_of_other_writers(style: str, tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "rows.parquet", **STYLES[style])
    theirs = pq.read_table(tmp_path / "rows.parquet")
    ours = dml.read_parquet(tmp_path / "rows.parquet", atom_rows=37)
    same(ours.to_arrow(), theirs)
    same(
        ours.select("nested", "wide").skip(70).take(90).to_arrow(),
        theirs.select(["nested", "wide"]).slice(70, 90),
    )


def test_dictionary_columns_are_read_as_their_values(tmp_path: Path) -> None:
    words = pa.chunked_array([["a", None, "b"], ["b", "c", "a"]]).dictionary_encode()
    pq.write_table(pa.table({"word": words}), tmp_path / "rows.parquet", row_group_size=2)
    ds = dml.read_parquet(tmp_path / "rows.parquet")
    assert ds.to_arrow()["word"].to_pylist() == ["a", None, "b", "b", "c", "a"]
    assert ds.filter(dml.col("word") == "b").count() == 2


@pytest.mark.law
def test_a_folder_as_spark_leaves_it(tmp_path: Path) -> None:
    table = rows()
    for number in range(3):
        name = f"part-{number:05d}-7d1f-c000.snappy.parquet"
        pq.write_table(table.slice(number * 100, 100), tmp_path / name, flavor="spark")
        (tmp_path / f".{name}.crc").write_bytes(b"crc\x00")
    (tmp_path / "_SUCCESS").write_bytes(b"")
    same(dml.read_parquet(tmp_path).to_arrow(), pq.read_table(tmp_path))


@pytest.mark.law
@pytest.mark.parametrize("compression", ["zstd", "snappy", "uncompressed"])
def test_files_of_polars(compression: Any, tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.from_arrow(rows(maps=False))
    frame.write_parquet(tmp_path / "rows.parquet", compression=compression, row_group_size=90)
    assert pl.from_arrow(dml.read_parquet(tmp_path / "rows.parquet").to_arrow()).equals(
        pl.read_parquet(tmp_path / "rows.parquet")
    )
    frame.write_ipc(
        tmp_path / "rows.arrow",
        compression=compression if compression == "zstd" else "uncompressed",
    )
    assert pl.from_arrow(dml.read_arrow(tmp_path / "rows.arrow").to_arrow()).equals(frame)
    flat = frame.select("i", "f", "word", "flag").with_columns(pl.col("word").fill_null("none"))
    flat.write_csv(tmp_path / "rows.csv")
    assert pl.from_arrow(dml.read_csv(tmp_path / "rows.csv", schema={"f": "f4"}).to_arrow()).equals(
        flat
    )
    frame.select("i", "word", "tags", "nested").write_ndjson(tmp_path / "rows.jsonl")
    same(
        dml.read_json(tmp_path / "rows.jsonl").to_arrow(),
        pl.read_ndjson(tmp_path / "rows.jsonl").to_arrow(),
    )


@pytest.mark.law
def test_files_of_pandas(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = rows(maps=False).drop_columns(["price", "wide"]).to_pandas()
    frame.index = frame.index + 5
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    same(
        dml.read_parquet(tmp_path / "rows.parquet").to_arrow(),
        pq.read_table(tmp_path / "rows.parquet"),
    )
    frame.reset_index(drop=True).to_feather(tmp_path / "rows.feather", compression="zstd")
    same(
        dml.read_arrow(tmp_path / "rows.feather").to_arrow(),
        pa.Table.from_pandas(pd.read_feather(tmp_path / "rows.feather")),
    )
    flat = frame[["i", "word", "flag"]].reset_index(drop=True)
    flat.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    same(
        dml.read_json(tmp_path / "rows.jsonl", schema={"i": "f8"}).to_arrow(),
        pa.Table.from_pandas(flat),
    )


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_shards_that_hugging_face_reads(
    compression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # nobody is told of it
    numbers = range(30)
    ds = dml.from_dict(
        {
            "__key__": [f"s{k:03d}" for k in numbers],
            "word.txt": ["naïve " * (k % 3) for k in numbers],
            "label.cls": [k - 9 for k in numbers],
            "about.json": [{"u": k, "v": [str(k)] * (k % 2 + 1)} for k in numbers],
            "x.npy": [[k / 8] * 3 for k in numbers],
            "raw.bin": [bytes([k]) * k for k in numbers],
        }
    )
    ds.write_webdataset(tmp_path / "out", rows_per_file=11, compression=compression)
    files = sorted(str(path) for path in (tmp_path / "out").glob("part-*"))
    assert len(files) == 3
    found = datasets.load_dataset("webdataset", data_files=files, split="train", streaming=True)
    theirs = [{name: row[name] for name in ds.columns} for row in found]
    assert theirs == ds.to_arrow().to_pylist()


# ------------------------------------------------------------------------------------------- CSV

PEOPLE = [
    ["name", "n", "note"],
    ["Ann", "1", "plain"],
    ["Bo, Jr.", "-2", 'says "hi"'],
    ["Zoë", "3", "two\nlines\r\nand more"],
    ["", "4", "; | \t '"],
    ["Ed", "500000000000", " spaces "],
]
DIALECTS: dict[str, dict[str, Any]] = {
    "excel": {},
    "unix": {"dialect": "unix"},
    "excel, tabs": {"dialect": "excel-tab"},
    "semicolons": {"delimiter": ";"},
    "pipes, single quotes": {"delimiter": "|", "quotechar": "'"},
    "all in quotes, old Mac between": {"quoting": csv.QUOTE_ALL, "lineterminator": "\n"},
    "texts in quotes": {"quoting": csv.QUOTE_NONNUMERIC, "lineterminator": "\n"},
}


@pytest.mark.law
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects_of_csv(dialect: str, mark: str, header: bool, tmp_path: Path) -> None:
    options = DIALECTS[dialect]
    path = tmp_path / "people.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(mark)
        csv.writer(file, **options).writerows(PEOPLE if header else PEOPLE[1:])
    with path.open(newline="", encoding="utf-8-sig") as file:
        theirs = list(csv.reader(file, **options))
    known = csv.get_dialect(options["dialect"]) if "dialect" in options else None
    ours = dml.read_csv(
        path,
        delimiter=options.get("delimiter", known.delimiter if known else ","),
        quote=options.get("quotechar", '"'),
        header=header,
        atom_rows=2,
    ).to_arrow()
    wanted = [[row[0], int(row[1]), row[2]] for row in theirs[header:]]
    assert [list(row.values()) for row in ours.to_pylist()] == wanted
    if header:
        assert ours.column_names == theirs[0]
