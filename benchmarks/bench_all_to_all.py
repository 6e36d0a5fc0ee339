"""This file measures what moves every row: a full shuffle, a sort, groups, four times the memory.

    python benchmarks/bench_all_to_all.py [--megabytes 1024] [--limit 256MiB] [--keep FOLDER]

Every run is a process of its own, watched from outside every 10 ms: its memory, and that of its
children, as the contract counts it (dml/exec/memory/memory_meter.py). What each costs is set
against one scan of the same rows and one write of them, by the same process settings, just before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml import col
from dml.exec.memory.memory_meter import counted_bytes
from dml.exec.memory.memory_shares import OVERHEAD_BYTES
from dml.settings import parse_bytes

MIB = 1 << 20
ROW_BYTES = 4 * 8 + 4 * 8 + 8 * 4 + 4 + 24
GROUP_ROWS = 100_000
SAMPLE_S = 0.01
MOST_TIMES = 3
ALL_TO_ALL = ("shuffle", "sort", "sort by text", "group_by")


def write(folder: Path, total_bytes: int) -> int:
    """A file of 4 float64, 4 int64, 8 float32 and a text of 24 letters in a row; rows in it."""
    rng, rows = np.random.default_rng(7), total_bytes // ROW_BYTES
    writer: Any = None
    for start in range(0, rows, GROUP_ROWS):
        n = min(GROUP_ROWS, rows - start)
        columns: dict[str, Any] = {f"x{i}": rng.standard_normal(n) for i in range(4)}
        columns |= {f"k{i}": rng.integers(0, 10 ** (3 * i + 1), n) for i in range(4)}
        columns |= {f"y{i}": rng.random(n, dtype=np.float32) for i in range(8)}
        letters = rng.integers(97, 123, n * 24, dtype=np.uint8)
        offsets = np.arange(0, 24 * n + 1, 24, dtype=np.int32)
        columns["name"] = pa.StringArray.from_buffers(
            n, pa.py_buffer(offsets), pa.py_buffer(letters)
        )
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(folder / "rows.parquet", table.schema)
        writer.write_table(table)
    writer.close()
    return rows


def run(what: str, folder: str, out: str, limit: str) -> None:
    """One run, in this process; prints how long it took."""
    ds = dml.read_parquet(f"{folder}/rows.parquet").with_options(
        memory_limit=limit, telemetry_dir="off"
    )
    steps: dict[str, Any] = {
        "scan": lambda: ds,
        "write": lambda: ds,
        "shuffle": ds.shuffle,
        "sort": lambda: ds.sort("x0"),
        "sort by text": lambda: ds.sort("name"),
        "group_by": lambda: ds.group_by("k2").agg(
            n=dml.len(), mean=col("x0").mean(), most=col("y0").max()
        ),
    }
    made, started = steps[what](), time.perf_counter()
    if what == "write":
        rows = made.write_parquet(out).rows
    else:
        rows = sum(len(next(iter(batch.values()))) for batch in made.batch(8192))
    print(json.dumps({"rows": rows, "seconds": round(time.perf_counter() - started, 2)}))


def watched(command: list[str]) -> dict[str, Any]:
    """What a process printed, and the most memory it and its children had."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 (this file)
    most = 0
    while child.poll() is None:
        most = max(most, counted_bytes(child.pid) or 0)
        time.sleep(SAMPLE_S)
    text = child.stdout.read() if child.stdout is not None else ""
    if child.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return {**json.loads(text), "peak": most}


def main() -> None:
    """Write the data, run everything, print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--limit", default="256MiB")
    parser.add_argument("--keep")
    parser.add_argument("--only", default=",".join(ALL_TO_ALL))
    parser.add_argument("--run", nargs=3)
    given = parser.parse_args()
    if given.run:
        run(*given.run, given.limit)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.keep or temporary)
        folder.mkdir(exist_ok=True)
        if not (folder / "rows.parquet").exists():
            write(folder, given.megabytes * MIB)
        allowed = parse_bytes(given.limit) + OVERHEAD_BYTES
        own = [sys.executable, __file__, "--limit", given.limit, "--run"]
        once = 0.0
        print("| run | rows out | seconds | of a scan and a write | peak MiB | allowed |")
        print("|---|---|---|---|---|---|")
        for what in ("scan", "write", *given.only.split(",")):
            found = watched([*own, what, str(folder), f"{temporary}/{what}"])
            once += found["seconds"] if what in ("scan", "write") else 0
            times = f"{found['seconds'] / once:.1f}" if what not in ("scan", "write") else ""
            print(
                f"| {what} | {found['rows']:,} | {found['seconds']:.1f} | {times} |"
                f" {found['peak'] / MIB:.0f} | {allowed / MIB:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
