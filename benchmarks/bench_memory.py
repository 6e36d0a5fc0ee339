"""This file measures the memory contract: counted memory of whole runs against their number.

    python benchmarks/bench_memory.py [--gigabytes 2] [--limit 512MiB] [--keep FOLDER]
    python benchmarks/bench_memory.py --adversarial

Every run is a process of its own, watched from outside every 5 ms: its memory, and that of its
children, as the contract counts it (dml/exec/memory/memory_meter.py). The data are random and
hardly compress.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml.exec.memory.memory_meter import counted_bytes
from dml.exec.memory.memory_shares import OVERHEAD_BYTES
from dml.settings import parse_bytes

RESULTS = Path(__file__).parent / "results" / "memory.json"
ROW_BYTES = 16 * 8 + 16 * 8 + 8 * 4 + 28
FILE_BYTES = 500_000_000
SAMPLE_S = 0.005
MIB = 1 << 20


def write(folder: Path, total_bytes: int, group_bytes: int) -> None:
    """Files of 500 MB: 16 float64, 16 int64 (of 1000 values), 8 float32, a string of 24 letters."""
    rng = np.random.default_rng(7)
    for number in range(max(1, total_bytes // FILE_BYTES)):
        rows = min(total_bytes, FILE_BYTES) // ROW_BYTES
        columns: dict[str, pa.Array | np.ndarray] = {}
        columns |= {f"x{i}": rng.standard_normal(rows) for i in range(16)}
        columns |= {f"k{i}": rng.integers(0, 1000, rows) for i in range(16)}
        columns |= {f"y{i}": rng.random(rows, dtype=np.float32) for i in range(8)}
        letters = rng.integers(97, 123, rows * 24, dtype=np.uint8).view("S24")
        columns["name"] = pa.array(letters.astype("U24").tolist())
        path = folder / f"part-{number}.parquet"
        groups = max(1, group_bytes // ROW_BYTES)
        pq.write_table(pa.table(columns), path, row_group_size=groups, compression="snappy")


def consume(folder: str, limit: str, *, slow: bool, kind: str, buffer: int) -> None:
    """One run, in this process; prints what the run says of itself."""
    if kind == "empty":
        list(dml.range(0).with_columns(x=dml.col("id") + 1).batch(8))
        print(json.dumps({"rows": 0, "seconds": 0.0}))
        time.sleep(20 * SAMPLE_S)
        return
    ds = dml.read_parquet(f"{folder}/*.parquet")
    ds = ds.with_columns(z=dml.col("x0") * dml.col("x1") + 1, w=dml.col("k0") % 7)
    ds = ds.filter(dml.col("x2") > -1.5)
    if kind == "rows":
        ds = ds.map(bump)
    ds = ds.shuffle() if kind == "sort" else ds.shuffle(buffer)
    ds = ds.batch(4096).with_options(memory_limit=limit, num_workers=2, telemetry_dir="off")
    rows, started = 0, time.perf_counter()
    for batch in ds:
        rows += len(batch["z"])
        if slow:
            for _ in range(4):
                np.sort(np.stack([batch[f"x{i}"] for i in range(16)]), axis=1)
    seconds = time.perf_counter() - started
    print(json.dumps({"rows": rows, "seconds": round(seconds, 2)}))


def bump(row: dict[str, object]) -> dict[str, object]:
    """A function that is called for every row."""
    return {**row, "z": len(str(row["name"])) + 0.5}


def watched(arguments: list[str]) -> dict[str, float]:
    """Run this file with ``arguments`` and sample its counted memory until it ends."""
    run = subprocess.Popen(  # noqa: S603 (this file, by its own name)
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True
    )
    peak = samples = 0
    while run.poll() is None:
        peak = max(peak, counted_bytes(run.pid) or 0)
        samples += 1
        time.sleep(SAMPLE_S)
    out = run.stdout.read() if run.stdout else ""
    if run.returncode:
        raise SystemExit(f"a run failed: {arguments}")
    return {**json.loads(out.splitlines()[-1]), "peak_bytes": peak, "samples": samples}


def measure(folder: Path, asked: argparse.Namespace, total_bytes: int) -> list[dict[str, object]]:
    """Every combination of row groups, consumer and pipeline."""
    found: list[dict[str, object]] = []
    for group in map(int, asked.groups.split(",")):
        data = folder / f"groups-{group}"
        if not data.exists():
            data.mkdir(parents=True)
            subprocess.run(  # noqa: S603 (this file, by its own name)
                [sys.executable, __file__, "write", str(data), str(total_bytes), str(group)],
                check=True,
            )
        for kind in asked.kinds.split(","):
            for consumer in ("fast", "slow") if kind == "window" else ("fast",):
                got = watched(
                    ["consume", str(data), asked.limit, consumer, kind, str(asked.buffer)]
                )
                found.append(told(kind, group, consumer, got, parse_bytes(asked.limit)))
    return found


def told(
    kind: str, group: int, consumer: str, got: dict[str, float], limit: int
) -> dict[str, object]:
    """One line of the table, and the same as a record."""
    peak, most = got["peak_bytes"], limit + OVERHEAD_BYTES
    print(
        f"{kind:7} groups of {group / 1e6:3.0f} MB  {consumer}  peak {peak / MIB:4.0f} MiB of"
        f" {limit / MIB:.0f} + {OVERHEAD_BYTES / MIB:.0f}  {got['rows']:,} rows"
        f"  {got['seconds']} s  {'kept' if peak <= most else 'BROKEN'}",
        flush=True,
    )
    return {"pipeline": kind, "group_bytes": group, "consumer": consumer, **got}


def main() -> None:
    parser = argparse.ArgumentParser(description="counted memory of whole runs")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--limit", default="512MiB")
    parser.add_argument("--keep", type=Path, help="keep the data here, and use what is here")
    parser.add_argument("--kinds", default="window,sort,rows")
    parser.add_argument("--groups", default=f"10000000,{FILE_BYTES}", help="bytes of row groups")
    parser.add_argument("--buffer", type=int, default=65536, help="rows of the shuffle window")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--adversarial", action="store_true", help="pipelines made to break it")
    asked = parser.parse_args()
    if asked.adversarial:
        command = [sys.executable, "-m", "tests.laws.adversarial_run"]
        root = Path(__file__).parents[1]
        raise SystemExit(subprocess.run(command, cwd=root, check=False).returncode)  # noqa: S603
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        total = int(asked.gigabytes * 1e9)
        empty = watched(["consume", "", asked.limit, "fast", "empty", "1"])["peak_bytes"]
        print(f"an empty pipeline: {empty / MIB:.0f} MiB")
        runs = measure(folder, asked, total)
    limit = parse_bytes(asked.limit)
    result = {
        "command": " ".join(["python", *sys.argv]),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "limit_bytes": limit,
        "overhead_bytes": OVERHEAD_BYTES,
        "empty_bytes": empty,
        "runs": runs,
    }
    broken = [run for run in runs if int(str(run["peak_bytes"])) > limit + OVERHEAD_BYTES]
    asked.out.parent.mkdir(exist_ok=True)
    asked.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if broken:
        raise SystemExit(f"{len(broken)} runs broke the contract")


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["consume"]:
        where, limit, consumer, kind, buffer = sys.argv[2:]
        consume(where, limit, slow=consumer == "slow", kind=kind, buffer=int(buffer))
    else:
        main()
