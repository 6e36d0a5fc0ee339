"""Test ``with_row_index``: the position of each row as a column."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dml import Dataset, col
from dml.errors import PlanError, SchemaError
from tests.expr.checks import holds, numbers


def indices(ds: Dataset) -> list[int]:
    return [row["index"] for row in ds]


@pytest.mark.law
def test_rows_batches_and_resuming() -> None:
    assert holds(numbers().with_row_index()) == 10
    assert holds(numbers().filter(col("x") % 3 > 0).with_row_index("i", 7).batch(4)) == 2
    assert holds(numbers(0).with_row_index()) == 0
    assert holds(numbers().batch(4).unbatch().enumerate(-2).skip(3)) == 7


def test_it_is_the_first_column_and_counts_what_reaches_it() -> None:
    ds = numbers().filter(col("x") > 6).with_row_index(offset=5)
    assert ds.schema.names == ("index", "x")
    assert list(ds) == [{"index": 5, "x": 7}, {"index": 6, "x": 8}, {"index": 7, "x": 9}]
    assert indices(numbers().shuffle().with_row_index()) == list(range(10))
    assert indices(numbers().enumerate(3)) == list(range(3, 13))
    assert numbers().enumerate(name="i").schema.names == ("i", "x")


@pytest.mark.law
def test_passes_begin_anew_below_a_repeat_and_go_on_above() -> None:
    assert indices(numbers(3).with_row_index().repeat(2)) == [0, 1, 2, 0, 1, 2]
    assert indices(numbers(3).repeat(2).with_row_index()) == list(range(6))
    assert holds(numbers(3).with_row_index().repeat(2).with_row_index("again")) == 6


@pytest.mark.law
def test_an_endless_repeat_keeps_passes_that_some_orders_leave_empty() -> None:
    ds = numbers(9).shuffle().with_row_index().repeat()
    kept = ds.filter((col("index") < 2) & (col("x") > 1)).take(12)
    assert holds(kept) == holds(kept.with_options(optimize=False))


def test_only_what_is_read_is_decoded() -> None:
    text = numbers().with_columns(y=1).with_row_index().select("index", "x").explain("physical")
    assert "1 of 1 columns" in text
    assert indices(numbers().with_row_index().select("index")) == list(range(10))


def test_no_row_that_comes_out_leaves_no_wrong_columns(tmp_path: Path) -> None:
    ds = numbers().with_row_index().skip(10)
    ds.write_parquet(tmp_path / "known")
    assert pq.read_schema(tmp_path / "known" / "part-00000.parquet").names == ["index", "x"]
    later = numbers().random_map(lambda row, _: row).filter(col("x") < 0).with_row_index()
    with pytest.raises(SchemaError, match="columns are not known"):
        later.write_parquet(tmp_path / "unknown")


@pytest.mark.parametrize("offset", [1.0, True, "1", None, 1 << 63])
def test_refuses_what_does_not_count(offset: object) -> None:
    with pytest.raises(PlanError, match="cannot begin at"):
        numbers().with_row_index(offset=offset)  # type: ignore[arg-type]


def test_refuses_names_and_batches() -> None:
    with pytest.raises(SchemaError, match="a second column 'x'"):
        numbers().with_row_index("x")
    later = numbers().random_map(lambda row, _: row).with_row_index("x")
    with pytest.raises(SchemaError, match="a second column 'x'"):
        list(later)
    with pytest.raises(PlanError, match="after batch"):
        numbers().batch(2).with_row_index()
    with pytest.raises(PlanError, match="needs a column name"):
        numbers().with_row_index(3)  # type: ignore[arg-type]


def test_the_numbers_are_int64() -> None:
    assert numbers().with_row_index().schema["index"] == pa.int64()
