"""Draw pipelines, and write each of them with dml and with tf.data.

A step takes the pair of pipelines and draws its own parameters, so that both have the same. Only
operators that are deterministic in both libraries are drawn.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from dml import col
from tests.peers import tf_steps
from tests.peers.tf_pairs import Pair, Step, source


def take(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    n = rng.choice((0, 1, 5, 20, 100))
    return pair.then(f"take({n})", lambda d: d.take(n), lambda t: t.take(n))


def skip(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    n = rng.choice((0, 1, 4, 15))
    return pair.then(f"skip({n})", lambda d: d.skip(n), lambda t: t.skip(n))


def repeat(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    n = rng.randrange(1, 4)
    return pair.then(f"repeat({n})", lambda d: d.repeat(n), lambda t: t.repeat(n))


def shard(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    n = rng.randrange(1, 4)
    i = rng.randrange(n)
    return pair.then(f"shard({n}, {i})", lambda d: d.shard(n, i), lambda t: t.shard(n, i))


def ahead(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    n = rng.randrange(1, 4)
    return pair.then(f"prefetch({n})", lambda d: d.prefetch(n), lambda t: t.prefetch(n))


def scaled(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """Whole numbers and floats, as expressions or, of rows, by a function."""
    a, b = rng.randrange(-3, 4), rng.randrange(10)

    def changed(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "i": row["i"] * a + b, "f": row["f"] * 0.5 - 1.0}

    if pair.kind == "rows" and rng.random() < 0.5:
        return pair.then(
            f"map({a}, {b})",
            lambda d: d.map(changed, schema=d.schema),
            lambda t: t.map(changed),
        )
    return pair.then(
        f"with_columns({a}, {b})",
        lambda d: d.with_columns(i=col("i") * a + b, f=col("f") * 0.5 - 1.0),
        lambda t: t.map(changed),
    )


def kept(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    m = rng.randrange(2, 5)
    r = rng.randrange(m)
    ours = (col("i") % m) != r if rng.random() < 0.5 else (lambda row: row["i"] % m != r)
    return pair.then(
        f"filter({m}, {r})", lambda d: d.filter(ours), lambda t: t.filter(lambda x: x["i"] % m != r)
    )


def until(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    c = rng.choice((20, 40, 49))
    return pair.then(
        f"take_while({c})",
        lambda d: d.take_while(col("i") < c),
        lambda t: t.take_while(lambda x: x["i"] < c),
    )


def numbered(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    start = rng.choice((0, 7))
    return pair.then(
        f"enumerate({start})",
        lambda d: d.enumerate(start),
        lambda t: t.enumerate(start).map(lambda n, row: {"index": n, **row}),
        indexed=True,
    )


def several(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """Up to two rows of each."""
    m = rng.randrange(2, 4)

    def copies(row: Any) -> Any:
        made = tf.data.Dataset.range(row["i"] % m)
        return made.map(lambda j: {**row, "i": row["i"] + j})

    return pair.then(
        f"flat_map({m})",
        lambda d: d.flat_map(
            lambda row: [{**row, "i": row["i"] + j} for j in range(row["i"] % m)],
            schema=d.schema,  # tf.data's signature of the source says it: a list may be empty
        ),
        lambda t: t.flat_map(copies),
    )


def more(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """tf.data cannot iterate over lists that were chosen and then concatenated."""
    if pair.indexed or (pair.lists and any(text.startswith("choose") for text in pair.text)):
        return pair
    ours, theirs = source(tf, rng, lists=pair.lists)
    return pair.then("concat", lambda d: d.concat(ours), lambda t: t.concatenate(theirs))


def beside(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    """The other side's number and text are added up, or kept where both have none."""
    ours, theirs = source(tf, rng, lists=False)
    other = ours.select("i").rename({"i": "j"})
    return pair.then(
        "zip",
        lambda d: d.zip(other).with_columns(i=col("i") + col("j")).drop("j"),
        lambda t: type(t).zip((t, theirs)).map(lambda a, b: {**a, "i": a["i"] + b["i"]}),
    )


