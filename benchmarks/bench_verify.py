"""This file measures what a run that checks itself costs beside one that does not.

    python benchmarks/bench_verify.py

An epoch in memory is run both ways in turn; the best processor seconds of each are compared. Three
samples are three atoms of 65,536 rows, whatever the epoch is, so the share falls with its length.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import dml
from dml import col

RUNS = 4
ATOM_ROWS = 65_536
ATOMS = (50, 400)


def columns(atoms: int) -> dml.Dataset:
    """Expressions and a filter."""
    x = (col("id") * 0.5).log1p()
    return dml.range(atoms * ATOM_ROWS).with_columns(x=x).filter(col("id") % 3 == 0).batch(4096)


def lifted(atoms: int) -> dml.Dataset:
    """A row function that is lifted, and called where it is compared."""
    ds = dml.range(atoms * ATOM_ROWS)
    return ds.map(lambda row: {"x": row["id"] * 0.5 + 1, "id": row["id"]}).batch(4096)


def seconds(ds: dml.Dataset) -> float:
    """Processor seconds of an epoch."""
    started = time.process_time()
    for _ in ds.epoch(0):
        pass
    return time.process_time() - started


def measured(make: Callable[[int], dml.Dataset], atoms: int) -> tuple[float, float]:
    """The best of each way."""
    ds = make(atoms).with_options(executor="sync", telemetry_dir="off")
    ways = ds, ds.with_options(verify="sample")
    runs = [[seconds(way) for way in ways] for _ in range(RUNS)]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def main() -> None:
    """Print the table."""
    print("| pipeline | atoms | off, s | sample, s | more |")
    print("|---|---|---|---|---|")
    for make in (columns, lifted):
        for atoms in ATOMS:
            off, sample = measured(make, atoms)
            more = f"{sample - off:.3f} s, {sample / off - 1:.1%}"
            print(f"| {make.__name__} | {atoms} | {off:.3f} | {sample:.3f} | {more} |")


if __name__ == "__main__":
    main()
