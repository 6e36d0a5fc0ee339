"""Time and memory of three rows of a CSV file by its number of columns, each in a new process.

Run as ``python benchmarks/bench_wide_csv.py > benchmarks/results/wide_csv.md``.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COLUMNS = (1_000, 4_096, 16_384, 32_768)
RUNS = 3

READ = """
import resource, sys, time
import dml

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before, began = peak(), time.process_time()
ds = dml.read_csv(sys.argv[1]).with_options(executor="sync", telemetry_dir="off")
rows = list(ds)
assert len(rows) == 3
print(time.process_time() - began, peak() - before)
"""


def written(folder: Path, columns: int) -> Path:
    """Write a CSV file of integers with three rows."""
    path = folder / f"{columns}.csv"
    lines = [",".join(f"c{i}" for i in range(columns))]
    lines += [",".join(str(i + row) for i in range(columns)) for row in range(3)]
    path.write_text("\n".join(lines) + "\n")
    return path


def measured(path: Path) -> tuple[float, float]:
    """Return the processor seconds and the MiB beyond ``import dml``, the least of some runs."""
    command = [sys.executable, "-c", READ, str(path)]
    runs = [
        tuple(map(float, subprocess.check_output(command).split()))  # noqa: S603
        for _ in range(RUNS)
    ]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def main() -> None:
    """Print the page of results."""
    print("# Wide CSV files\n")
    told = f"{dt.date.today():%Y-%m-%d}, {os.cpu_count()} cores"
    print(f"`python benchmarks/bench_wide_csv.py`, {told}. Three rows of integers, read and")
    print("delivered as dicts, in a new process: processor seconds and peak memory beyond")
    print(f"`import dml`, the least of {RUNS} runs.\n")
    print("| columns | seconds | MiB |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for columns in COLUMNS:
            seconds, mib = measured(written(Path(folder), columns))
            print(f"| {columns:,} | {seconds:.2f} | {mib:.0f} |")


if __name__ == "__main__":
    main()
