"""This file measures a pipeline of unlike stages within little memory: W5 of the peer benchmarks.

    python benchmarks/bench_w5.py [--light] [--declared] [--limits 1600 800 400] [--where threads]

160 tasks load: each sleeps 0.5 s and gives 50 rows of 1 MB in groups of ten. Each group is
transformed for 0.05 s, and then a model works on it for 0.05 s. There are 8 slots for loading and
transforming, and 4 for the model. No schedule needs less than 15 s. What sleeps holds slots and no
cores, so a machine of two cores will do; ``--light`` has rows of 250 KB and limits to match, for
one that copies slowly.

``--where hand`` is the same work without any pipeline (``w5_by_hand.py``): what the machine takes.

The cluster is started as from a shell: two workers of 4 threads, two labelled ``GPU=2``, and nobody
samples their threads. Its processes have run a few rows before anything is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # for benchmarks/w5_by_hand.py

import dml
from benchmarks.w5_by_hand import Work
from benchmarks.w5_by_hand import by_hand as processes_and_queues

LOADS, ROWS, GROUP = 160, 50, 10
LOAD_S, STEP_S, CPUS, GPUS = 0.5, 0.05, 8, 4
PROMISED = 1.15
LIMITS, LIGHT_LIMITS, ROW, LIGHT_ROW = (1600, 800, 400), (400, 200, 100), 1_000_000, 250_000
UNSAMPLED = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}  # docs/clusters.md
PLAIN, LABELLED = ("--nthreads", "4"), ("--nthreads", "2", "--resources", f"GPU={GPUS // 2}")


def best_s(loads: int = LOADS) -> float:
    """Seconds below which no schedule can be: the work of the slots for loading."""
    return (loads * LOAD_S + loads * ROWS / GROUP * STEP_S) / CPUS


def load(given: dict[str, Any], width: int) -> Iterator[dict[str, np.ndarray]]:
    """Half a second later, five groups of ten rows for what is given."""
    time.sleep(LOAD_S * len(given["id"]))
    for _ in range(ROWS // GROUP * len(given["id"])):
        yield {"x": np.zeros((GROUP, width), np.uint8)}


def transform(group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Another group of the same size."""
    time.sleep(STEP_S)
    return {"x": np.ones_like(group["x"])}


