"""Twenty-one named pipelines, as users write them, over generated data.

Each states how many bytes of state it may need for resuming, and how many source rows may be read
again; tests require one stream hash from every way of running it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml.api.dataset import Dataset
from dml.api.sources import files, objects
from dml.expr.columns.column import col, minimum, stack, when
from dml.expr.columns.column import random as draw

Row = dict[str, Any]
PEOPLE_ROWS, TEXT_ROWS = 600, 90
WORDS = ("the", "cat", "Sat", "on", "a", "mat", "naïve", "café", "", "data", "batch", "row")
# The smallest row group is read again whole, since readers cannot enter one in the middle.
GROUP = 100


@dataclasses.dataclass(frozen=True)
class NamedPipeline:
    """A pipeline with bounds: bytes of its operators' state, source rows read again on resuming."""

    make: Callable[[Path], Dataset]
    state_bytes: int = 0
    work_rows: int = 2 * GROUP


def write_data(folder: Path) -> Path:
    """Two Parquet sets below ``folder``: "people" (numbers, nulls) and "texts"."""
    choose = random.Random(7)  # noqa: S311 - fixtures are not secrets
    for number in range(3):
        part = folder / "people" / f"part-{number}.parquet"
        part.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_people(choose, number * 200, 200), part, row_group_size=GROUP)
    for number in range(3):
        part = folder / "texts" / f"{number}.parquet"
        part.parent.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(choose.choices(WORDS, k=choose.randint(0, 9))) for _ in range(30)]
        numbers = list(range(30 * number, 30 * number + 30))
        pq.write_table(pa.table({"line": lines, "number": numbers}), part, row_group_size=12)
    return folder


def _people(choose: random.Random, first: int, rows: int) -> pa.Table:
    def maybe(value: Any) -> Any:
        return None if choose.random() < 0.1 else value

    incomes = [
        maybe(choose.choice([choose.uniform(-10, 9e4), float("nan"), -0.0])) for _ in range(rows)
    ]
    return pa.table(
        {
            "person": pa.array(range(first, first + rows), pa.int64()),
            "age": pa.array([maybe(choose.randint(-1, 99)) for _ in range(rows)], pa.int16()),
            "income": pa.array(incomes, pa.float64()),
            "score": pa.array([choose.uniform(-3, 3) for _ in range(rows)], pa.float32()),
            "city": pa.array([maybe(choose.choice(WORDS)) for _ in range(rows)]),
            "label": pa.array([choose.random() < 0.3 for _ in range(rows)]),
        }
    )


def _parts(folder: Path) -> Dataset:
    return files.read_parquet(folder / "people", atom_rows=16)


def _texts(folder: Path) -> Dataset:
    return files.read_parquet(folder / "texts", atom_rows=5)


# ------------------------------------------------------------------------------- users' functions


def tokens(row: Row) -> Iterator[Row]:
    """One row per word."""
    for place, word in enumerate(row["line"].split()):
        yield {"number": row["number"], "place": place, "word": word.lower()}


def measured(row: Row) -> Row:
    """Add the length and vowels of a word, counted by a loop that cannot be lifted."""
    vowels = 0
    for letter in row["word"]:
        vowels += letter in "aeiouäéï"
    return {**row, "length": len(row["word"]), "vowels": vowels}


def wordy(row: Row) -> bool:
    """Keep lines of more than three words."""
    return sum(1 for _ in row["line"].split()) > 3


def jittered(row: Row, rng: Any) -> Row:
    """Add noise to the score, and draw a random crop offset."""
    shift = rng.normal() * 0.1
    return {"person": row["person"], "x": row["score"] + shift, "crop": int(rng.integers(0, 8))}


def swapped(row: Row, rng: Any) -> Row:
    """Put the words in random order."""
    words = row["line"].split()
    rng.shuffle(words)
    return {"number": row["number"], "line": " ".join(words)}


