"""This file measures what explain says of costs: how near second runs are, and what asking costs.

    python benchmarks/bench_explain.py

Ten pipelines, each run three times in one new telemetry store: to warm up (nothing is stored), to
be learned from, and to be predicted. An operator counts if it took more than 5 % of the seconds of
its run. The overhead is that of ``explain(analyze=True)`` over iterating alone, in turn, best of
five, in one thread: processor time, since other programs do not count in it.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import dml
from dml import col
from dml.api import explanation
from dml.api.run_telemetry import collector_of
from dml.optimize.cost.estimate import Estimate
from dml.optimize.explain.cost_table import Actual, actuals

ROWS, FEW, RUNS = 1_000_000, 200_000, 5
COUNTS, NEAR, GUESSED, RANKED = 0.05, 1.5, 3.0, 3

Run = tuple[tuple[Estimate, ...], dict[int, Actual]]


def numbers(rows: int = ROWS) -> dml.Dataset:
    """Keys, prices with nulls, counts."""
    draw = np.random.default_rng(0)
    price = pa.array(draw.random(rows) * 100, mask=draw.random(rows) < 0.05)
    keys = draw.integers(0, 1000, rows)
    return dml.from_arrow(pa.table({"k": keys, "price": price, "n": draw.integers(0, 50, rows)}))


def texts(rows: int = FEW) -> dml.Dataset:
    """Lines of some words, capitals and spaces."""
    words = np.array(["  Alpha", "beta ", "GAMMA", "delta,", "Epsilon!"])
    draw = np.random.default_rng(1)
    lines = [" ".join(line) for line in words[draw.integers(0, 5, (rows, 6))]]
    return dml.from_dict({"text": lines, "n": list(range(rows))})


def called(row: dict[str, Any]) -> dict[str, Any]:
    """A function that cannot be lifted: a regular expression at work."""
    return {"n": row["n"], "words": len(re.findall(r"\w+", row["text"]))}


def csv(folder: Path) -> str:
    """A file of numbers and names."""
    draw = np.random.default_rng(2)
    path = folder / "rows.csv"
    lines = (f"{a},{b:.4f},name{a % 97}" for a, b in enumerate(draw.random(2 * FEW)))
    path.write_text("id,x,name\n" + "\n".join(lines) + "\n")
    return str(path)


def pipelines(folder: Path) -> dict[str, dml.Dataset]:
    """The ten, by name."""
    table, price = numbers(), col("price").fill_null(0.0)
    few = dml.from_dict({"k": list(range(1000)), "name": [f"k{i}" for i in range(1000)]})
    return {
        "tabular expressions": table.with_columns(
            a=price.log1p(), b=(col("n") * 2 + 1) % 7, c=price / (col("n") + 1)
        ).batch(4096),
        "filter-heavy": table.filter(price > 20)
        .shuffle(buffer_size=8192)
        .filter(col("n") < 25)
        .filter(col("k") % 3 == 0)
        .batch(1024),
        "function called": texts().map(called).batch(1024),
        "function lifted": table.map(lambda row: {"y": row["n"] * 2 + row["k"]}).batch(4096),
        "text cleaning": texts()
        .with_columns(t=col("text").str.strip_chars().str.to_lowercase())
        .filter(col("t").str.contains("gamma"))
        .with_columns(w=col("t").str.split(" "))
        .batch(1024),
        "sort": table.sort("price").batch(4096),
        "group_by": table.group_by("k").agg(total=col("price").sum(), most=col("n").max()),
        "join": table.join(few, "k").batch(4096),
        "shuffle and batch": table.shuffle(seed=1).batch(256),
        "CSV": dml.read_csv(csv(folder)).filter(col("x") > 0.25).batch(1024),
    }


def run(ds: dml.Dataset) -> Run:
    """What was expected and what was done; a run to the end."""
    expected = explanation.estimated(ds._node, ds._settings)  # noqa: SLF001 - as figures, not as text
    elements = iter(ds)
    for _ in elements:
        pass
    return expected, actuals(elements.events())


class Found(NamedTuple):
    """Operators that count, those of them near, and the costliest ranked right."""

    counted: int
    near: int
    ranked: int
    ranks: int


def judged(run: Run, factor: float) -> Found:
    """How near the estimates of one run were: within ``factor``."""
    expected, did = run
    whole = sum(each.seconds for each in did.values())
    guess = {each.ordinal: each.seconds.typical if each.seconds else 0.0 for each in expected}
    heavy = [i for i, each in did.items() if each.seconds > COUNTS * whole]
    near = [i for i in heavy if guess[i] / factor <= did[i].seconds <= guess[i] * factor]
    most = sorted(heavy, key=lambda i: -did[i].seconds)[:RANKED]
    wanted = sorted(guess, key=lambda i: -guess[i])[: len(most)]
    right = sum(a == b for a, b in zip(most, wanted, strict=True))
    return Found(len(heavy), len(near), right, len(most))


def times(ds: dml.Dataset) -> tuple[float, float]:
    """Processor seconds of iterating and of analyzing, in the thread that does both."""

    def iterate() -> None:
        for _ in ds:
            pass

    def told() -> None:
        """Wait until the run before has told of itself, so that this does not count."""
        collector = collector_of(ds._settings)  # noqa: SLF001 - as above
        assert collector is not None
        collector.flush()

    works: list[Callable[[], object]] = [iterate, lambda: ds.explain(analyze=True)]
    best = [float("inf")] * 2
    for _ in range(RUNS):
        for place, work in enumerate(works):
            told()
            started = time.thread_time()
            work()
            best[place] = min(best[place], time.thread_time() - started)
    return best[0], best[1]


def main() -> None:
    """Print the table."""
    print(f"load before: {os.getloadavg()[0]:.1f}\n")
    print("| pipeline | over 5 % | first within 3x | second within 1.5x | ranked | overhead |")
    print("|---|---|---|---|---|---|")
    sums, both = np.zeros(6, dtype=int), np.zeros(2)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number, (name, ds) in enumerate(pipelines(Path(folder)).items()):
            run(ds.with_options(telemetry_dir="off"))
            stored = ds.with_options(telemetry_dir=f"{folder}/{number}")
            first, second = judged(run(stored), GUESSED), judged(run(stored), NEAR)
            took = times(stored.with_options(executor="sync"))
            both += took
            sums += (
                second.counted,
                first.counted,
                first.near,
                second.near,
                second.ranked,
                second.ranks,
            )
            print(
                f"| {name} | {second.counted} | {first.near} of {first.counted} |"
                f" {second.near} of {second.counted} | {second.ranked} of {second.ranks} |"
                f" {took[1] / took[0] - 1:+.1%} |",
                flush=True,
            )
    counted, guessed, guesses, near, ranked, ranks = sums
    print(
        f"| all | {counted} | {guesses / guessed:.0%} | {near / counted:.0%} |"
        f" {ranked} of {ranks} | {both[1] / both[0] - 1:+.1%} |"
    )


if __name__ == "__main__":
    main()
