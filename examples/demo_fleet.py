"""A small team runs pipelines that begin alike: what to cache is found, cached, and measured."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

import demo_corpus
import demo_pipeline

import dml
from dml import col

MEMBERS, RUNS = 3, 6
ENDS = [
    lambda ds: ds.batch(32),
    lambda ds: ds.shuffle(buffer_size=512, seed=7).batch(32),
    lambda ds: ds.select("tokens").batch(64),
    lambda ds: ds.filter(col("bytes") < 40_000).batch(32),
]


def work(folder: str, number: int, autocache: bool) -> None:  # noqa: FBT001 (of one process)
    """Run the pipelines of one colleague: all begin alike, and end in one of four ways."""
    base = dml.read_parquet(f"{folder}/part-*.parquet").filter(col("bytes") > 500)
    base = base.flat_map(demo_pipeline.sequences).with_options(
        telemetry_dir=f"{folder}/telemetry", cache_dir=f"{folder}/cache", autocache=autocache
    )
    for run in range(RUNS):
        for _ in ENDS[(number + run) % len(ENDS)](base):
            pass


def main(folder: str) -> None:
    rows, size = demo_corpus.write(Path(folder), most_bytes=6_000_000)
    spent = [0.0]
    for option in ("", "autocache"):
        print(f"## {MEMBERS} colleagues, {RUNS} runs each, {rows:,} texts, {size / 1e6:.0f} MB")
        command = [sys.executable, __file__, folder, option]
        team = [subprocess.Popen([*command, str(n)]) for n in range(MEMBERS)]  # noqa: S603
        assert [each.wait() for each in team] == [0] * MEMBERS
        fleet = dml.fleet.open(f"{folder}/telemetry")
        spent.append(sum(fleet.runs()["cpu_s"].to_pylist()) - sum(spent))
        print(f"   {spent[-1]:.1f} s of processor time\n")
        for row in fleet.advise().slice(0, 3).to_pylist() if not option else ():
            print(f"   {row['kind']:14} {row['cpu_s']:.1f} s: {row['what']}: {row['remedy']}")
        for row in fleet.applied().to_pylist():
            said = f"{row['saved_cpu_s']:.1f} s saved, {row['promised_cpu_s']:.1f} s promised"
            print(f"   {row['cached']} of {row['runs']} runs read the cache: {said}")
        fleet.apply()
    page = fleet.report(Path(tempfile.gettempdir(), "dml-fleet.html"))
    webbrowser.open(page.as_uri()) or print(f"## The whole report: {page}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dml-demo-") as scratch:
        work(sys.argv[1], int(sys.argv[3]), bool(sys.argv[2])) if sys.argv[1:] else main(scratch)
