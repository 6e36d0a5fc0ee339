"""Draw pipelines that fail somewhere: in their source, in a function, in a cast, or nowhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dml import col
from dml.api.dataset import Dataset
from dml.api.sources.objects import read_datasource
from dml.errors import DmlError
from dml.plugins import SourcePart
from dml.testing.draws import Drawn
from dml.testing.strategies import USES, deliverable, step
from dml.testing.strategies_data import DataPool, Handed, columns, table

STEPS = (0, 0, 1, 1, 2, 2, 3, 4)  # below what fails, and above it
Row = dict[str, Any]


class Broken(Handed):
    """Rows of a table, up to one that cannot be read."""

    wrong = 0

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        start, _ = part.payload
        for batch in super().read(part, columns):
            if start <= self.wrong < start + batch.num_rows:
                raise OSError(self.wrong)
            start += batch.num_rows
            yield batch


def broken(draw: random.Random) -> Dataset:
    """A source that fails at one of its rows."""
    data = table(draw, columns(draw), draw.choice([7, 30, 45]))
    whole = Handed.drawn(draw, data)
    made = Broken(data, whole.ends, whole.told, whole.each)
    made.wrong = draw.randrange(data.num_rows)
    return read_datasource(made, atom_rows=draw.randint(1, 9))


class Functions:
    """Functions that fail where ``n`` is the number ``k``."""

    def __init__(self, k: int) -> None:
        self.k = k

    def _look(self, row: Row) -> None:
        if row["n"] == self.k:
            raise LookupError(self.k)

    def same(self, row: Row) -> Row:
        self._look(row)
        return dict(row)

    def keep(self, row: Row) -> bool:
        self._look(row)
        return True

    def twice(self, row: Row) -> Iterator[Row]:
        yield dict(row)
        self._look(row)
        yield dict(row)

    def groups(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for number in batch["n"]:
            self._look({"n": number})
        return batch

    def other_type(self, row: Row) -> Row:
        return {**row, "n": "text"} if row["n"] == self.k else dict(row)

    def fewer_columns(self, row: Row) -> Row:
        return {"n": self.k} if row["n"] == self.k else dict(row)


def plant(draw: random.Random, drawn: Drawn) -> None:
    """One step that may fail."""
    ds, f = drawn.dataset, Functions(draw.choice([13, 17, -4, 3, 20]))
    schema = draw.choice([None, drawn.kinds])
    most = (col("n") - f.k).abs() + draw.choice([100, 117, 124])
    verbs: list[Callable[[], Dataset]] = [
        lambda: ds.map(f.same, schema=schema),
        lambda: ds.filter(f.keep),
        lambda: ds.flat_map(f.twice),
        lambda: ds.map_batches(f.groups, batch_size=draw.choice([1, 3, 10])),
        lambda: ds.map(f.other_type),
        lambda: ds.map(f.fewer_columns),
        lambda: ds.with_columns(n=most.cast("int8").cast("int64")),
    ]
    drawn.then(draw.choice(verbs)(), drawn.kinds)


def failing(draw: random.Random, pool: DataPool) -> Drawn:
    """A pipeline of which most fail."""
    dataset = broken(draw) if draw.random() < 0.25 else pool.dataset(draw)
    drawn = Drawn(dataset, dict(dataset.schema))
    for _ in range(draw.choice(STEPS)):
        step(draw, drawn)
    if drawn.functional and not drawn.batched:
        plant(draw, drawn)
    for _ in range(draw.choice(STEPS)):
        step(draw, drawn)
    if draw.random() < 0.5 and not drawn.batched:
        deliverable(drawn)
        USES["batch"].write(draw, drawn)
    return drawn


def drawn(number: int, pool: DataPool) -> tuple[random.Random, Drawn]:
    """Pipeline ``number``, and what is drawn next."""
    draw = random.Random(number)
    while True:
        try:
            return draw, failing(draw, pool)
        except DmlError:  # such a pipeline is refused: another one
            pass
