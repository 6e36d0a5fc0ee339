"""Law: on a real cluster, no more slices use a resource at once than it allows.

Each call writes a line where it begins and where it ends, with its worker, to a file of its own
process, so that the lines of one process are in order of time.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.cluster.cluster import workers_of
from dml.data.stream_hash import stream_hash
from tests.cluster.dask_cases import UNCLOSED

pytestmark = [pytest.mark.cluster, UNCLOSED]
distributed: Any = pytest.importorskip("distributed")

ROWS, WAIT_S = 400, 60
# Calls that there may be at once, where resources allow fewer than a worker has threads.
AT_ONCE = {("worker-2", "one"): 1, ("worker-3", "tape"): 1}


class Noted:
    """Notes in ``folder`` when it is made, and when each call begins and ends."""

    lock = threading.Lock()

    def __init__(self, folder: str, name: str) -> None:
        self.folder, self.name = folder, name
        self.note("made")

    def note(self, word: str) -> None:
        """A whole line, appended at once."""
        with Noted.lock, (Path(self.folder) / str(os.getpid())).open("a") as file:
            file.write(f"{self.name} {word} {time.monotonic()}\n")

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.note("begins")
        found = np.sort(np.arange(30_000)[::-1])[: len(batch["id"])] * 0 + batch["id"] + 1
        self.note("ends")
        return {"id": found}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Of two plain workers, and two with resources, of two threads each."""
    offered: list[dict[str, float]] = [{}, {}, {"GPU": 1.0}, {"GPU": 2.0, "tape": 1.0}]
    workers = {
        f"worker-{number}": {
            "cls": distributed.Nanny,
            "options": {"nthreads": 2, "resources": resources, "dashboard_address": ":0"},
        }
        for number, resources in enumerate(offered)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard_address": ":0"}}
    with (
        distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=50) as cluster,
        distributed.Client(cluster, set_as_default=False) as made,
    ):
        made.wait_for_workers(len(workers), timeout=WAIT_S)
        yield made


def pipeline(folder: Path, stages: list[dict[str, Any]]) -> dml.Dataset:
    """A stage for each of these needs, in partitions of a row or a few."""
    ds = dml.range(ROWS, atom_rows=4)
    for number, needs in enumerate(stages):
        asked = {name: each for name, each in needs.items() if name != "name"}
        made = str(folder), needs.get("name", str(number))
        ds = ds.map_batches(
            Noted, batch_size=2, schema={"id": "int64"}, fn_constructor_args=made, **asked
        )
    return ds.with_options(telemetry_dir="off", target_partition_bytes=1).epoch(0)


def notes(folder: Path) -> list[tuple[float, str]]:
    """Times and words of all workers, which share a clock, in order."""
    lines = [line.split() for file in folder.iterdir() for line in file.read_text().splitlines()]
    return sorted((float(time), word) for _, word, time in lines)


def held(folder: Path, names: dict[int, str]) -> dict[str, dict[str, Counter[str]]]:
    """Worker -> name -> instances made, calls, and the most calls at once."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for file in folder.iterdir():
        seen: dict[str, Counter[str]] = {}
        for line in file.read_text().splitlines():
            name, word, _ = line.split()
            count = seen.setdefault(name, Counter())
            count[word] += 1
            count["most"] = max(count["most"], count["begins"] - count["ends"])
        found[names[int(file.name)]] = seen
    return found


@pytest.mark.timeout(180)
def test_nothing_is_held_by_more_than_it_reaches_for(tmp_path: Path, client: Any) -> None:
    infos = workers_of(client)
    names = {pid: infos[address]["name"] for address, pid in client.run(os.getpid).items()}
    stages: list[dict[str, Any]] = [
        {"num_gpus": 1, "num_cpus": 0, "name": "one"},
        {"name": "plain"},
        {"num_gpus": 0.5, "name": "half"},
        {"resources": {"tape": 1}, "name": "tape"},
    ]
    folder = tmp_path / "there"
    folder.mkdir()
    ds = pipeline(folder, stages).with_options(scheduler=client)
    found = stream_hash(ds.batch(7))
    seen = held(folder, names)
    labelled = {"worker-2", "worker-3"}
    for name, where in (("one", labelled), ("half", labelled), ("tape", {"worker-3"})):
        holders = {worker for worker, each in seen.items() if name in each}
        assert holders <= where
        assert sum(seen[worker][name]["begins"] for worker in holders) == ROWS // 2
    assert seen["worker-2"]["one"]["most"] <= 1
    assert seen["worker-3"]["one"]["most"] <= 2
    assert seen["worker-2"]["half"]["most"] <= 2
    assert seen["worker-3"]["tape"]["most"] == 1
    for worker, each in seen.items():
        for name, count in each.items():
            assert count["made"] <= AT_ONCE.get((worker, name), 2), "one for each call at once"
    here = tmp_path / "here"
    here.mkdir()
    assert stream_hash(pipeline(here, stages_here(stages)).batch(7)) == found


def stages_here(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same without needs, which change no byte."""
    return [{"name": each["name"]} for each in stages]


@pytest.mark.timeout(180)
def test_threads_beyond_those_that_a_run_may_have_are_left_alone(
    tmp_path: Path, client: Any
) -> None:
    infos = workers_of(client)
    names = {pid: infos[address]["name"] for address, pid in client.run(os.getpid).items()}
    ds = pipeline(tmp_path, [{"concurrency": 64}]).with_options(scheduler=client, num_workers=3)
    assert ds.to_numpy()["id"].tolist() == list(range(1, ROWS + 1))
    seen = held(tmp_path, names)
    assert seen.keys() <= {"worker-0", "worker-1"}, "workers without resources first"
    calls, now, most = notes(tmp_path), 0, 0
    for _, word in calls:
        now += {"begins": 1, "ends": -1}.get(word, 0)
        most = max(most, now)
    assert sum(word == "begins" for _, word in calls) >= ROWS / 2
    assert most <= 3, "each of the two workers has two threads"
