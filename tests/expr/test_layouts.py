"""This file tests that layouts which few kernels take never get into a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col

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
                "text": pa.large_string(),
                "data": pa.large_binary(),
                "texts": pa.list_(pa.large_string()),
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
    assert cast.schema["x"] == pa.large_string()
    coded = dml.from_items([{"x": "a"}], schema={"x": pa.dictionary(pa.int8(), pa.string())})
    assert coded.schema["x"] == pa.string()


def test_views_on_both_sides_of_a_join(tmp_path: Path) -> None:
    one = parquet_file(tmp_path).select("n", "text").take(2)
    both = one.join(one, on="text")
    assert list(both) == [{"n": i, "text": TEXTS[i], "n_right": i} for i in range(2)]
