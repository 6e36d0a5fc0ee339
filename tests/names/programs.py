"""One program with a pipeline, as text that test cases edit, and the files that it reads."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import dml

Edits = Sequence[tuple[str, str]]

PROGRAM = """
import functools
import re

import numpy as np

import dml
from dml import col

SCALE = 3
WORDS = frozenset(["red", "blue", "green"])
PATTERN = re.compile("a+b")
TABLE = np.array([1.0, 2.0, 4.0])


class Scaler:
    offset = 7

    def __init__(self, by):
        self.by = by

    def scaled(self, value):
        return value * self.by + self.offset


scaler = Scaler(5)


def shifted(value, by=1):
    return value + by


def helped(value):
    moved = shifted(value)
    return moved * SCALE


def powered(base, value):
    return base ** value


cubed = functools.partial(powered, 2)


def around(factor):
    def inner(row):
        row["k"] = row["x"] * factor
        return row

    return inner


def rows(row):
    total = helped(row["x"])
    if row["s"] in WORDS:
        total = total + scaler.scaled(row["x"])
    if PATTERN.match(row["s"]):
        total = 2 * total
    text = "%s" % row["s"]
    return {"id": row["id"], "x": total, "y": row["y"], "s": text, "p": cubed(row["id"])}


def batches(batch):
    batch["t"] = np.take(TABLE, batch["id"] % 3)
    return batch


def good(row):
    return row["x"] % 10 != 4


def make(root):
    ds = dml.read_parquet(root)
    ds = ds.filter(col("x") > 2)
    ds = ds.filter(col("y") < 90.0)
    ds = ds.with_columns(z=col("x") * 2 + col("id"))
    ds = ds.map(rows)
    ds = ds.filter(good)
    ds = ds.shuffle(buffer_size=16)
    ds = ds.map(around(4))
    ds = ds.map_batches(batches)
    ds = ds.take(40)
    ds = ds.batch(4)
    return ds
"""

# The same verbs without functions, where laws of expressions have room.
COLUMNS = """
import dml
from dml import col, lit, when


def make(root):
    ds = dml.read_parquet(root)
    ds = ds.filter(col("x") > 2)
    ds = ds.filter(col("y") < 90.0)
    ds = ds.with_columns(z=col("x") * 2 + col("id"), u=col("y") + 1.0)
    ds = ds.select("id", "z", "u", "s")
    ds = ds.take(40)
    return ds
"""

_numbers = itertools.count()


def files(folder: Path, rows: int = 100) -> Path:
    """Two Parquet files with the columns id, x, y and s; gives the folder."""
    folder.mkdir(parents=True)
    for part in range(2):
        ids = range(part * rows // 2, (part + 1) * rows // 2)
        table = pa.table(
            {
                "id": list(ids),
                "x": [(7 * i) % 50 for i in ids],
                "y": [(3.0 * i) % 100 for i in ids],
                "s": [("red", "aab", "grey")[i % 3] for i in ids],
            }
        )
        pq.write_table(table, folder / f"part-{part}.parquet")
    return folder


def edited(text: str, edits: Edits) -> str:
    """The program with every edit made; each must have something to change."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def loaded(folder: Path, text: str) -> Callable[..., dml.Dataset]:
    """The ``make`` of a program, in a module of its own."""
    name = f"written_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    made: Callable[..., dml.Dataset] = module.__dict__["make"]
    return made
