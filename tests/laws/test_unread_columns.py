"""Law: runs that read only the columns that functions look up equal runs that read all columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.errors import DmlError

ROWS, GROUP, MOST = 60, 13, 400
BLOCK = 20  # pipelines of one test
OUTSIDE = [2]  # a list could change, so functions that read it are called, and not lifted
READ_ALL: tuple[dict[str, Any], ...] = (
    {"disable_rules": ["projection_into_source"]},
    {"optimize": False},
)

Verb = Callable[[Dataset], Dataset]


def scaled(row: dict[str, Any]) -> dict[str, Any]:
    return {"i": row["i"], "x": row["x"] * OUTSIDE[0], "s": row["s"]}


def failing(row: dict[str, Any]) -> dict[str, Any]:
    return {"i": row["i"], "x": row["x"] / (row["i"] - 17), "s": row["s"]}


VERBS: tuple[Verb, ...] = (
    lambda ds: ds.map(scaled),
    lambda ds: ds.map(lambda row: {"i": row["i"] + 1, "x": row["x"], "s": row["s"]}),
    lambda ds: ds.map(lambda row: {**row, "i": row["i"]}),
    lambda ds: ds.map(failing),
    lambda ds: ds.map(failing, on_error="skip"),
    lambda ds: ds.filter(lambda row: row["i"] % 3 != OUTSIDE[0]),
    lambda ds: ds.filter(lambda row: row["i"] % 5 != 1),
    lambda ds: ds.filter(lambda row: 9 // (row["i"] % 6 - OUTSIDE[0]) != 1, on_error="skip"),
    lambda ds: ds.flat_map(lambda row: [failing(row)] * OUTSIDE[0], on_error="skip"),
    lambda ds: ds.map(lambda row: {"i": row["i"], "x": row["x"], "s": str(len(row))}),
    lambda ds: ds.filter(col("i") % 4 != 1),
    lambda ds: ds.take_while(lambda row: row["i"] < 50 + OUTSIDE[0]),
    lambda ds: ds.with_columns(z=col("x") + col("i")),
    lambda ds: ds.with_columns(x=col("x") * 2, few=col("few") + 1),
    lambda ds: ds.filter((col("few") > 9) | (col("x") > 0.5)),
    lambda ds: ds.with_columns(i=col("i").cast("int8").cast("int64")),
    lambda ds: ds.with_columns(s=col("s") + "!").filter(col("s") != "t3!"),
    lambda ds: ds.fill_null({"few": 0}),
    lambda ds: ds.drop("lists"),
    lambda ds: ds.select("i", "x", "s"),
    lambda ds: ds.flat_map(lambda row: [scaled(row)] * (row["i"] % 3)),
    lambda ds: ds.flat_map(lambda row: [{"i": row["i"], "x": row["x"], "s": ""}] * (row["i"] % 3)),
    lambda ds: ds.random_map(
        lambda row, rng: {"i": row["i"], "x": row["x"] + float(rng.random()), "s": row["s"]}
    ),
    lambda ds: ds.map_batches(
        lambda batch: {"i": batch["i"], "x": batch["x"] + 1, "s": batch["s"]}, batch_size=5
    ),
    lambda ds: ds.shuffle(7, seed=3),
    lambda ds: ds.shuffle(seed=4),
    lambda ds: ds.take(40),
    lambda ds: ds.skip(3),
    lambda ds: ds.shard(2, 1),
    lambda ds: ds.repeat(2),
    lambda ds: ds.sort("x"),
    lambda ds: ds.cache(),
    lambda ds: ds.with_row_index("place"),
    lambda ds: ds.zip(ds.map(lambda row: {"other": row["x"]})),
    lambda ds: ds.concat(ds),
    lambda ds: ds.group_by("s").agg(i=col("i").sum(), x=col("x").mean()),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with columns of several kinds, of which functions look up three."""
    made = tmp_path_factory.mktemp("columns")
    draw = np.random.default_rng(1)
    columns = {
        "i": np.arange(ROWS),
        "x": draw.random(ROWS),
        "s": [f"t{number % 7}" for number in range(ROWS)],
        "lists": [[number] * (number % 3) for number in range(ROWS)],
        "few": pa.array([None if number % 9 == 4 else number for number in range(ROWS)]),
        "moment": pa.array(np.arange(ROWS) * 1000, pa.timestamp("us")),
        # Python's datetime cannot hold every seventh of these
        "edge": pa.array([n * 1000 + (n % 7 == 5) for n in range(ROWS)], pa.timestamp("ns")),
    }
    pq.write_table(pa.table(columns), made / "a.parquet", row_group_size=GROUP)
    return made


def drawn(folder: Path, seed: int) -> Dataset | None:
    """A pipeline of up to six verbs; None if these verbs cannot follow each other."""
    draw = random.Random(seed)
    ds = dml.read_parquet(folder)
    try:
        for verb in draw.choices(VERBS, k=draw.randint(1, 6)):
            ds = verb(ds)
        if "edge" in ds.schema:
            ds = ds.drop("edge")  # rows of these can be used, but not handed to the caller
        return ds.batch(4) if draw.random() < 0.3 else ds
    except DmlError:
        return None


def outcome(ds: Dataset, **options: Any) -> tuple[list[str], str]:
    """The first elements as text, and the class of the error that ended them, or ""."""
    out: list[str] = []
    options = {"executor": "sync", "telemetry_dir": "off", **options}
    try:
        out.extend(map(repr, islice(ds.with_options(**options), MOST)))
    except DmlError as error:
        return out, type(error).__name__
    return out, ""


@pytest.mark.sample(20)
@pytest.mark.parametrize("block", range(50))
def test_rows_are_those_of_a_run_that_reads_everything(
    folder: Path, block: int, whole: bool
) -> None:
    if block >= 2 and not whole:
        pytest.skip("a sample: the others run with --whole")
    ran = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        ds = drawn(folder, seed)
        if ds is None:
            continue
        found = outcome(ds)
        for options in READ_ALL:
            rows, error = outcome(ds, **options)
            # a run that reads less may go on where reading a column would have been an error
            assert found[0][: len(rows)] == rows, (seed, options)
            assert error or found == (rows, ""), (seed, options)
        ran += bool(found[0])
    assert ran > BLOCK // 4
