"""Batches from a table into a training loop: logistic regression, written out in NumPy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml import col


def write_table(folder: str, rows: int = 20_000) -> None:
    """Visits to a shop: price, age (sometimes unknown) and whether something was bought."""
    rng = np.random.default_rng(0)
    price, age = rng.lognormal(3, 1, rows), rng.integers(18, 80, rows)
    bought = np.log(price) + age / 20 + rng.logistic(0, 0.5, rows) < 5
    ages = pa.array(age, mask=rng.random(rows) < 0.05)
    table = pa.table({"price": price, "age": ages, "bought": bought})
    pq.write_table(table, Path(folder) / "visits.parquet", row_group_size=4096)


def pipeline(folder: str) -> dml.Dataset:
    return (
        dml.read_parquet(folder)
        .filter(col("price") > 0)
        .fill_null({"age": 40})
        .with_columns(
            x=dml.stack(col("price").log() - 3, (col("age") - 49) / 18.0),
            y=col("bought").cast("float64"),
        )
        .select("x", "y")
        .shuffle(seed=1)
        .batch(256)
    )


def train(ds: dml.Dataset, epochs: int = 4) -> tuple[np.ndarray, float]:
    weights, bias = np.zeros(2), 0.0
    for epoch in range(epochs):
        step, losses = 0.5 / (1 + epoch), []
        for batch in ds:  # every iteration is an epoch, in an order of its own
            chance = 1 / (1 + np.exp(-(batch["x"] @ weights + bias)))
            error = chance - batch["y"]
            weights -= step * batch["x"].T @ error / len(error)
            bias -= step * error.mean()
            losses.append(-np.log(np.where(batch["y"] > 0, chance, 1 - chance)).mean())
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}")
    return weights, float(np.mean(losses))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write_table(scratch)
        _, loss = train(pipeline(scratch))
        assert loss < 0.4  # guessing costs 0.69
