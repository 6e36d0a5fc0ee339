"""Test files of one source whose columns differ: an error, or united by column name."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import dml
from dml import col
from dml.errors import PlanError, SourceError
from dml.io.files.file_schemas import common
from dml.io.parquet.parquet import read_parquet
from dml.testing.source_laws import check_source

FIRST = pa.table({"a": pa.array([1, 2], pa.int32()), "s": ["x", None]})
MORE = pa.table({"b": [0.5, None, 1.5], "a": pa.array([3, 2**40, None], pa.int64())})
NEITHER = pa.table({"c": [[1], []]})
UNITED = pa.table(
    {
        "a": pa.array([1, 2, 3, 2**40, None, None, None], pa.int64()),
        "s": pa.array(["x", *[None] * 6], pa.string()),
        "b": pa.array([None, None, 0.5, None, 1.5, None, None], pa.float64()),
        "c": pa.array([*[None] * 5, [1], []], pa.list_(pa.field("element", pa.int64()))),
    }
)


def written(folder: Path, *tables: pa.Table, rows: int = 2) -> str:
    for i, table in enumerate(tables):
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=rows)
    return str(folder)


@pytest.mark.law
def test_united_files_keep_all_laws(tmp_path: Path) -> None:
    source = read_parquet(written(tmp_path, FIRST, MORE, NEITHER), union_by_name=True, atom_rows=1)
    check_source(source, UNITED)
    again = pickle.loads(pickle.dumps(source))
    assert again.schema == source.schema
    assert again.identity() == source.identity()


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_columns_and_filters_of_united_files(tmp_path: Path, executor: str) -> None:
    path = written(tmp_path, FIRST, MORE, NEITHER)
    ds = dml.read_parquet(path, union_by_name=True).with_options(executor=executor)
    assert ds.columns == ["a", "s", "b", "c"]
    rows = UNITED.to_pylist()
    assert ds.to_arrow().to_pylist() == rows
    filters: dict[str, Any] = {
        "a": (col("a") > 2, lambda r: r["a"] is not None and r["a"] > 2),
        "s": (col("s") == "x", lambda r: r["s"] == "x"),
        "not s": (~(col("s") == "x"), lambda r: r["s"] not in ("x", None)),
        "null": (col("b").is_null(), lambda r: r["b"] is None),
        "no null": (~col("b").is_null(), lambda r: r["b"] is not None),
        "either": ((col("b") > 1) | (col("a") == 2), lambda r: (r["b"] or 0) > 1 or r["a"] == 2),
        "filled": (col("b").fill_null(7.0) == 7, lambda r: r["b"] is None),
        "in": (col("a").is_in([2**40, 1]), lambda r: r["a"] in (2**40, 1)),
    }
    for name, (predicate, passes) in filters.items():
        wanted = [row for row in rows if passes(row)]
        assert ds.filter(predicate).to_arrow().to_pylist() == wanted, name
        some = ds.filter(predicate).select("c", "a").to_arrow().to_pylist()
        assert some == [{"c": row["c"], "a": row["a"]} for row in wanted], name
    few = dml.read_parquet(path, columns=["b", "s"], union_by_name=True)
    assert few.to_arrow().to_pylist() == UNITED.select(["b", "s"]).to_pylist()
    assert dml.read_parquet(path, union_by_name=True).count() == 7


def test_a_shard_of_united_files_has_the_columns_of_all(tmp_path: Path) -> None:
    ds = dml.read_parquet(written(tmp_path, FIRST, MORE, NEITHER), union_by_name=True)
    parts = [ds.shard(2, i) for i in range(2)]
    assert [part.schema for part in parts] == [ds.schema] * 2
    assert sum(part.count() for part in parts) == 7
    alone = dml.read_parquet(str(tmp_path / "0.parquet"))
    united = dml.read_parquet(
        [str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")], union_by_name=True
    )
    assert alone.fingerprint() != united.fingerprint()


def test_a_file_without_a_column_says_so_where_nulls_are_refused(tmp_path: Path) -> None:
    ints = pa.table({"n": [1]})
    ds = dml.read_parquet(written(tmp_path, ints, FIRST), union_by_name=True).select("n").batch(2)
    with pytest.raises(dml.errors.NullValueError, match=r"1.parquet, which has no such column"):
        next(iter(ds))


def test_folders_beside_united_files(tmp_path: Path) -> None:
    for year, table in (("2023", FIRST), ("2024", MORE)):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(table, tmp_path / f"year={year}" / "0.parquet")
    ds = dml.read_parquet(str(tmp_path), union_by_name=True)
    assert ds.columns == ["a", "s", "b", "year"]
    found = ds.filter((col("year") == 2024) & (col("a") == 3)).to_arrow().to_pylist()
    assert found == [{"a": 3, "s": None, "b": 0.5, "year": 2024}]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (pa.table({"a": pa.array([1], pa.int32())}), "1.parquet has no column 's'"),
        (FIRST.append_column("n", pa.array([1, 2])), "0.parquet has no column 'n'"),
        (FIRST.set_column(0, "a", pa.array([1, 2])), "'a' is int32 in 0.parquet and int64"),
        (FIRST.set_column(1, "s", pa.nulls(2)), "'s' is string in 0.parquet and null"),
    ],
)
def test_what_differs_names_the_way_out(tmp_path: Path, other: pa.Table, what: str) -> None:
    path = written(tmp_path, FIRST, other)
    with pytest.raises(SourceError, match=what) as caught:
        dml.read_parquet(path)
    assert "union_by_name=True" in caught.value.try_
    assert dml.read_parquet(path, union_by_name=True).count() == 2 + other.num_rows


def test_types_that_do_not_unite_are_refused_both_ways(tmp_path: Path) -> None:
    path = written(tmp_path, FIRST, FIRST.set_column(1, "s", pa.array([1, 2])))
    for united in (False, True):
        with pytest.raises(SourceError, match=r"'s' is string in 0.parquet and int64") as caught:
            dml.read_parquet(path, union_by_name=united)
        assert "union_by_name" not in caught.value.try_
    with pytest.raises(PlanError, match="union_by_name"):
        dml.read_parquet(path, union_by_name=cast("Any", "yes"))


def test_a_value_that_the_wider_type_does_not_hold_is_an_error(tmp_path: Path) -> None:
    exact, odd = pa.table({"x": [0.5]}), pa.table({"x": [2**53 + 1]})
    ds = dml.read_parquet(written(tmp_path, exact, odd), union_by_name=True)
    assert ds.take_rows(1) == [{"x": 0.5}]
    with pytest.raises(SourceError, match="'x' is int64 here, and does not fit double"):
        ds.to_arrow()


def test_the_order_of_columns_is_that_of_the_first_file(tmp_path: Path) -> None:
    turned = FIRST.select(["s", "a"])
    rows = FIRST.to_pylist() * 2
    assert dml.read_parquet(written(tmp_path, FIRST, turned)).to_arrow().to_pylist() == rows
    for i, table in enumerate((FIRST, turned)):
        with pa.ipc.new_file(str(tmp_path / f"{i}.arrow"), table.schema) as file:
            file.write_table(table)
        orc.write_table(table, str(tmp_path / f"{i}.orc"))
    arrow = dml.read_arrow(str(tmp_path / "*.arrow"))
    assert arrow.to_arrow().to_pylist() == rows
    assert arrow.select("a").to_arrow().to_pylist() == [{"a": row["a"]} for row in rows]
    assert dml.read_orc(str(tmp_path / "*.orc")).to_arrow().to_pylist() == rows


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.uint64(), None),
        (pa.null(), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (
            pa.struct({"p": pa.int64()}),
            pa.struct({"q": pa.string()}),
            pa.struct({"p": pa.int64(), "q": pa.string()}),
        ),
        (pa.string(), pa.int64(), None),
        (pa.bool_(), pa.string(), None),
        (pa.date32(), pa.string(), None),
        (pa.fixed_shape_tensor(pa.int8(), (2,)), pa.fixed_shape_tensor(pa.int8(), (3,)), None),
    ],
)
def test_common_types(one: pa.DataType, other: pa.DataType, both: pa.DataType | None) -> None:
    assert common(one, other) == common(other, one) or pa.types.is_struct(one)
    assert common(one, other) == both


def test_nested_columns_grow(tmp_path: Path) -> None:
    old = pa.table({"r": [{"p": 1}, None], "t": pa.array([dt.datetime(2024, 1, 2)] * 2)})
    new = pa.table(
        {
            "r": [{"p": 2, "q": "x"}],
            "t": pa.array([dt.datetime(2024, 1, 3)], pa.timestamp("ns")),
        }
    )
    found = dml.read_parquet(written(tmp_path, old, new), union_by_name=True).to_arrow()
    assert found["r"].to_pylist() == [{"p": 1, "q": None}, None, {"p": 2, "q": "x"}]
    assert found["t"].type == pa.timestamp("ns")
