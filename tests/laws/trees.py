"""Draw trees of operators: functions below and above operators of one or several inputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import dml
from dml.api.dataset import Dataset

Draw = random.Random
Row = dict[str, Any]
Calls = Callable[[], Any]


class Functions:
    """Functions of rows with a column ``id``; ``called`` hears of each call."""

    def __init__(self, called: Calls) -> None:
        self.called = called

    def same(self, row: Row) -> Row:
        self.called()
        return {"id": row["id"]}

    def jitter(self, row: Row, rng: Any) -> Row:
        self.called()
        return {"id": row["id"] + int(rng.integers(0, 2))}

    def keep(self, row: Row) -> bool:
        self.called()
        return bool(row["id"] % 3)

    def expand(self, row: Row) -> list[Row]:
        self.called()
        return [{"id": row["id"] + part} for part in range(row["id"] % 3)]

    def columns(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.called()
        return {"id": batch["id"] + 1}

    def losing(self, row: Row) -> Row:
        self.called()
        return {"id": 6 // (row["id"] % 5) + row["id"]}


def source(draw: Draw) -> Dataset:
    rows, atom = draw.choice([0, 1, 7, 20, 40]), draw.choice([1, 3, 8])
    if draw.random() < 0.5:
        return dml.range(rows, atom_rows=atom)
    return dml.from_items([{"id": number} for number in range(rows)])


def function(draw: Draw, ds: Dataset, f: Functions) -> Dataset:
    needs: dict[str, Any] = draw.choice([{}, {}, {}, {"concurrency": 1}, {"num_cpus": 2}])
    schema = draw.choice([None, {"id": "int64"}])
    verbs: list[Callable[[], Dataset]] = [
        lambda: ds.map(f.same, schema=schema, **needs),
        lambda: ds.map(f.losing, on_error="skip", **needs),
        lambda: ds.filter(f.keep, **needs),
        lambda: ds.flat_map(f.expand, **needs),
        lambda: ds.random_map(f.jitter, **needs),
        lambda: ds.map_batches(f.columns, batch_size=draw.choice([2, 5]), **needs),
        lambda: ds.batch(draw.choice([2, 5])).map(f.columns, schema=schema, **needs).unbatch(),
    ]
    return draw.choice(verbs)()


def above(draw: Draw, ds: Dataset) -> Dataset:
    n = draw.choice([1, 3, 10])
    verbs: list[Callable[[], Dataset]] = [
        lambda: ds.shuffle(n),
        ds.shuffle,
        lambda: ds.batch(n).unbatch(),
        lambda: ds.take(n * 3),
        lambda: ds.skip(n),
        lambda: ds.shard(2, 1),
        lambda: ds.repeat(2),
        lambda: ds.sort("id"),
        ds.cache,
        lambda: ds.take_while(dml.col("id") < 30),
        lambda: ds.scan(0, lambda state, row: (state + 1, {"id": row["id"] + state % 2})),
    ]
    return draw.choice(verbs)()


def merged(draw: Draw, one: Dataset, other: Dataset) -> Dataset:
    verbs: list[Callable[[], Dataset]] = [
        lambda: one.concat(other),
        lambda: one.mix(other),
        lambda: dml.zip(one, other.rename({"id": "other"})),
        lambda: one.interleave(other, block_length=2),
        lambda: one.join(other.take(9).rename({"id": "key"}), left_on="id", right_on="key"),
    ]
    return draw.choice(verbs)()


def tree(draw: Draw, f: Functions, depth: int) -> Dataset:
    """A tree of at most so many operators one above the other, most of which have functions."""
    if depth == 0:
        return source(draw)
    below = tree(draw, f, depth - 1)
    kind = draw.choice(["function", "function", "above", "merged"])
    if kind == "function":
        return function(draw, below, f)
    if kind == "above":
        return above(draw, below)
    same = draw.random() < 0.2  # both inputs are made once
    return merged(draw, below, below if same else tree(draw, f, draw.randrange(depth))).select("id")