class Infer:
    """What has to be made once where it runs."""

    def __call__(self, group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One number of each row."""
        time.sleep(STEP_S)
        return {"y": group["x"][:, 0].copy()}


def pipeline(loads: int = LOADS, width: int = ROW, *, declared: bool = False) -> dml.Dataset:
    """Load, transform, infer, as a user would write it.

    Where types are not ``declared``, the first group settles them before others begin: 0.6 s.
    """
    x = {"x": pa.fixed_shape_tensor(pa.uint8(), (width,))} if declared else None
    y = {"y": "uint8"} if declared else None
    ds = dml.range(loads, atom_rows=1).map_batches(lambda given: load(given, width), schema=x)
    ds = ds.map_batches(transform, batch_size=GROUP, schema=x)
    return ds.map_batches(Infer, batch_size=GROUP, num_gpus=1, num_cpus=0, schema=y)


def shell(*words: str, log: Path) -> subprocess.Popen[bytes]:
    """A command of Dask, as a shell would start it."""
    with log.open("ab") as out:
        command = [sys.executable, "-m", f"distributed.cli.dask_{words[0]}", *words[1:]]
        return subprocess.Popen(  # noqa: S603 (words of this file)
            [*command, "--no-dashboard"], stdout=out, stderr=out, env=os.environ | UNSAMPLED
        )


@contextlib.contextmanager
def started(each: int = 2) -> Iterator[distributed.Client]:
    """A client of a scheduler, ``each`` plain workers and as many with GPUs, all of them ready."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file, log = folder / "scheduler.json", folder / "log"
        name = ("--scheduler-file", str(file))
        stack.callback(_ended, begun := [shell("scheduler", "--port", "0", *name, log=log)])
        workers = [PLAIN] * each + [LABELLED] * each
        place = ("--local-directory", str(folder))
        begun += [shell("worker", *name, *place, *options, log=log) for options in workers]
        while not file.exists():
            time.sleep(0.05)
        client = distributed.Client(scheduler_file=str(file), set_as_default=False)
        stack.enter_context(client)
        client.wait_for_workers(len(workers), timeout=60)
        yield client


def _ended(begun: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(begun):  # workers before their scheduler, which they say goodbye to
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Seen:
    """One run."""

    where: str
    limit_mb: float
    seconds: float
    rows: int
    best: float

    @property
    def ratio(self) -> float:
        """How many times the best possible it took."""
        return self.seconds / self.best


def run(ds: dml.Dataset, where: str, limit_mb: float, loads: int = LOADS) -> Seen:
    """One whole run within ``limit_mb`` million bytes."""
    limited = ds.with_options(memory_limit=int(limit_mb * 1e6), telemetry_dir="off")
    start = time.perf_counter()
    rows = sum(len(batch["y"]) for batch in limited.epoch(0).batch(ROWS))
    return Seen(where, limit_mb, time.perf_counter() - start, rows, best_s(loads))


def on_cluster(ds: dml.Dataset, client: distributed.Client) -> dml.Dataset:
    """The pipeline with 8 slots of the cluster's processors, and all its GPUs."""
    return ds.with_options(scheduler=client, num_workers=CPUS)


def in_threads(ds: dml.Dataset) -> dml.Dataset:
    """The pipeline with as many slots in this process."""
    return ds.with_options(executor="threads", num_workers=CPUS, resources={"GPU": GPUS})


def by_hand(width: int, limit_mb: float, loads: int) -> Seen:
    """The same work without any pipeline; a group is there twice while it crosses."""
    groups = max(1, int(limit_mb * 1e6) // (2 * GROUP * width))
    work = Work(load, transform, Infer(), width, groups)
    seconds, rows = processes_and_queues(work, loads, loads * ROWS)
    return Seen("hand", limit_mb, seconds, rows, best_s(loads))


def shown(seen: Seen) -> str:
    """A line of the table."""
    figures = f"{seen.seconds:.2f} | {seen.ratio:.3f} | {seen.rows}"
    return f"| {seen.where} | {seen.limit_mb:g} | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--declared", action="store_true")
    parser.add_argument("--limits", type=float, nargs="+")
    parser.add_argument("--loads", type=int, default=LOADS)
    parser.add_argument("--where", nargs="+", default=["cluster", "threads"])
    asked = parser.parse_args()
    width, limits = (LIGHT_ROW, LIGHT_LIMITS) if asked.light else (ROW, LIMITS)
    ds = pipeline(asked.loads, width, declared=asked.declared)
    print(f"best possible {best_s(asked.loads):g} s; promised at most {PROMISED:g} times that\n")
    print("| where | limit, MB | seconds | x best | rows |\n|---|---|---|---|---|")
    if "cluster" in asked.where:
        with started() as client:
            run(on_cluster(pipeline(2 * CPUS, 1), client), "warm", 400)
            for limit in asked.limits or limits:
                print(shown(run(on_cluster(ds, client), "cluster", limit, asked.loads)), flush=True)
    if "hand" in asked.where:
        for limit in asked.limits or limits:
            print(shown(by_hand(width, limit, asked.loads)), flush=True)
    if "threads" in asked.where:
        for limit in asked.limits or limits:
            print(shown(run(in_threads(ds), "threads", limit, asked.loads)), flush=True)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning")
def test_unlike_stages_are_measured() -> None:
    seen = run(in_threads(pipeline(4, 100)), "threads", 400, 4)
    assert (seen.rows, seen.best) == (4 * ROWS, best_s(4))
    assert by_hand(100, 400, 4).rows == 4 * ROWS
    with started(1) as client:
        assert run(on_cluster(pipeline(4, 100), client), "cluster", 400, 4).rows == 4 * ROWS


if __name__ == "__main__":
    main()
