"""Test that rare Arrow layouts are converted before they enter a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.data.layouts import usual_column
from dml.errors import SourceError

TEXTS = [f"a text that is longer than a view holds, {i % 3}" for i in range(6)]
VIEWED = pa.table(
    {
        "n": range(6),
        "text": pa.array(TEXTS, pa.string_view()),
        "data": pa.array([text.encode() for text in TEXTS], pa.binary_view()),
        "texts": pa.array([[text] for text in TEXTS], pa.list_(pa.string_view())),
        "coded": pa.array(TEXTS).dictionary_encode(),
    }
)
COLUMNS = {name: VIEWED.schema.field(name).type for name in VIEWED.schema.names}


def arrow_file(folder: Path) -> dml.Dataset:
    with (
        pa.OSFile(str(folder / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, VIEWED.schema) as w,
    ):
        w.write_table(VIEWED)
    return dml.read_arrow(str(folder / "a.arrow"))


def parquet_file(folder: Path) -> dml.Dataset:
    pq.write_table(VIEWED, folder / "a.parquet")
    return dml.read_parquet(str(folder / "a.parquet"))


def a_function(_folder: Path) -> dml.Dataset:
    return dml.range(6).map_batches(lambda t: VIEWED.slice(0, len(t)), batch_format="arrow")


def a_declared_function(_folder: Path) -> dml.Dataset:
    rows = [{**row, "n": i} for i, row in enumerate(VIEWED.to_pylist())]
    return dml.range(6).map(lambda row: rows[row["id"]], schema=COLUMNS)


SOURCES: list[Callable[[Path], dml.Dataset]] = [
    arrow_file,
    parquet_file,
    a_function,
    a_declared_function,
]
VERBS: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "sort": lambda ds: ds.sort("text", descending=True),
    "sort by another": lambda ds: ds.sort("n", descending=True),
    "group": lambda ds: ds.group_by("text").agg(n=col("n").sum(), all=col("data").implode()),
    "drop_duplicates": lambda ds: ds.drop_duplicates(["text", "data"]),
    "shuffle": lambda ds: ds.shuffle(),
    "cache": lambda ds: ds.cache().repeat(2),
    "explode": lambda ds: ds.explode("texts"),
    "compare": lambda ds: ds.filter(col("text") == TEXTS[0]),
    "letters": lambda ds: ds.with_columns(text=col("text").str.to_uppercase()),
}


@pytest.mark.law
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("verb", VERBS)
def test_rows_of_views_are_those_of_texts(source: Any, verb: str, tmp_path: Path) -> None:
    plain = VIEWED.cast(
        pa.schema(
            {
                "n": pa.int64(),
                "text": pa.string(),
                "data": pa.binary(),
                "texts": pa.list_(pa.string()),
                "coded": pa.string(),
            }
        )
    )
    wanted = VERBS[verb](dml.from_arrow(plain)).sort("n") if verb == "shuffle" else None
    wanted = wanted or VERBS[verb](dml.from_arrow(plain))
    got = VERBS[verb](source(tmp_path))
    got = got.sort("n") if verb == "shuffle" else got
    assert list(got) == list(wanted)


def test_a_type_that_is_given_is_the_usual_one() -> None:
    cast = dml.from_items([{"x": "a"}]).cast({"x": pa.string_view()})
    assert cast.schema["x"] == pa.string()
    declared = dml.from_items([{"x": "a"}], schema=pa.schema([("x", pa.large_string())]))
    assert (
        declared.schema["x"] == dml.from_items([{"x": "a"}]).cast({"x": "large_string"}).schema["x"]
    )
    coded = dml.from_items([{"x": "a"}], schema={"x": pa.dictionary(pa.int8(), pa.string())})
    assert coded.schema["x"] == pa.string()


def test_views_on_both_sides_of_a_join(tmp_path: Path) -> None:
    one = parquet_file(tmp_path).select("n", "text").take(2)
    both = one.join(one, on="text")
    assert list(both) == [{"n": i, "text": TEXTS[i], "n_right": i} for i in range(2)]


PLAIN = {
    "s": pa.array(["a", None, "b"]),
    "b": pa.array([b"a", None, b"b"]),
    "l": pa.array([["a"], None, []], pa.list_(pa.string())),
    "r": pa.array([{"q": "a"}, None, {"q": None}], pa.struct({"q": pa.string()})),
    "m": pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string())),
}
SOLID = pa.field("item", pa.string(), nullable=False)
LAYOUTS: dict[str, dict[str, pa.DataType]] = {
    "large": {
        "s": pa.large_string(),
        "b": pa.large_binary(),
        "l": pa.large_list(pa.large_string()),
        "r": pa.struct({"q": pa.large_string()}),
        "m": pa.map_(pa.large_string(), pa.large_string()),
    },
    "views": {
        "s": pa.string_view(),
        "b": pa.binary_view(),
        "r": pa.struct({"q": pa.string_view()}),
    },
    "coded": {"s": pa.dictionary(pa.int32(), pa.string())},
    "coded large": {"s": pa.dictionary(pa.int8(), pa.large_string())},
    "never null inside": {"l": pa.list_(SOLID)},
}


def written(folder: Path, layout: str) -> pa.Table:
    """Rows as another writer would have them."""
    kinds = {name: column.type for name, column in PLAIN.items()} | LAYOUTS[layout]
    return pa.table({name: column.cast(kinds[name]) for name, column in PLAIN.items()})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_several_writers_are_one_pipeline(layout: str, tmp_path: Path) -> None:
    plain, other = pa.table(PLAIN), written(tmp_path, layout)
    one, two = dml.from_arrow(plain), dml.from_arrow(other)
    assert one.schema == two.schema == two.cache().schema
    assert one.fingerprint() == two.fingerprint()
    both = plain.to_pylist() * 2
    assert one.concat(two).to_arrow().to_pylist() == both
    assert two.concat(one).cache().to_arrow().to_pylist() == both
    assert one.interleave(two).to_arrow().num_rows == 6
    assert dml.from_dict({"s": other["s"].combine_chunks()}).schema == one.select("s").schema


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key", ["s", "b"])
def test_keys_of_several_writers_meet(layout: str, key: str, tmp_path: Path) -> None:
    one = dml.from_arrow(pa.table(PLAIN)).select(key)
    two = dml.from_arrow(written(tmp_path, layout)).select(key)
    for left, right in ((one, two), (two, one)):
        joined = left.join(right, on=key).sort(key).to_arrow()
        assert joined[key].to_pylist() == PLAIN[key].drop_null().to_pylist()
        beside = left.zip(right.rename({key: "x"}))
        same = beside.filter(col(key) == col("x")).with_columns(
            either=dml.when(col("x").is_in(["a", b"a"][key == "b" :][:1]))
            .then(col("x"))
            .otherwise(col(key))
        )
        assert same.to_arrow()["either"].to_pylist() == PLAIN[key].drop_null().to_pylist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_of_several_writers_is_one_source(layout: str, tmp_path: Path) -> None:
    tables = [pa.table(PLAIN), written(tmp_path, layout)]
    for i, table in enumerate(tables):
        # Parquet has no views of its own, and pyarrow makes no map of large text from a file
        pq.write_table(table.drop(["m"]), tmp_path / f"{i}.parquet")
        with pa.ipc.new_file(str(tmp_path / f"{i}.arrow"), table.schema) as file:
            file.write_table(table)
    rows = tables[0].to_pylist() * 2
    assert dml.read_arrow(str(tmp_path / "*.arrow")).to_arrow().to_pylist() == rows
    read = dml.read_parquet(str(tmp_path / "*.parquet"))
    assert read.to_arrow().to_pylist() == pa.Table.from_pylist(rows).drop(["m"]).to_pylist()
    assert read.filter(col("s") == "b").to_arrow()["s"].to_pylist() == ["b", "b"]


def test_functions_give_usual_types() -> None:
    def large(table: pa.Table) -> pa.Table:
        return pa.table({"s": pa.array(["a"] * len(table), pa.large_string())})

    made = dml.range(3).map_batches(large, batch_format="arrow")
    assert made.to_arrow().schema.types == [pa.string()]
    assert made.concat(dml.from_dict({"s": ["b"]})).to_arrow()["s"].to_pylist() == [*"aaab"]


def test_a_slice_far_behind_in_large_text_is_text() -> None:
    far = 2**31 + 7
    data = np.zeros(far + 3, np.uint8)  # of which no page is touched but the last
    data[far:] = memoryview(b"abc")
    offsets = pa.py_buffer(np.array([0, far, far + 1, far + 3], np.int64))
    array = pa.Array.from_buffers(pa.large_string(), 3, [None, offsets, pa.py_buffer(data)])
    assert usual_column(array.slice(1), "s").to_pylist() == ["a", "bc"]
    with pytest.raises(SourceError, match="'s' is large_string"):
        usual_column(array, "s")
