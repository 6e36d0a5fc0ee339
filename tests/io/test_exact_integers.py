"""Test that integers of CSV and JSON lines are exact, or raise an error."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dml
from dml.errors import SourceError
from dml.io.csv.csv import read_csv
from dml.io.json.json import read_json
from dml.io.webdataset.webdataset import read_webdataset
from dml.testing.oracle_sources import table_of
from dml.testing.source_laws import check_source, everything
from tests.io.line_sets import refusal, written
from tests.io.webdataset.test_webdataset import archive

LARGE = 1 << 63
TYPES = [
    ([1, LARGE - 1], pa.int64()),
    ([0, LARGE - 1, LARGE], pa.uint64()),
    ([2 * LARGE - 1], pa.uint64()),
    ([-1, LARGE], pa.decimal128(38, 0)),
    ([1, 2 * LARGE], pa.decimal128(38, 0)),
    ([-LARGE, -LARGE - 1], pa.decimal128(38, 0)),
    ([3, 10**38 - 1], pa.decimal128(38, 0)),
    ([0.5, (1 << 53) + 2], pa.float64()),
    ([0.5, 10**22, 1e300], pa.float64()),
]
FORMATS = ["csv", "csv.gz", "jsonl", "jsonl.zst"]


def source_of(folder: Path, ending: str, values: list[Any], schema: object = None) -> Any:
    """Values of a column "x", one a row, as a file and read back."""
    if ending.startswith("csv"):
        text = "x\n" + "".join(f"{value}\n" for value in values)
        return read_csv(written(folder, {f"x.{ending}": text.encode()}), schema=schema)
    text = "".join(f'{{"x": {value}}}\n' for value in values)
    return read_json(written(folder, {f"x.{ending}": text.encode()}), schema=schema)


def values_of(source: Any) -> list[Any]:
    """The column "x"."""
    return list(everything(source).to_arrow()["x"].to_pylist())


@pytest.mark.law
@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize(("values", "kind"), TYPES)
def test_integers_have_a_type_that_holds_them(
    tmp_path: Path, values: list[Any], kind: pa.DataType, ending: str
) -> None:
    source = source_of(tmp_path, ending, values)
    assert source.schema["x"] == kind
    like = float if kind == pa.float64() else Decimal if pa.types.is_decimal(kind) else int
    check_source(source, pa.table({"x": pa.array([like(v) for v in values], kind)}))
    assert [row.values["x"] for row in table_of(source).rows] == values


@pytest.mark.law
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.integers()
        | st.integers(-(1 << 65), 1 << 65)
        | st.sampled_from([0.5, -0.0, 1e-310, 1e300]),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(FORMATS),
)
def test_no_integer_is_changed_in_silence(tmp_path: Path, values: list[Any], ending: str) -> None:
    try:
        found = values_of(source_of(tmp_path, ending, values))
    except SourceError as refused:
        error = refused
    else:
        assert found == values
        return
    finally:
        (tmp_path / f"x.{ending}").unlink()
    whole = [value for value in values if isinstance(value, int)]
    assert any(float(value) != value or abs(value) >= 10**38 for value in whole)
    assert re.search("row [0-9]+, line [0-9]+$", error.at)
    assert "schema=" in error.try_


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("number", [(1 << 53) + 1, -LARGE - 1, 2 * LARGE + 1, 10**50 + 1])
def test_beside_floats_an_integer_is_exact_or_refused(
    tmp_path: Path, number: int, ending: str
) -> None:
    values = [0.5, 1, number, 10**60 + 1]
    error = refusal(lambda: source_of(tmp_path, ending, values))
    assert error.at.endswith("row 2, line 4" if "csv" in ending else "row 2, line 3")
    assert f"{number:d}"[:20] in error.why
    assert "schema={...} with float64" in error.try_
    rounded = source_of(tmp_path, ending, values, {"x": "float64"})
    assert values_of(rounded) == [float(value) for value in values]
    assert rounded.digest != source_of(tmp_path, ending, values).digest


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("schema", [None, {"x": "float64"}, {"x": "float32"}])
def test_no_number_becomes_infinite(tmp_path: Path, ending: str, schema: Any) -> None:
    beyond = ["1" * 400, "1" * 5000, *([] if schema is None else ["1e400"])]
    for number in (*beyond, *(["1e39"] if schema == {"x": "float32"} else [])):
        error = refusal(lambda number=number: source_of(tmp_path, ending, [number, 1], schema))  # type: ignore[misc]
        assert error.at.endswith("row 0, line 2" if "csv" in ending else "row 0, line 1")
        assert "schema=" in error.try_
    word = "inf" if "csv" in ending else "Infinity"
    assert values_of(source_of(tmp_path, ending, [0.5, word])) == [0.5, float("inf")]


def test_the_first_row_that_cannot_be_held_is_named(tmp_path: Path) -> None:
    data = b"a,b\n0.5,0.5\n1,9007199254740993\n9007199254740993,1\n"
    assert refusal(lambda: read_csv(written(tmp_path, {"x.csv": data}))).at.endswith(
        "row 1, line 3"
    )
    error = refusal(lambda: read_csv(written(tmp_path, {"x.csv": data}), columns=["a"]))
    assert error.at.endswith("row 2, line 4")


def test_columns_beside_long_integers_keep_their_types(tmp_path: Path) -> None:
    data = f"x,n,d,s\n{LARGE},,2024-02-29,\u00e9\n NA ,,,{LARGE}\nNA,,,b\n".encode()
    source = read_csv(written(tmp_path, {"x.csv": data}), null_values=["NA", " NA "])
    assert str(source.schema) == "x: uint64, n: string, d: date32[day], s: string"
    assert values_of(source) == [LARGE, None, None]
    lines = b'{"x": %d, "n": null, "d": "2024-02-29", "l": [1.5]}\n{"x": null}\n' % LARGE
    read = read_json(written(tmp_path, {"x.json": lines}))
    assert str(read.schema) == "x: uint64, n: string, d: string, l: list<item: double>"


def test_integers_in_lists_and_objects(tmp_path: Path) -> None:
    rows = [{"a": [LARGE], "b": 0.5}, None, {"a": [0, None], "b": 1}]
    source = source_of(tmp_path, "jsonl", [json.dumps(row) for row in rows])
    assert source.schema["x"] == pa.struct({"a": pa.list_(pa.uint64()), "b": pa.float64()})
    assert values_of(source) == rows
    error = refusal(lambda: source_of(tmp_path, "jsonl", ["[0.5]", "[]", "[1, 9007199254740993]"]))
    assert error.at.endswith("row 2, line 3")


def test_wide_integers_of_json(tmp_path: Path) -> None:
    source = source_of(tmp_path, "jsonl", [1, 10**76 - 1])
    assert source.schema["x"] == pa.decimal256(76, 0)
    assert values_of(source) == [1, 10**76 - 1]


def test_integers_of_samples(tmp_path: Path) -> None:
    samples = {"a.json": b"1", "b.json": str(LARGE).encode()}
    found = read_webdataset(archive(tmp_path / "x.tar", samples))
    assert everything(found).to_arrow()["json"].to_pylist() == [1, LARGE]
    for file in (b"[0.5, 9007199254740993]", b"1e400"):
        samples = {"a.json": b"[1]" if file[:1] == b"[" else b"1", "b.json": file}
        error = refusal(lambda: read_webdataset(archive(tmp_path / "x.tar", samples)))  # noqa: B023
        assert "sample 1" in error.at


@pytest.mark.parametrize("verb", ["csv", "json"])
def test_what_was_written_is_read_back(tmp_path: Path, verb: str) -> None:
    values = pa.array([0, 5, (1 << 64) - 1, LARGE + 1], pa.uint64())
    ds = dml.from_arrow(pa.table({"x": values})).with_options(telemetry_dir="off")
    getattr(ds, f"write_{verb}")(tmp_path / "out")
    again = getattr(dml, f"read_{verb}")(tmp_path / "out").with_options(telemetry_dir="off")
    assert again.to_arrow()["x"].combine_chunks() == values


def test_memory_counts_decimals(tmp_path: Path) -> None:
    small = source_of(tmp_path / "a", "csv", [1] * 1000)
    wide = source_of(tmp_path / "b", "csv", [*[1] * 999, 10**30])
    assert wide.parts[0].nbytes >= small.parts[0].nbytes * 2 == 16 * 1000
