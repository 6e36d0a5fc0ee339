"""A pipeline that is written twice, with dml and with tf.data, and its source."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

import dml
from dml import Dataset

WORDS = ("", "a", "bc", "def", "gh ij", "klmno", "pq")


@dataclasses.dataclass
class Pair:
    """One pipeline in two libraries, as far as it is written.

    ``lists`` says whether rows have the list ``l``, ``kind`` is "rows", "batches", "padded" or
    "ragged", ``text`` what was written.
    """

    ours: Dataset
    theirs: Any
    lists: bool
    kind: str = "rows"
    indexed: bool = False
    text: list[str] = dataclasses.field(default_factory=list)

    def then(
        self, text: str, ours: Callable[[Any], Any], theirs: Callable[[Any], Any], **changes: Any
    ) -> Pair:
        """The pair with one more step."""
        return dataclasses.replace(
            self,
            ours=ours(self.ours),
            theirs=theirs(self.theirs),
            text=[*self.text, text],
            **changes,
        )


def rows_of(rng: random.Random, count: int, *, lists: bool) -> list[dict[str, Any]]:
    """Rows with a whole number, a float, a text, and a list of whole numbers if wanted."""
    made = []
    for _ in range(count):
        row: dict[str, Any] = {
            "i": rng.randrange(-50, 50),
            "f": rng.choice((0.0, -0.0, 1.5, -2.25, 1e300, rng.random())),
            "t": rng.choice(WORDS),
        }
        if lists:
            row["l"] = [rng.randrange(100) for _ in range(rng.randrange(7))]
        made.append(row)
    return made


def source(tf: Any, rng: random.Random, *, lists: bool) -> tuple[Dataset, Any]:
    """Some rows in both libraries; now and then from the same generator."""
    rows = rows_of(rng, rng.choice((1, 7, 30, 60)), lists=lists)
    spec = {
        "i": tf.TensorSpec((), tf.int64),
        "f": tf.TensorSpec((), tf.float64),
        "t": tf.TensorSpec((), tf.string),
    }
    if lists:
        spec["l"] = tf.TensorSpec((None,), tf.int64)
    schema = pa.schema(
        [("i", pa.int64()), ("f", pa.float64()), ("t", pa.string())]
        + ([("l", pa.list_(pa.int64()))] if lists else [])
    )

    def given(first: int) -> Iterator[dict[str, Any]]:
        yield from rows[first:]

    first, atom_rows = rng.choice((0, 0, 3)), rng.choice((3, 16))
    theirs = tf.data.Dataset.from_generator(given, args=(first,), output_signature=spec)
    if rng.random() < 0.3:
        return dml.from_generator(given, schema, args=(first,), atom_rows=atom_rows), theirs
    return dml.from_arrow(pa.Table.from_pylist(rows[first:], schema), atom_rows=atom_rows), theirs


Step = Callable[[Any, random.Random, Pair], Pair]
