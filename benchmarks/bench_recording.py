"""This file measures what recording costs: the same epochs with telemetry and without, in turn.

    python benchmarks/bench_recording.py [PAIRS]

Four pipelines: expressions over a table, two functions called for each row, elements one by one
that take 100 us of work each, and elements that need none, which the consumer takes at 10,000 a
second for three seconds: what is left there is what each run costs once. Processor seconds of the
whole process count, with those of the thread that writes events, whose file is flushed before the
clock stops. The median of the pairs' differences is printed, beside the number of events times the
measured cost of one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml import col
from dml.api import run_telemetry
from dml.events import OperatorTotals, to_json
from dml.fleet.reader import read

PAIRS, ROWS, PACE = 20, 4_000_000, 10_000
PARAMETERS = {"times": 2, "modulus": 3}


def table(folder: Path) -> dml.Dataset:
    """W2 of the peers' workloads in small: 27 columns, expressions, window shuffle."""
    path = folder / "table.parquet"
    if not path.exists():
        draw = np.random.default_rng(0)
        columns = {f"I{n}": draw.integers(0, 1000, ROWS // 4) for n in range(13)}
        columns |= {f"C{n}": draw.integers(0, 1 << 40, ROWS // 4) for n in range(14)}
        pq.write_table(pa.table(columns), path, row_group_size=65_536)
    numbers = [col(f"I{n}").cast("float32").log1p().clip(high=10) for n in range(13)]
    words = [((col(f"C{n}") ^ (col(f"C{n}") >> 16)) & 1023).cast("int32") for n in range(14)]
    made = dml.read_parquet(path).with_columns(num=dml.stack(numbers), cat=dml.stack(words))
    return made.filter(col("I1") > 100).select("num", "cat").shuffle(8192).batch(8192)


def double(row: dict[str, int]) -> dict[str, int]:
    """Return a row; the table of parameters may change, so this is called for each row."""
    return {"x": row["id"] * PARAMETERS["times"] + 1}


def third(row: dict[str, int]) -> bool:
    """Return whether a row stays."""
    return row["x"] % PARAMETERS["modulus"] == 0


def functions(_: Path) -> dml.Dataset:
    """W4: two functions called for each of a million rows."""
    return dml.range(1_000_000).map(double).filter(third).batch(1024)


def worked(row: dict[str, int]) -> dict[str, int]:
    """Return a row after some 100 us of work."""
    total = 0
    for n in range(1_300):
        total += row["id"] * n % PARAMETERS["modulus"]
    return {"x": total}


def elements(_: Path) -> dml.Dataset:
    """Elements one by one, of 100 us each: 10,000 a second on one core."""
    return dml.range(2 * PACE).map(worked)


def idle(_: Path) -> dml.Dataset:
    """Elements one by one; the consumer takes 10,000 a second."""
    return dml.range(3 * PACE).map(double)


def paced(rows: Iterator[Any]) -> None:
    """Take all elements at the pace."""
    began = time.perf_counter()
    for number, _ in enumerate(rows, 1):
        if number % 100 == 0:
            time.sleep(max(0.0, began + number / PACE - time.perf_counter()))


def drained(rows: Iterator[Any]) -> None:
    """Take all elements as fast as they come."""
    for _ in rows:
        pass


def cpu_s(ds: dml.Dataset, consume: Callable[[Iterator[Any]], None]) -> float:
    """Return the processor seconds of an epoch, with the writing of its events."""
    began = time.process_time()
    consume(iter(ds))
    collector = run_telemetry.collector_of(ds._settings)  # noqa: SLF001 (of this package)
    if collector is not None:
        collector.flush()
    return time.process_time() - began


def event_s() -> float:
    """Return the seconds to write one event as text, which is most of its cost."""
    event = OperatorTotals(run="a" * 32, fingerprints={"fleet": "b" * 32, "cost": "c" * 32})
    began = time.process_time()
    for _ in range(10_000):
        to_json(event)
    return (time.process_time() - began) / 10_000


def main(pairs: int) -> None:
    """Print the table."""
    print("| pipeline | processor s without | with | more | events | events x cost |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for make, consume in (
            *((table, drained), (functions, drained), (elements, drained), (idle, paced)),
        ):
            root = folder / make.__name__
            off = make(folder).with_options(telemetry_dir="off")
            on = off.with_options(telemetry_dir=str(root))
            for ds in (off, on):
                cpu_s(ds, consume)
            before = sum(1 for _ in read(root))
            runs = []
            for number in range(pairs):
                order = (off, on) if number % 2 else (on, off)
                spent = {ds: cpu_s(ds, consume) for ds in order}
                runs.append((spent[off], spent[on]))
            events = (sum(1 for _ in read(root)) - before) / pairs
            plain = statistics.median(each for each, _ in runs)
            more = statistics.median(recorded - each for each, recorded in runs)
            cost = events * event_s() / plain
            print(f"| {make.__name__} | {plain:.3f} | {plain + more:.3f} | {more / plain:+.2%}"
                  f" | {events:.0f} | {cost:.3%} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else PAIRS)