def normalised(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Scores of a batch minus their mean."""
    x = batch["score"].astype("f8")
    return {"person": batch["person"], "x": x - x.sum() / len(x)}


def padded(row: Row) -> Row:
    """The numbers of letters of the first four words."""
    sizes = [len(word) for word in row["line"].split()][:4]
    return {"number": row["number"], "sizes": np.array(sizes + [0] * (4 - len(sizes)))}


# -------------------------------------------------------------------------------------- pipelines


def _tabular_cleaning(folder: Path) -> Dataset:
    clean = _parts(folder).filter((col("age") >= 0) & col("income").is_not_null())
    rich = clean.with_columns(income=col("income").fill_nan(0.0), log=(col("income") + 11).log())
    return rich.select("person", "age", "income", "log").batch(32)


def _feature_engineering(folder: Path) -> Dataset:
    made = _parts(folder).with_columns(
        bucket=col("age").fill_null(0).bucketize([18, 30, 65]),
        city=col("city").hash(50).fill_null(0),
        ratio=col("income").fill_null(0.0) / (col("age").cast("f8").fill_null(1.0) + 2),
    )
    features = stack(col("score"), col("ratio").cast("f4", strict=False), lit_score())
    return made.with_columns(x=features).select("bucket", "city", "x", "label").batch(50)


def lit_score() -> Any:
    """A squashed score."""
    return when(col("score") > 0).then(col("score").sigmoid()).otherwise(col("score").tanh())


def _text_tokens(folder: Path) -> Dataset:
    return _texts(folder).flat_map(tokens).map(measured).batch(20)


def _text_vocabulary(folder: Path) -> Dataset:
    made = _texts(folder).filter(wordy).flat_map(tokens)
    return made.with_columns(token=col("word").hash(1000)).select("token", "place").batch(16)


def _shuffle_repeat_batch(folder: Path) -> Dataset:
    return _parts(folder).select("person", "score").shuffle(64, seed=1).repeat(2).batch(40)


def _full_shuffle(folder: Path) -> Dataset:
    return _parts(folder).filter(col("label")).shuffle().select("person", "score").batch(25)


def _keyed_shuffle(folder: Path) -> Dataset:
    return _texts(folder).flat_map(tokens).shuffle(seed=5).batch(30)


def _atoms_shuffle(folder: Path) -> Dataset:
    made = _parts(folder).shuffle(window="atoms", size=2).filter(col("score") > -1)
    return made.select("person", "score").batch(32, drop_last=True)


def _random_augmentation(folder: Path) -> Dataset:
    return _parts(folder).random_map(jittered, seed=3).shuffle(100).batch(48)


def _text_augmentation(folder: Path) -> Dataset:
    return _texts(folder).random_map(swapped).repeat(2).batch(16)


def _expression_augmentation(folder: Path) -> Dataset:
    made = _parts(folder).with_columns(x=col("score") * (0.9 + 0.2 * draw(stream=1)), u=draw())
    return made.filter(draw(seed=4) < 0.7).select("person", "x", "u").shuffle(30).batch(32)


def _hashed_split(folder: Path) -> Dataset:
    return _parts(folder).filter(col("person").hash(10) < 8).select("person", "label").batch(64)


def _slices(folder: Path) -> Dataset:
    return (
        _parts(folder).skip(37).filter(col("age") > 20).take(300).skip(5).select("person").batch(16)
    )


def _memory_shuffle(_folder: Path) -> Dataset:
    data = {"i": np.arange(500), "x": np.linspace(-1, 1, 500, dtype="f4")}
    return objects.from_dict(data, atom_rows=64).with_columns(y=col("x").exp()).shuffle().batch(60)


def _range_sums(_folder: Path) -> Dataset:
    made = objects.range(1000, atom_rows=77).with_columns(
        square=col("id") ** 2, third=col("id") // 3
    )
    return made.filter(col("square") % 7 != 1).batch(90, drop_last=True)


def _batches_normalised(folder: Path) -> Dataset:
    return _parts(folder).select("person", "score").batch(30).map(normalised)


def _batches_shuffled(folder: Path) -> Dataset:
    made = _parts(folder).select("person", "score").batch(16).shuffle(8, seed=2).repeat(2)
    return made.with_columns(clipped=minimum(col("score"), 1.0)).skip(3).take(60)


def _tensors(folder: Path) -> Dataset:
    made = _texts(folder).map(padded, schema={"number": "int64", "sizes": _sizes()})
    return made.with_columns(half=col("sizes") / 2, sizes=col("sizes").cast("f4")).batch(12)


def _sizes() -> pa.DataType:
    return pa.fixed_shape_tensor(pa.int64(), (4,))


def _rows_lifted(folder: Path) -> Dataset:
    small = _parts(folder).select("person", "score", "label")
    made = small.map(lambda row: {**row, "x": row["score"] * 2.0 + row["person"] % 5})
    return made.filter(lambda row: row["x"] > 1.0 or row["label"]).shuffle(20).batch(32)


def _rows_one_by_one(folder: Path) -> Dataset:
    return _parts(folder).filter(col("city").is_not_null()).skip(10).shuffle(32).take(120)


def _endless(folder: Path) -> Dataset:
    return _parts(folder).select("person").shuffle().repeat().take(1500).shuffle(50).batch(100)


NAMED: dict[str, NamedPipeline] = {
    "tabular_cleaning": NamedPipeline(_tabular_cleaning),
    "feature_engineering": NamedPipeline(_feature_engineering),
    "text_tokens": NamedPipeline(_text_tokens, work_rows=24),
    "text_vocabulary": NamedPipeline(_text_vocabulary, work_rows=24),
    "shuffle_repeat_batch": NamedPipeline(_shuffle_repeat_batch, 64, 2 * GROUP + 64 + 40),
    "full_shuffle": NamedPipeline(_full_shuffle, 64, PEOPLE_ROWS),
    "keyed_shuffle": NamedPipeline(_keyed_shuffle, 64, TEXT_ROWS),
    "atoms_shuffle": NamedPipeline(_atoms_shuffle, 64, 4 * GROUP),
    "random_augmentation": NamedPipeline(_random_augmentation, 64, 3 * GROUP),
    "text_augmentation": NamedPipeline(_text_augmentation, 32, 24),
    "expression_augmentation": NamedPipeline(_expression_augmentation, 64, 3 * GROUP),
    "hashed_split": NamedPipeline(_hashed_split),
    "slices": NamedPipeline(_slices, 64),
    "memory_shuffle": NamedPipeline(_memory_shuffle, 64, 3 * 64),
    "range_sums": NamedPipeline(_range_sums, 0, 3 * 77),
    "batches_normalised": NamedPipeline(_batches_normalised),
    "batches_shuffled": NamedPipeline(_batches_shuffled, 128, 4 * GROUP),
    "tensors": NamedPipeline(_tensors, work_rows=24),
    "rows_lifted": NamedPipeline(_rows_lifted, 64, 3 * GROUP),
    "endless": NamedPipeline(_endless, 160, 2 * PEOPLE_ROWS),
    "rows_one_by_one": NamedPipeline(_rows_one_by_one, 96, 3 * GROUP),
}
