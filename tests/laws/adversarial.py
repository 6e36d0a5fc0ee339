"""Pipelines that take all memory unless something limits them.

Each is small on disk and large in memory: maps with many output rows, rows from one byte to 60 MB,
slow consumers, many inputs. The expected rows are counted in advance, without running the pipeline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dml
from dml import col
from tests.laws import adversarial_data as files
from tests.laws.adversarial_data import MB, ones

ATOM = 65_536
Row = dict[str, Any]
Batch = dict[str, np.ndarray]

ROWS, ERROR, EITHER = "rows", "error", "either"


@dataclasses.dataclass(frozen=True)
class Case:
    """A pipeline, how many rows it gives, and the sum of their ``column``.

    ``ends`` says what must come of it: its rows, the named error, or one of both. ``verb`` hands
    the rows to something else than a loop; "slow" works on each element for a while.
    """

    build: Callable[[Path], dml.Dataset]
    rows: int
    total: int
    ends: str = ROWS
    verb: str = ""
    column: str = "k"


def below(n: int) -> int:
    """The sum of the whole numbers below ``n``."""
    return n * (n - 1) // 2


def sized(size: Callable[[int], int]) -> Callable[[Row], Row]:
    """A function that adds so many bytes to a row, by its number."""
    return lambda row: {"k": row["id"], "b": ones(size(row["id"]))}


def children(number: int, nbytes: int) -> Callable[[Row], Iterator[Row]]:
    """A function that makes ``number`` rows of one."""

    def made(row: Row) -> Iterator[Row]:
        for child in range(number):
            yield {"k": child, "b": ones(nbytes)}

    return made


def at_once(number: int, nbytes: int) -> Callable[[Row], list[Row]]:
    """The same as a list, which is there at once."""
    made = children(number, nbytes)
    return lambda row: list(made(row))


def wide(columns: int) -> Callable[[Batch], Batch]:
    """A function of batches that adds so many floats to each row."""
    return lambda batch: {"k": batch["id"], "v": np.ones((len(batch["id"]), columns))}


def numbers(n: int) -> dml.Dataset:
    """The first ``n`` whole numbers."""
    return dml.range(n)


def floats(n: int, columns: int) -> dml.Dataset:
    """``n`` rows of random numbers, in so many columns."""
    return numbers(n).select(k=col("id"), **{f"x{i}": dml.random(stream=i) for i in range(columns)})


def large(rows: int, nbytes: int = MB) -> dml.Dataset:
    """So many rows of so many bytes."""
    return numbers(rows).map(sized(lambda _: nbytes))


def declared(rows: int) -> dml.Dataset:
    """Rows of a megabyte whose columns are known beforehand."""
    schema = {"g": "int64", "b": "binary"}
    return numbers(rows).map(lambda row: {"g": row["id"], "b": ones(MB)}, schema=schema)


def lists(lengths: Callable[[int], int], rows: int) -> dml.Dataset:
    """Rows with lists of so many numbers."""
    return numbers(rows).map(lambda row: {"k": row["id"], "v": [7] * lengths(row["id"])})


def doubled() -> dml.Dataset:
    """Text that doubles twelve times, without Python."""
    ds = numbers(ATOM).select(k=col("id"), s=dml.lit("ab"))
    for _ in range(12):
        ds = ds.with_columns(s=col("s").str.concat(col("s")))
    return ds.batch(100)


def by_key(rows: int, keys: int) -> dml.Dataset:
    """Numbers with a key ``g``, of so many."""
    return numbers(rows).select(k=col("id"), g=col("id") % keys)


def unequal(longest: int) -> dml.Dataset:
    """2048 lists of three numbers, but for one."""
    return lists(lambda k: longest if k == 700 else 3, 2048)


def sums(batch: Batch) -> Batch:
    """One row of a group."""
    return {"k": np.array([batch["k"].sum()])}


LADDER = (1, 10, 100, 1000, 10_000, 1 * MB, 10 * MB, 60 * MB)
LAST = len(LADDER)

EXPLODING = {
    "many children": Case(
        lambda _: numbers(4).flat_map(children(100_000, 1)), 400_000, 4 * below(100_000)
    ),
    "large children": Case(
        lambda _: numbers(20).flat_map(children(30, MB)).batch(4), 600, 20 * below(30)
    ),
    "children at once": Case(
        lambda _: numbers(12).flat_map(at_once(40, MB)).batch(4), 480, 12 * below(40)
    ),
    "children of children": Case(
        lambda _: (
            numbers(2)
            .flat_map(children(20, 10))
            .flat_map(children(20, 10))
            .flat_map(children(300, 10))
        ),
        240_000,
        800 * below(300),
    ),
    "batches times a hundred": Case(
        lambda _: (
            numbers(8 * ATOM).map_batches(lambda b: {"k": np.repeat(b["id"], 100)}).batch(ATOM)
        ),
        800 * ATOM,
        100 * below(8 * ATOM),
    ),
    "batches grow wide": Case(
        lambda _: numbers(6 * ATOM).map_batches(wide(50)).batch(256), 6 * ATOM, below(6 * ATOM)
    ),
    "an atom grows beyond the number": Case(
        lambda _: numbers(4 * ATOM).map_batches(wide(400)).batch(256),
        *(4 * ATOM, below(4 * ATOM), EITHER),
    ),
    "lists explode": Case(
        lambda _: (
            numbers(200).map(lambda row: {"k": [row["id"]] * 50_000}).explode("k").batch(10_000)
        ),
        10_000_000,
        50_000 * below(200),
    ),
    "text grows in Python": Case(
        lambda _: numbers(3000).map(lambda row: {"k": row["id"], "s": "x" * 100_000}).batch(16),
        *(3000, below(3000)),
    ),
    "text grows in expressions": Case(lambda _: doubled(), ATOM, below(ATOM), EITHER),
    "one of two thousand": Case(
        lambda _: numbers(ATOM).select(k=col("id"), v=(col("id") % 2000).one_hot(2000)).batch(256),
        *(ATOM, below(ATOM), EITHER),
    ),
    "five hundred columns": Case(
        lambda _: (
            numbers(4 * ATOM)
            .select(k=col("id"))
            .with_columns(**{f"c{i}": col("k") + i for i in range(500)})
            .batch(256)
        ),
        *(4 * ATOM, below(4 * ATOM), EITHER),
    ),
    "atoms grow in Python": Case(
        lambda _: (
            large(300, 100_000)
            .map(lambda row: {"k": row["k"], "b": row["b"] * 10})
            .map(lambda row: {"k": row["k"], "n": len(row["b"]), "b": row["b"][:9]})
        ),
        *(300, below(300)),
    ),
}

UNEQUAL = {
    "Parquet of unequal rows": Case(lambda f: files.skewed(f).batch(2), 400, below(400)),
    "one row of 60 MB": Case(
        lambda _: numbers(2000).map(sized(lambda k: 60 * MB if k == 1000 else 10)),
        *(2000, below(2000), EITHER),
    ),
    "one row of 200 MB": Case(
        lambda _: numbers(100).map(sized(lambda k: 200 * MB if k == 50 else 10)),
        *(100, below(100), ERROR),
    ),
    "children from 1 B to 60 MB": Case(
        lambda _: numbers(8).flat_map(
            lambda _row: ({"k": i, "b": ones(n)} for i, n in enumerate(LADDER))
        ),
        *(8 * LAST, 8 * below(LAST), EITHER),
    ),
    "rows from 1 B to 10 MB": Case(
        lambda _: numbers(120).map(sized(lambda k: LADDER[k % (LAST - 1)])), 120, below(120)
    ),
    "a batch of huge rows": Case(lambda _: large(256, 2 * MB).batch(64), 256, below(256), ERROR),
    "batches of large rows": Case(lambda _: large(800, MB // 2).batch(16), 800, below(800)),
    "groups of large rows": Case(
        lambda _: large(400).map_batches(lambda b: {"k": b["k"]}, batch_size=8).batch(10),
        *(400, below(400), EITHER),
    ),
    "a huge list of lists": Case(lambda f: files.nested(f).batch(10), 1000, below(1000), EITHER),
    "lists padded to the longest": Case(
        lambda _: unequal(200_000).padded_batch(512), 2048, below(2048), ERROR
    ),
    "lists side by side": Case(lambda _: unequal(200_000).ragged_batch(512), 2048, below(2048)),
    "buckets of unequal lists": Case(
        lambda _: lists(lambda k: 10 ** (k % 6), 600).bucket_by_length(
            "v", [100, 10_000], [64, 16, 4]
        ),
        *(600, below(600), EITHER),
    ),
    "lists packed": Case(
        lambda _: lists(lambda k: 10 ** (k % 5), 600).select("v").pack(100_000, "v"),
        *(-1, 7 * 120 * 11_111),
        column="v",
    ),
}

CONSUMERS = {
    "a slow consumer": Case(
        lambda _: floats(20 * ATOM, 8).batch(4096), 20 * ATOM, below(20 * ATOM), verb="slow"
    ),
    "a slow consumer of large rows": Case(
        lambda _: large(400).batch(4), 400, below(400), verb="slow"
    ),
    "batches ahead": Case(
        lambda _: large(400).batch(4).prefetch(1000), 400, below(400), verb="slow"
    ),
    "ranks, one of them slow": Case(lambda _: large(300).batch(4), 300, below(300), verb="split"),
    "an epoch kept": Case(lambda _: large(300).cache().batch(4), 600, 2 * below(300), verb="twice"),
    "three passes": Case(lambda _: large(200).repeat(3).batch(4), 600, 3 * below(200)),
    "files of large rows": Case(lambda _: large(400), 400, below(400), verb="parquet"),
    "lines of large rows": Case(
        lambda _: numbers(400).map(lambda row: {"k": row["id"], "s": "x" * MB}),
        *(400, below(400)),
        verb="csv",
    ),
    "files of children": Case(
        lambda _: numbers(20).flat_map(children(30, MB)), 600, 20 * below(30), verb="parquet"
    ),
}

INPUTS = {
    "a union of forty": Case(
        lambda _: dml.concat(*(large(100, 100_000) for _ in range(40))).batch(10),
        *(4000, 40 * below(100), EITHER),
    ),
    "four zipped": Case(
        lambda _: dml.zip(
            large(200), *(large(200).rename({"k": f"k{i}", "b": f"b{i}"}) for i in range(3))
        ).batch(2),
        *(200, below(200), EITHER),
    ),
    "eight interleaved": Case(
        lambda _: dml.interleave(*(large(30) for _ in range(8))).batch(2),
        *(240, 8 * below(30), EITHER),
    ),
    "eight mixed": Case(
        lambda _: dml.mix(*(large(60) for _ in range(8))).batch(2),
        *(480, 8 * below(60), EITHER),
    ),
    "a text file with a line of 30 MB": Case(lambda f: files.long_line(f, "txt"), 2000, 0, EITHER),
    "a CSV file with a line of 30 MB": Case(
        lambda f: files.long_line(f, "csv"), 2000, below(2000), EITHER
    ),
    "a JSON file with a line of 30 MB": Case(
        lambda f: files.long_line(f, "json"), 2000, below(2000), EITHER
    ),
    "packed lines": Case(lambda f: files.packed_lines(f).batch(1000), 300_000, 300_000),
    "one row group of 200 MB": Case(
        lambda f: files.one_group(f).batch(4096), 3_000_000, below(3_000_000), EITHER
    ),
    "rows of a generator": Case(
        lambda _: dml.from_generator(files.generated).batch(4), 300, below(300), EITHER
    ),
    "files of 20 MB": Case(files.blobs, 12, 12),
    "a NumPy file of 300 MB": Case(lambda f: files.tiles(f).batch(64), 30_000, 30_000),
}

GATHERING = {
    "windows that overlap": Case(
        lambda _: floats(6000, 8).window(3000, shift=10),
        *(301 * 3000, 30_000 * below(301) + 301 * below(3000)),
    ),
    "windows of large rows": Case(lambda _: large(300).window(100, shift=10), 0, 0, ERROR),
    "a join of one key": Case(
        lambda _: (
            by_key(3000, 1).join(by_key(3000, 1).select("g", y=col("k")), on="g").batch(10_000)
        ),
        *(9_000_000, 3000 * below(3000)),
    ),
    "a join with large rows": Case(
        lambda _: by_key(300, 300).join(declared(300), on="g").batch(2),
        *(300, below(300), EITHER),
    ),
    "a group of all rows": Case(
        lambda _: by_key(3_000_000, 1).group_by("g").agg(k=col("k").sum()), 1, below(3_000_000)
    ),
    "a list of all rows": Case(
        lambda _: by_key(20_000_000, 1).group_by("g").agg(v=col("k").implode()),
        *(1, 0, ERROR),
    ),
    "a function of a group of all rows": Case(
        lambda _: by_key(10_000_000, 1).group_by("g").map_groups(sums),
        *(1, below(10_000_000), EITHER),
    ),
    "windows by key": Case(
        lambda _: by_key(300_000, 3).group_by_window("g", 5000), 300_000, below(300_000)
    ),
    "distinct rows": Case(
        lambda _: floats(2_000_000, 2).drop_duplicates("x0").batch(4096),
        *(2_000_000, below(2_000_000)),
    ),
    "all rows sorted": Case(
        lambda _: floats(20 * ATOM, 24).sort("x3").batch(4096), 20 * ATOM, below(20 * ATOM)
    ),
    "large rows sorted": Case(
        lambda _: large(400).sort(col("k") % 97).batch(4), 400, below(400), EITHER
    ),
    "all rows shuffled": Case(
        lambda _: floats(20 * ATOM, 24).shuffle().batch(4096), 20 * ATOM, below(20 * ATOM)
    ),
    "large rows shuffled": Case(lambda _: large(400).shuffle().batch(4), 400, below(400), EITHER),
    "a window of large rows shuffled": Case(
        lambda _: large(400).shuffle(200).batch(4), 400, below(400), ERROR
    ),
    "atoms shuffled": Case(
        lambda _: floats(40 * ATOM, 16).shuffle(window="atoms", size=16).batch(4096),
        *(40 * ATOM, below(40 * ATOM), EITHER),
    ),
}

CASES = {**EXPLODING, **UNEQUAL, **CONSUMERS, **INPUTS, **GATHERING}
# Those that read files, which somebody else writes before.
READING = {
    *("Parquet of unequal rows", "a huge list of lists"),
    *(name for name in INPUTS if "file" in name or "group" in name or "lines" in name),
}