def turns(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    if pair.indexed:
        return pair
    block = rng.randrange(1, 4)
    others = [source(tf, rng, lists=pair.lists) for _ in range(rng.randrange(1, 3))]
    count = len(others) + 1

    def woven(first: Any) -> Any:
        every = [first, *(theirs for _, theirs in others)]

        def branch(k: Any) -> Any:
            chosen = tf.data.Dataset.from_tensors(k).repeat()
            return tf.data.Dataset.choose_from_datasets(every, chosen)

        return tf.data.Dataset.range(count).interleave(
            branch, cycle_length=count, block_length=block, num_parallel_calls=None
        )

    return pair.then(
        f"interleave({count}, {block})",
        lambda d: d.interleave(*(ours for ours, _ in others), block_length=block),
        woven,
    )


def batched(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    n, drop = rng.randrange(1, 9), rng.random() < 0.5
    if pair.lists:
        return pair.then(
            f"padded_batch({n}, {drop})",
            lambda d: d.padded_batch(n, drop_last=drop),
            lambda t: t.padded_batch(n, drop_remainder=drop),
            kind="padded",
        )
    return pair.then(
        f"batch({n}, {drop})",
        lambda d: d.batch(n, drop_last=drop),
        lambda t: t.batch(n, drop_remainder=drop),
        kind="batches",
    )


def grouped(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    if pair.lists:
        return pair
    m, n = rng.randrange(1, 4), rng.randrange(1, 6)
    return pair.then(
        f"group_by_window({m}, {n})",
        lambda d: d.group_by_window(col("i") % m, n),
        lambda t: t.group_by_window(lambda x: x["i"] % m, lambda _k, d: d.batch(n), window_size=n),
        kind="batches",
    )


def bucketed(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    if not pair.lists:
        return pair
    bounds = sorted(rng.sample(range(1, 7), 2))
    sizes = [rng.randrange(1, 6) for _ in range(3)]
    drop = rng.random() < 0.5
    return pair.then(
        f"bucket_by_length({bounds}, {sizes}, {drop})",
        lambda d: d.bucket_by_length("l", bounds, sizes, drop_last=drop),
        lambda t: t.bucket_by_sequence_length(
            lambda x: tf.shape(x["l"])[0], bounds, sizes, drop_remainder=drop
        ),
        kind="padded",
    )


def slid(tf: Any, rng: random.Random, pair: Pair) -> Pair:
    if pair.lists:
        return pair
    size, shift, stride = rng.randrange(1, 6), rng.randrange(1, 5), rng.randrange(1, 3)
    drop = rng.random() < 0.5

    def side_by_side(w: Any) -> Any:
        return tf.data.Dataset.zip({name: w[name].batch(size) for name in w})

    return pair.then(
        f"window({size}, {shift}, {stride}, {drop})",
        lambda d: d.window(size, shift, stride, drop_last=drop),
        lambda t: t.window(size, shift, stride, drop_remainder=drop).flat_map(side_by_side),
        kind="batches",
    )


def apart(_tf: Any, _rng: random.Random, pair: Pair) -> Pair:
    return pair.then("unbatch", lambda d: d.unbatch(), lambda t: t.unbatch(), kind="rows")


def again(_tf: Any, rng: random.Random, pair: Pair) -> Pair:
    n, drop = rng.randrange(1, 9), rng.random() < 0.5
    return pair.then(
        f"rebatch({n}, {drop})",
        lambda d: d.rebatch(n, drop_last=drop),
        lambda t: t.rebatch(n, drop_remainder=drop),
    )


ANY: tuple[Step, ...] = (take, skip, repeat, shard, ahead, scaled, tf_steps.kept_for_later)
ROWS: tuple[Step, ...] = (
    *(*ANY, kept, until, numbered, several, more, beside, turns, batched, grouped),
    *(bucketed, slid, batched),
    *(tf_steps.running, tf_steps.placed, tf_steps.failing, tf_steps.unsure),
    *(tf_steps.until_told, tf_steps.picked, tf_steps.distinct),
    *(tf_steps.ragged, tf_steps.filled),
)
BATCHES: tuple[Step, ...] = (*ANY, apart, again, apart, tf_steps.batch_mapped)
STEPS = {"rows": ROWS, "batches": BATCHES, "padded": ANY, "ragged": ANY}


def drawn(tf: Any, seed: int) -> Pair:
    """The pipeline number ``seed`` in both libraries."""
    rng = random.Random(seed)
    lists = rng.random() < 0.4
    ours, theirs = source(tf, rng, lists=lists)
    pair = Pair(ours, theirs, lists)
    for _ in range(rng.randrange(2, 9)):
        step = rng.choice(STEPS[pair.kind])
        if step is numbered and pair.indexed:
            continue
        pair = step(tf, rng, pair)
    return pair


def plain(element: dict[str, Any]) -> dict[str, Any]:
    """One form of an element of either library: bytes, numbers with their types, lists."""
    return {name: _plain(value) for name, value in sorted(element.items())}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):  # of a row: an empty one says nothing of its type
        value = np.array(value, dtype=np.int64)
    array = np.asarray(value)
    if array.dtype == object:
        return ["text", *(_plain(each) for each in array)]
    return array.dtype.str, array.shape, array.tobytes()
