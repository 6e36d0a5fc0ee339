"""Draw pipelines that expose wrong laws: few rows, and operators that affect each other.

Filters select some rows, casts fail on some, slices end within the data, and draws, caches and
several inputs are adjacent. The pipelines of ``dml.testing.strategies`` have all features; these
have the features that laws concern more often.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import dml
from dml import col
from dml.testing.draws import Drawn
from dml.testing.executions import PLAIN, WRITTEN, random_way
from tests.laws.cases import Case

Step = Callable[[random.Random, dml.Dataset], dml.Dataset]
LONGEST = 7


def table(draw: random.Random) -> dml.Dataset:
    """Up to forty rows in small atoms: numbers, a key with nulls, lists."""
    n = draw.choice([1, 5, 12, 20, 30, 40])
    columns: dict[str, list[Any]] = {
        "id": list(range(n)),
        "x": [i * 7 % 11 / 4 for i in range(n)],
        "key": [None if i % 5 == 3 else f"k{i % 3}" for i in range(n)],
    }
    if draw.random() < 0.4:
        columns["list"] = [list(range(i % 3)) for i in range(n)]
    return dml.from_dict(columns, atom_rows=draw.choice([2, 3, 8]))


def hurtful(draw: random.Random) -> dml.Column:
    """A cast that fails on rows beyond some id, if there are any."""
    return (col("id") * draw.randint(2, 12)).cast("int8")


def kept(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """Some of the rows."""
    n = draw.randint(3, 5)
    tests = [
        col("id") % n != draw.randrange(n),
        col("id") < draw.randint(4, 35),
        col("id") > draw.randint(0, 5),
        col("x") > draw.choice([0.1, 0.3, 1.1]),
        dml.random() < 0.7,
        col("key") != "k1",
        hurtful(draw) >= 0,
    ]
    return ds.filter(draw.choice(tests))


def guarded(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """What may fail, behind what spares it the rows it would fail on."""
    factor = draw.randint(4, 20)
    sure = col("id") <= 127 // factor
    fits = (col("id") * factor).cast("int8") >= 0
    return ds.filter(sure).filter(fits) if draw.random() < 0.5 else ds.filter(sure & fits)


def spared(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """What fails on the first rows, behind a skip of those."""
    n = draw.randint(1, 4)
    return ds.skip(n).with_columns(c=((col("id") - n) * 60 + 120).clip(-200, 120).cast("uint8"))


def made(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """Another column in the place of an old one."""
    values = [col("x") * 2 + 1, dml.random(), hurtful(draw).cast("float64"), col("x") - col("id")]
    if draw.random() < 0.3:
        made = ds.map(halved)
        return made if made._node.schema.known else ds.map(halved, schema=dict(ds.schema))
    return ds.with_columns(x=draw.choice(values))


def halved(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "x": row["x"] * 0.5}


def beside(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """Columns of others beside these."""
    if "other" in ds.columns:
        return ds
    return ds.zip(table(draw).select("id").rename({"id": "other"}))


def several(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """These and some of them again."""
    more = draw.choice([kept, kept, sliced])(draw, ds)
    verbs: list[Callable[[], dml.Dataset]] = [
        lambda: ds.concat(more),
        lambda: ds.mix(more, weights=[2, 1]),
        lambda: ds.interleave(more, block_length=2),
    ]
    return draw.choice(verbs)()


def sliced(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """A run of the rows, or every n-th."""
    n = draw.randint(0, 9)
    verbs: list[Callable[[], dml.Dataset]] = [
        lambda: ds.take(n + 1),
        lambda: ds.skip(n),
        lambda: ds.shard(2, n % 2),
        lambda: ds.shard(3, n % 3),
    ]
    return draw.choice(verbs)()


def ordered(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """Another order."""
    verbs: list[Callable[[], dml.Dataset]] = [
        ds.shuffle,
        lambda: ds.shuffle(draw.randint(2, 6)),
        lambda: ds.sort("key", descending=draw.random() < 0.5),
        lambda: ds.sort(["x", "id"], [draw.random() < 0.5, draw.random() < 0.5]),
    ]
    return draw.choice(verbs)()


def again(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """Passes, and what is kept."""
    return ds.repeat(2) if draw.random() < 0.5 else ds.cache()


def taken_apart(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """Rows that become several, or part of them."""
    verbs: list[Callable[[], dml.Dataset]] = [
        lambda: ds.split([0.6, 0.4], seed=2)[draw.randrange(2)],
        lambda: ds.flat_map(twice, schema=dict(ds.schema)),
        lambda: ds.batch(3).unbatch(),
    ]
    if pa.types.is_list(dict(ds.schema).get("list", pa.null())):
        verbs.append(lambda: ds.explode("list"))
    return draw.choice(verbs)()


def gathered(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """Groups of rows, or rows that others have, too."""
    names = [name for name in ds.columns if name not in ("id", "key")]
    figures = {name: col(name).first() for name in names}
    other = table(draw).select("id")
    verbs: list[Callable[[], dml.Dataset]] = [
        lambda: ds.group_by("id", "key").agg(**figures),
        lambda: ds.join(other, on="id", how=draw.choice(["semi", "anti", "inner"])),
        lambda: ds.drop_duplicates(["id"]),
    ]
    return draw.choice(verbs)()


def twice(row: dict[str, object]) -> list[dict[str, object]]:
    return [dict(row) for _ in range(1 + len(str(row["x"])) % 2)]


def counted(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """A number for each row."""
    return ds if "n" in ds.columns else ds.with_row_index("n", offset=draw.randint(0, 3))


def worded(draw: random.Random, ds: dml.Dataset) -> dml.Dataset:
    """A function of text that a filter and columns both need."""
    word = col("key").str.to_uppercase()
    ds = ds.with_columns(word=word).filter(col("word") != f"K{draw.randrange(4)}")
    return ds.with_columns(size=word.str.len_bytes() + col("id"))


STEPS: tuple[Step, ...] = (
    *(kept, kept, kept, guarded, spared, made, made),
    *(beside, several, sliced, sliced, ordered, again, taken_apart, gathered, counted, worded),
)


def dense(number: int) -> Case:
    """Case ``number`` of these: the same for ever, but for changes of this file."""
    draw = random.Random(number)
    ds = table(draw)
    for _ in range(draw.randint(2, LONGEST)):
        ds = draw.choice(STEPS)(draw, ds)
    if draw.random() < 0.4:
        ds = ds.batch(draw.randint(1, 5), drop_last=draw.random() < 0.3)
        ds = draw.choice([kept, sliced])(draw, ds)
    drawn = Drawn(ds, dict(ds.schema))
    return Case(number, drawn, draw.choice([0, 1]), 0, [WRITTEN, PLAIN, random_way(draw)])
