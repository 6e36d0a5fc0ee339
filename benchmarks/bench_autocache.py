"""This file sweeps what computing costs and how many bytes it makes, and looks what is chosen.

    python benchmarks/bench_autocache.py [--rows 32] [--units 6] [--epochs 5]

Cachew's figure 8 (Graur et al., ATC 2022), scaled: rows are fetched from a slow source, grow to 2.5
times their bytes, and cost a controlled time. An ``autocache()`` stands behind the source and one
at the end; the cache is a store whose bandwidth is held down, as that of a network file system is.
For 20 points an epoch is timed in each of three modes that are forced (nothing kept, the source's
rows, the end's rows), and compared with what ``autocache()`` has come to after some epochs.
Printed are the seconds of each mode, the chosen one, and in how many points it is the cheapest, or
within a tenth of it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset
from dml.cache.parts.blobs import Blobs
from dml.exec.delivery.observed_costs import SEEN

SLEEPS_S = (0.0, 0.008, 0.024, 0.06, 0.12)  # to compute the rows of a unit
ROW_BYTES = (1 << 10, 4 << 10, 16 << 10, 48 << 10)
GROWN = 2.5
FETCH_S = 0.016  # of a unit from the source, whatever it has
STORE_S, STORE_BYTES_PER_S = 0.002, 25e6
NEAR = 1.1

MODES = ("compute", "source", "full")


@contextmanager
def throttled(latency_s: float, bytes_per_s: float) -> Iterator[None]:
    """Reads of parts take at least so long; RuntimeError if none was read this way."""
    read, sizes = Blobs.rows, list[int]()

    def slowly(self: Blobs, blob: Any, record: Any, *, maps: bool) -> Any:
        begun = time.perf_counter()
        rows = read(self, blob, record, maps=maps)
        sizes.append(record.size)
        time.sleep(max(0.0, latency_s + record.size / bytes_per_s - (time.perf_counter() - begun)))
        return rows

    Blobs.rows = slowly  # type: ignore[method-assign]
    try:
        yield
    finally:
        Blobs.rows = read  # type: ignore[method-assign]
    if not sizes:
        raise RuntimeError("nothing was held down: parts are read in some other way")


def written(folder: Path, units: int, rows: int, row_bytes: int) -> Path:
    """A file of ``units`` row groups with rows of so many bytes."""
    path = folder / f"rows-{row_bytes}.parquet"
    drawn = np.random.default_rng(7).integers(0, 256, units * rows * row_bytes, np.uint8)
    column = pa.FixedSizeListArray.from_arrays(pa.array(drawn), row_bytes)
    pq.write_table(pa.table({"x": column}), path, row_group_size=rows, compression="none")
    return path


def fetched(batch: pa.Table) -> pa.Table:
    time.sleep(FETCH_S)
    return batch


def computing(sleep_s: float) -> Callable[[pa.Table], pa.Table]:
    def grown(batch: pa.Table) -> pa.Table:
        time.sleep(sleep_s)
        column = batch["x"].combine_chunks()
        width = column.type.list_size
        wide = np.asarray(column.flatten()).reshape(-1, width)
        made = np.concatenate([wide, wide, wide[:, : width // 2]], axis=1)
        return pa.table(
            {"x": pa.FixedSizeListArray.from_arrays(pa.array(made.ravel()), made.shape[1])}
        )

    return grown


def pipeline(path: Path, sleep_s: float, mode: str) -> Dataset:
    """The pipeline with what is forced, or with hints."""
    given = {"batch_format": "arrow"}
    ds = dml.read_parquet(path).map_batches(fetched, fingerprint="fetched-1", **given)
    ds = ds.autocache() if mode == "auto" else ds.cache(tier="disk") if mode == "source" else ds
    grown = computing(sleep_s)
    ds = ds.map_batches(grown, fingerprint=f"grown-1-{sleep_s}", **given)
    return ds.autocache() if mode == "auto" else ds.cache(tier="disk") if mode == "full" else ds


def epoch_s(ds: Dataset) -> float:
    begun = time.perf_counter()
    for _ in ds:
        pass
    return time.perf_counter() - begun


def chosen(ds: Dataset) -> str:
    """What the next epoch reads."""
    states = [each.decision.split()[0] for each in ds.cache_status()]
    reads = [mode for mode, state in zip(MODES[1:], states, strict=True) if state == "GET"]
    return reads[-1] if reads else MODES[0]


def point(folder: Path, path: Path, sleep_s: float, epochs: int) -> tuple[dict[str, float], str]:
    """Seconds of an epoch in each mode, and the mode that is chosen."""
    usual = {"executor": "sync", "telemetry_dir": "off", "prefetch": 0}
    best = {}
    for mode in MODES:
        ds = pipeline(path, sleep_s, mode).batch(8)
        ds = ds.with_options(cache_dir=str(folder / f"{path.stem}-{sleep_s}-{mode}"), **usual)
        epoch_s(ds)
        best[mode] = statistics.median(epoch_s(ds) for _ in range(epochs - 1))
    SEEN.clear()
    ds = pipeline(path, sleep_s, "auto").batch(8)
    # epochs enough that writing counts for little, as in the figure
    ds = ds.with_options(cache_dir=str(folder / f"{path.stem}-{sleep_s}-auto"), epochs=100, **usual)
    for _ in range(epochs):
        epoch_s(ds)
    return best, chosen(ds)


def sweep(rows: int, units: int, epochs: int) -> list[tuple[dict[str, float], str]]:
    """All points, printed as they come."""
    print("bytes/row  sleep/unit   compute    source      full   best     chosen")
    found = []
    with (
        tempfile.TemporaryDirectory() as name,
        throttled(STORE_S, STORE_BYTES_PER_S),
    ):
        for row_bytes in ROW_BYTES:
            path = written(Path(name), units, rows, row_bytes)
            for sleep_s in SLEEPS_S:
                best, mode = point(Path(name), path, sleep_s, epochs)
                found.append((best, mode))
                told = "  ".join(f"{1e3 * best[each]:7.1f} ms"[:8] for each in MODES)
                least = min(MODES, key=lambda each: best[each])
                print(f"{row_bytes:9,}  {1e3 * sleep_s:7.0f} ms  {told}  {least:8} {mode}")
    return found


def right(found: list[tuple[dict[str, float], str]], near: float) -> int:
    """Points in which the chosen mode takes at most ``near`` times the least."""
    return sum(best[mode] <= near * min(best.values()) for best, mode in found)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--rows", type=int, default=32)
    given.add_argument("--units", type=int, default=6)
    given.add_argument("--epochs", type=int, default=5)
    told = given.parse_args()
    found = sweep(told.rows, told.units, told.epochs)
    print(f"the cheapest mode in {right(found, 1.0)} of {len(found)} points")
    print(f"within {NEAR - 1:.0%} of it in {right(found, NEAR)} of {len(found)}")


@pytest.mark.slow
def test_the_cheapest_mode_is_chosen() -> None:
    found = sweep(32, 4, 4)
    assert right(found, NEAR) >= 0.95 * len(found)


if __name__ == "__main__":
    main()
