"""More steps of drawn pipelines: states, errors, choices, caches, ragged batches."""

from __future__ import annotations

import random
from typing import Any

import dml
from dml import col
from tests.peers.tf_pairs import Pair, source

LONGEST = 6  # of the lists that rows have


def running(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """A number that follows from all rows before."""
    begin, m = rng.randrange(9), rng.choice((7, 1009))

    def following(state: Any, row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        made = (state * 3 + row["i"]) % m
        return made, {**row, "i": made}

    return pair.then(
        f"scan({begin}, {m})",
        lambda d: d.scan(begin, following, schema=d.schema),
        lambda t: t.scan(tf.constant(begin, tf.int64), following),
    )


def placed(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    a = rng.randrange(-2, 3)

    def changed(index: Any, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "i": row["i"] + index * a}

    return pair.then(
        f"map_with_index({a})",
        lambda d: d.map_with_index(changed, schema=d.schema),
        lambda t: t.enumerate().map(changed),
    )


def kept_for_later(_tf: Any, _rng: random.Random, pair: Pair) -> Pair:
    return pair.then("cache", lambda d: d.cache(), lambda t: t.cache())


def failing(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """Rows for which a function raises are passed over."""
    m = rng.randrange(2, 5)
    r = rng.randrange(m)

    def ours(row: dict[str, Any]) -> dict[str, Any]:
        if row["i"] % m == r:
            raise ValueError(row["i"])
        return {**row, "i": row["i"] + 1}

    def theirs(row: dict[str, Any]) -> dict[str, Any]:
        with tf.control_dependencies([tf.debugging.Assert(row["i"] % m != r, [row["i"]])]):
            return {**row, "i": row["i"] + 1}

    return pair.then(
        f"map(raises of {r} by {m}).ignore_errors",
        lambda d: d.map(ours, schema=d.schema).ignore_errors(),
        lambda t: t.map(theirs).ignore_errors(),
    )


def unsure(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """A predicate that raises for some rows, which are lost, and is false for others."""
    m = rng.randrange(3, 6)

    def ours(row: dict[str, Any]) -> bool:
        if row["i"] % m == 0:
            raise ValueError(row["i"])
        return bool(row["i"] % m != 1)

    def theirs(row: dict[str, Any]) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(row["i"] % m != 0, [row["i"]])]):
            return row["i"] % m != 1

    return pair.then(
        f"filter(raises by {m}).ignore_errors",
        lambda d: d.filter(ours).ignore_errors(),
        lambda t: t.filter(theirs).ignore_errors(),
    )


def until_told(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """``take_while`` by a function."""
    c = rng.choice((30, 45, 49))
    return pair.then(
        f"take_while(function, {c})",
        lambda d: d.take_while(lambda row: row["i"] < c),
        lambda t: t.take_while(lambda row: row["i"] < c),
    )


def picked(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """Others of the same columns, in the order that drawn numbers say."""
    if pair.indexed:
        return pair
    others = [source(tf, rng, lists=pair.lists) for _ in range(rng.randrange(1, 3))]
    numbers = [rng.randrange(len(others) + 1) for _ in range(rng.choice((0, 10, 80)))]
    stop = rng.random() < 0.5
    ours = dml.from_items(numbers, schema={"item": "int64"})

    def chosen(t: Any) -> Any:
        every = [t, *(other for _, other in others)]
        selector = tf.data.Dataset.from_tensor_slices(tf.constant(numbers, tf.int64))
        return tf.data.Dataset.choose_from_datasets(every, selector, stop_on_empty_dataset=stop)

    return pair.then(
        f"choose_from_datasets({numbers}, {stop})",
        lambda d: dml.choose_from_datasets([d, *(other for other, _ in others)], ours, stop),
        chosen,
    )


def distinct(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """tf.data has it for elements of one value: it is all that a row keeps."""
    name = rng.choice("it")

    def ours(d: Any) -> Any:
        found = d.select(name).drop_duplicates()
        i = col("i") if name == "i" else col("t").str.len_bytes()
        made = found.with_columns(i=i, f=i * 0.5, t=dml.lit("x") if name == "i" else col("t"))
        return made.select("i", "f", "t")

    def widened(value: Any) -> dict[str, Any]:
        i = value if name == "i" else tf.cast(tf.strings.length(value), tf.int64)
        half = tf.cast(i, tf.float64) * 0.5
        return {"i": i, "f": half, "t": "x" if name == "i" else value}

    def theirs(t: Any) -> Any:
        return t.map(lambda row: row[name]).unique().map(widened)

    return pair.then(f"unique({name})", ours, theirs, lists=False, indexed=False)


def ragged(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """A ragged tensor is its values and its offsets."""
    if not pair.lists:
        return pair
    n, drop = rng.randrange(1, 9), rng.random() < 0.5

    def apart(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "l": batch["l"].values, "l_offsets": batch["l"].row_splits}

    return pair.then(
        f"ragged_batch({n}, {drop})",
        lambda d: d.ragged_batch(n, drop_last=drop),
        lambda t: t.ragged_batch(n, drop_remainder=drop).map(apart),
        kind="ragged",
    )


def filled(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """Padded with a value of one's own, perhaps to a width of one's own.

    Nothing takes padded batches apart: in dml the lists come back as they were, in tf.data padded.
    """
    if not pair.lists:
        return pair
    n, value = rng.randrange(1, 9), rng.choice((-1, 7))
    width = rng.choice((None, LONGEST, 9))
    names = [*("i", "f", "t", "l"), *(["index"] if pair.indexed else [])]
    values = dict.fromkeys(names) | {"l": tf.constant(value, tf.int64)}
    shapes = {name: [width] if name == "l" else [] for name in names}
    return pair.then(
        f"padded_batch({n}, {value}, {width})",
        lambda d: d.padded_batch(n, padding_values={"l": value}, pad_to=width),
        lambda t: t.padded_batch(n, padded_shapes=shapes, padding_values=values),
        kind="padded",
    )


def batch_mapped(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """A function of the arrays of a batch."""
    a, b = rng.randrange(-3, 4), rng.randrange(10)

    def changed(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "i": batch["i"] * a + b, "f": batch["f"] * 0.5}

    return pair.then(
        f"map of batches({a}, {b})",
        lambda d: d.map(changed, schema=d.schema),
        lambda t: t.map(changed),
    )
