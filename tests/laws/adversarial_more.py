"""More pipelines that take all memory unless something limits them.

They have texts that are stored once and decoded many times, Python objects, temporary arrays, and
many output rows for each input row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import dml
from dml import col
from tests.laws import adversarial_files as files
from tests.laws.adversarial import (
    ATOM,
    CASES,
    EITHER,
    READING,
    Batch,
    Case,
    Row,
    at_once,
    below,
    by_key,
    children,
    floats,
    large,
    lists,
    numbers,
    sized,
)
from tests.laws.adversarial_data import MB, ones

TEXT_ROWS = files.TEXT_ROWS


def words(number: int, rows: int) -> dml.Dataset:
    """Rows with a list of so many short texts, each of which is an object in Python."""
    return numbers(rows).map(lambda row: {"k": row["id"], "v": ["ab"] * number})


def function_of_lists(row: Row) -> Row:
    """A number of a row with a list."""
    return {"k": row["k"], "n": len(row["v"])}


def function_of_all_lists(batch: Batch) -> Batch:
    """The numbers of rows with lists."""
    return {"k": batch["k"], "n": np.array([len(each) for each in batch["v"]])}


def records(number: int, rows: int) -> dml.Dataset:
    """Rows with a list of so many structs."""
    return numbers(rows).map(lambda row: {"k": row["id"], "v": [{"a": 1, "b": 2.0}] * number})


def temporary(columns: int) -> dml.Dataset:
    """A function that makes so many floats of a row, and keeps their sum."""

    def summed(batch: Batch) -> Batch:
        return {"k": batch["id"], "n": np.ones((len(batch["id"]), columns)).sum(1)}

    return numbers(16 * ATOM).map_batches(summed)


def many_columns(batch: Batch) -> Batch:
    """Two thousand columns."""
    return {"k": batch["id"], **{f"c{i}": batch["id"] + i for i in range(2000)}}


def batches(row: dict[str, int]) -> Iterator[dict[str, object]]:
    """Rows that grow as they come."""
    for child in range(40):
        yield {"k": child, "b": ones(child * 100_000)}


DICTIONARIES = {
    "Parquet of few long texts": Case(
        lambda f: files.dictionary(f).batch(64), TEXT_ROWS, below(TEXT_ROWS)
    ),
    "Parquet of few long texts in one column": Case(
        lambda f: files.dictionary(f).select("s", k=col("s").str.len_chars()),
        *(TEXT_ROWS, TEXT_ROWS * files.LETTERS),
    ),
    "Parquet of texts nobody counted": Case(
        lambda f: files.uncounted(f).batch(64), TEXT_ROWS, below(TEXT_ROWS), EITHER
    ),
    "Parquet of texts nobody counted, in small atoms": Case(
        lambda f: files.uncounted(f, atom_rows=500).batch(64), TEXT_ROWS, below(TEXT_ROWS)
    ),
    "Parquet of lists of one long text": Case(
        lambda f: files.listed(f).batch(16), 4000, below(4000), EITHER
    ),
    "an Arrow file of few long texts": Case(
        lambda f: files.arrow(f).batch(64), TEXT_ROWS, below(TEXT_ROWS), EITHER
    ),
    "a table of few long texts": Case(
        lambda _: dml.from_arrow(files.few_texts().slice(0, 3000)).batch(64), 3000, below(3000)
    ),
}

PACKED = {
    "Parquet of zeros": Case(
        lambda f: files.zeros(f).batch(4096), 10_000_000, sum(np.arange(10_000_000) % 7)
    ),
    "a packed CSV file": Case(lambda f: files.packed_csv(f).batch(1000), 300_000, 300_000),
    "a JSON file with a long list": Case(
        lambda f: files.long_list(f).batch(10), 1000, below(1000), EITHER
    ),
    "an archive of unequal members": Case(files.archive, 200, 200, EITHER),
}

OBJECTS = {
    "lists of texts as objects": Case(
        lambda _: words(1000, 10_000).batch(200), 10_000, below(10_000)
    ),
    "many lists of texts as objects": Case(
        lambda _: words(1000, 10_000).batch(5000), 10_000, below(10_000), EITHER
    ),
    "lists of structs as objects": Case(
        lambda _: records(300, 5000).batch(2000), 5000, below(5000), EITHER
    ),
    "a function of lists of texts": Case(
        lambda f: files.words(f).map(function_of_lists), 20_000, below(20_000)
    ),
    "a function of batches of lists of texts": Case(
        lambda f: files.words(f).map_batches(function_of_all_lists), 20_000, below(20_000)
    ),
    "a function of few lists of texts": Case(
        lambda f: files.words(f).map_batches(function_of_all_lists, batch_size=64),
        *(20_000, below(20_000)),
    ),
    "texts as objects": Case(
        lambda _: numbers(40 * ATOM).select(k=col("id"), s=dml.lit("ab")).batch(ATOM),
        *(40 * ATOM, below(40 * ATOM), EITHER),
    ),
}

WIDE = {
    "sixteen interleaved": Case(
        lambda _: dml.interleave(*(large(20) for _ in range(16))).batch(2),
        *(320, 16 * below(20), EITHER),
    ),
    "sixteen of floats interleaved": Case(
        lambda _: dml.interleave(*(floats(2 * ATOM, 8) for _ in range(16))).batch(1024),
        *(32 * ATOM, 16 * below(2 * ATOM), EITHER),
    ),
    "children of large children": Case(
        lambda _: (
            numbers(20).flat_map(children(20, 100_000)).flat_map(at_once(8, 200_000)).batch(8)
        ),
        *(3200, 400 * below(8)),
    ),
    "children that grow": Case(
        lambda _: numbers(20).flat_map(batches).batch(4), 800, 20 * below(40)
    ),
    "two thousand columns": Case(
        lambda _: numbers(20_000).map_batches(many_columns, batch_size=256).batch(64),
        *(20_000, below(20_000), EITHER),
    ),
    "temporary arrays": Case(lambda _: temporary(100).batch(ATOM), 16 * ATOM, below(16 * ATOM)),
    "unequal rows shuffled": Case(
        lambda _: (
            numbers(4000).map(sized(lambda k: 4 * MB if not k % 50 else 10)).shuffle().batch(4)
        ),
        *(4000, below(4000)),
    ),
    "unequal rows sorted": Case(
        lambda _: (
            numbers(4000)
            .map(sized(lambda k: 4 * MB if not k % 50 else 10))
            .sort(col("k") % 97)
            .batch(4)
        ),
        *(4000, below(4000), EITHER),
    ),
    "a join that fans out": Case(
        lambda _: (
            by_key(300_000, 3000)
            .join(by_key(30_000, 3000).select("g", y=col("k")), on="g")
            .batch(4096)
        ),
        *(3_000_000, 10 * below(300_000)),
    ),
    "lists exploded and grouped": Case(
        lambda _: (
            lists(lambda k: 20_000 if k % 10 else 5, 300)
            .explode("v")
            .group_by("k")
            .agg(n=col("v").sum())
        ),
        *(300, below(300)),
    ),
}

EVERY = {**CASES, **DICTIONARIES, **PACKED, **OBJECTS, **WIDE}
FILES = READING | {*DICTIONARIES, *PACKED, *(name for name in OBJECTS if "function" in name)}
