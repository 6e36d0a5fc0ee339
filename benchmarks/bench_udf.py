"""This file measures row functions of the corpus: lifted against the same ones called row by row.

    python benchmarks/bench_udf.py            # every function; --rows 200000 by default
    python benchmarks/bench_udf.py sigmoid    # those whose names contain a word

Both run in this process, in turn, and the best of a few runs in processor time counts. "Called" is
the same pipeline with ``optimize=False``, which calls the function once per row. A function that is
not lifted is called in both: what differs then is what trying to lift it costs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyarrow as pa

import dml
from tests.corpus.case import Case
from tests.corpus.corpus import CASES
from tests.corpus.python import lifted, one
from tests.corpus.rows import drawn

RUNS, LEAST_S, LONGEST_S = 5, 0.02, 0.5
OPTIONS: dict[str, Any] = {"executor": "sync", "telemetry_dir": "off", "prefetch": 0}
BATCH = 8192


def cpu_s(case: Case, table: Any, *, optimize: bool) -> float:
    """Processor seconds to make every row, as batches of Arrow; the pipeline is planned before."""
    given = dml.from_arrow(table).with_options(optimize=optimize, **OPTIONS)
    schema = None if case.settles is None else pa.schema(case.settles)
    made = given.filter(case.fn) if case.keeps else given.map(case.fn, schema=schema)
    started = time.process_time()
    for _ in made.iter_batches(batch_size=BATCH, batch_format="arrow"):
        pass
    return time.process_time() - started


def best(case: Case, table: Any) -> tuple[float, float]:
    """The best of some runs in turn, lifted and called."""
    quick, slow, spent = [], [], 0.0
    while len(quick) < RUNS or (spent < LEAST_S and len(quick) < 50):
        quick.append(cpu_s(case, table, optimize=True))
        slow.append(cpu_s(case, table, optimize=False))
        spent += quick[-1] + slow[-1]
        if spent > LONGEST_S and len(quick) >= 2:
            break
    return min(quick), min(slow)


def measured(case: Case, rows: int) -> tuple[float, float]:
    """Nanoseconds per row, lifted and called, of rows for which the function does not raise."""
    table = drawn(case.columns, 2000, 0.0, 1)
    fine = [not isinstance(one(case, row), Exception) for row in table.to_pylist()]
    table = table.filter(pa.array(fine))
    times = -(-rows // table.num_rows)
    table = pa.concat_tables([table] * times).combine_chunks()
    quick, slow = best(case, table)
    return quick / table.num_rows * 1e9, slow / table.num_rows * 1e9


def main() -> None:
    """Print the table, and what the issue asks for."""
    given = argparse.ArgumentParser()
    given.add_argument("words", nargs="*")
    given.add_argument("--rows", type=int, default=200_000)
    asked = given.parse_args()
    print("| function | tier | ns/row | called, ns/row | ratio |")
    print("|---|---|---:|---:|---:|")
    numeric, others, losses = [], [], []
    for case in CASES:
        if asked.words and not any(word in case.name for word in asked.words):
            continue
        quick, slow = measured(case, asked.rows)
        reason = lifted(case)
        group = losses if reason else numeric if case.numeric else others
        group.append(slow / quick)
        tier = reason or "expressions"
        print(f"| {case.name} | {tier} | {quick:.0f} | {slow:.0f} | {slow / quick:.2f} |")
    for name, ratios in (("numeric", numeric), ("other", others), ("not lifted", losses)):
        if ratios:
            print(f"\n{name}: {len(ratios)}, median {statistics.median(ratios):.2f}x")


if __name__ == "__main__":
    main()
