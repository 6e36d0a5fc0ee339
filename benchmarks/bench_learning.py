"""This file measures how far estimates of operators' seconds are from what they take.

    python benchmarks/bench_learning.py

For each pipeline, the seconds of every operator are estimated before the first run, from default
costs and the measured speed of the machine, and before the second, from what the first recorded.
Both are compared with the seconds of the second run. The median relative error over all operators
that take over a millisecond is printed, and that of each pipeline.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml import col
from dml.api import run_telemetry, session
from dml.api.cost_profile import expected

LEAST_S = 1e-3
TABLE = {"modulus": 7}


def digits(row: dict[str, Any]) -> dict[str, Any]:
    """Return the sum of a text's digits, by a loop that has to be called."""
    total = 0
    for letter in row["s"]:
        total += ord(letter) % TABLE["modulus"]
    return {"k": row["k"], "t": [total][0]}


def words(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return a row for each word."""
    yield from ({"k": row["k"], "w": word} for word in row["s"].split())


def kept(row: dict[str, Any]) -> bool:
    """Return whether a row stays."""
    return row["k"] % TABLE["modulus"] != 3


def scaled(batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return a batch with a column scaled."""
    return {"k": batch["k"], "y": np.sqrt(batch["x"] ** 2 + 1)}


def pipelines(source: Path) -> dict[str, dml.Dataset]:
    """Pipelines as users write them, by name."""
    read = dml.read_parquet(source)
    return {
        "expressions": read.with_columns(z=(col("x") * 2).log1p())
        .filter(col("k") > 100)
        .batch(256),
        "text": read.with_columns(u=col("s").str.to_uppercase()).select("u", "k").batch(512),
        "function": read.map(digits).batch(64),
        "words": read.flat_map(words).batch(256),
        "filter": read.filter(kept).map(digits).shuffle(1024).batch(64),
        "batches": read.map_batches(scaled).batch(512),
        "sort": read.select("k", "x").sort("x").batch(1024),
        "join": read.select("k", "x").join(read.select("k", "s"), on="k").batch(512),
        "group": read.group_by("k").agg(x=col("x").sum()).batch(256),
        "windows": read.select("x").window(16, drop_remainder=True),
    }


def estimates(ds: dml.Dataset, *, learned: bool) -> list[float]:
    """Return the expected seconds of every operator."""
    settings = ds._settings if learned else ds.with_options(telemetry_dir="off")._settings  # noqa: SLF001
    plan = session.optimized(ds._node, settings).plan  # noqa: SLF001 (of this package)
    found = expected(plan, run_telemetry.profile_of(settings), settings)
    return [each.seconds.typical if each.seconds is not None else 0.0 for each in found]


def main() -> None:
    """Print the table."""
    draw, rows = np.random.default_rng(0), 60_000
    whole: tuple[list[float], list[float]] = ([], [])
    print("| pipeline | operators | error before the first run | before the second |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "t.parquet")
        texts = [" ".join(f"word{n % 97}" for n in range(k, k + 8)) for k in range(rows)]
        columns = {"k": np.arange(rows), "x": draw.normal(size=rows), "s": texts}
        pq.write_table(pa.table(columns), source, row_group_size=8_192)
        for name, made in pipelines(source).items():
            ds = made.with_options(telemetry_dir=str(Path(scratch, name)), executor="sync")
            errors: tuple[list[float], list[float]] = ([], [])
            first = estimates(ds, learned=False)
            for _ in range(2):
                second = estimates(ds, learned=True)
                for _ in ds:
                    pass
                collector = run_telemetry.collector_of(ds._settings)  # noqa: SLF001
                assert collector is not None
                collector.flush()
            took = [each["seconds"] for each in ds.stats().records]
            for number, guessed in enumerate((first, second)):
                pairs = zip(guessed, took, strict=True)
                errors[number].extend(abs(g - t) / t for g, t in pairs if t > LEAST_S)
                whole[number].extend(errors[number])
            both = [f"{statistics.median(each):.0%}" if each else "-" for each in errors]
            print(f"| {name} | {len(errors[0])} | {both[0]} | {both[1]} |", flush=True)
    print(f"| all | {len(whole[0])} | {statistics.median(whole[0]):.0%} |"
          f" {statistics.median(whole[1]):.0%} |")  # fmt: skip


if __name__ == "__main__":
    main()
