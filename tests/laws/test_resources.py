"""Law: a class that is slow to construct runs only where its resources are."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.cluster.cluster import workers_of
from dml.data.stream_hash import stream_hash
from dml.errors import PlanError
from tests.cluster.dask_cases import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning"),
]
dask: Any = pytest.importorskip("dask")
distributed: Any = pytest.importorskip("distributed")

START_S = 60
ROWS, BATCH = 4000, 50


class Model:
    """Slow to make; leaves a line in a file for each time that it is."""

    def __init__(self, log: str, seconds: float) -> None:
        time.sleep(seconds)
        self.log = log
        self.note("made")

    def note(self, word: str) -> None:
        """Whole lines: an append of a few bytes is one write."""
        with Path(self.log).open("a") as file:
            file.write(f"{word} {os.getpid()}\n")

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.note("called")
        return {"id": batch["id"], "score": np.sqrt(batch["id"] * 3 + 1)}


def plain(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": batch["id"] + 1}


def pipeline(log: Path, seconds: float, **needs: Any) -> dml.Dataset:
    """A stage anywhere, one where it needs to be, one anywhere again."""
    ds = dml.range(ROWS, atom_rows=200).map_batches(plain, batch_size=200)
    made: dict[str, Any] = {"fn_constructor_args": (str(log), seconds), "fingerprint": "model"}
    ds = ds.map_batches(Model, batch_size=BATCH, **made, **needs)
    ds = ds.filter(lambda row: row["id"] % 3 != 0, fingerprint="thirds").batch(64)
    return ds.with_options(telemetry_dir="off", target_partition_bytes=400).epoch(0)


def words(log: Path) -> Counter[tuple[str, int]]:
    """How often each process wrote each word."""
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter((word, int(pid)) for word, pid in (line.split() for line in lines))


@contextmanager
def started(labelled: int, plain_ones: int) -> Iterator[Any]:
    """A client of a cluster of processes, some of whose workers have a GPU."""
    offered = [{"GPU": 1.0}] * labelled + [dict[str, float]()] * plain_ones
    workers = {
        ("gpu-" if resources else "plain-") + str(number): {
            "cls": distributed.Nanny,
            "options": {"nthreads": 1, "resources": resources, "dashboard_address": ":0"},
        }
        for number, resources in enumerate(offered)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard_address": ":0"}}
    with ExitStack() as stack:
        cluster = distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=50)
        stack.enter_context(cluster)
        client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        client.wait_for_workers(len(workers), timeout=START_S)
        yield client


def pids(client: Any) -> dict[int, str]:
    """Process of a worker -> its name."""
    found = workers_of(client)
    return {pid: found[address]["name"] for address, pid in client.run(os.getpid).items()}


@pytest.fixture(scope="module")
def labelled() -> Iterator[Any]:
    """A client of two workers with a GPU and two without, on which no task of earlier tests is."""
    with started(2, 2) as client:
        yield client


def idle(client: Any) -> bool:
    """Whether the scheduler has forgotten all tasks."""
    return not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


@pytest.mark.timeout(180)
def test_a_class_is_made_once_on_each_worker_that_has_what_it_needs(
    labelled: Any, tmp_path: Path, whole: bool
) -> None:
    seconds, log = 2.0 if whole else 0.5, tmp_path / "log"
    oracle = pipeline(tmp_path / "oracle", 0.0).with_options(executor="sync")
    wanted = stream_hash(oracle)
    names = pids(labelled)
    ds = pipeline(log, seconds, num_gpus=1).with_options(scheduler=labelled)
    assert stream_hash(ds) == wanted
    found = {"made": Counter[str](), "called": Counter[str]()}
    for (word, pid), times in words(log).items():
        found[word][names.get(pid, "not a worker")] += times
    assert found["made"] == {"gpu-0": 1, "gpu-1": 1}
    assert found["called"].keys() == {"gpu-0", "gpu-1"}
    assert found["called"].total() == ROWS // BATCH, "no slice twice"


OVER = {"batch": lambda ds: ds.batch(256), "shuffle": lambda ds: ds.shuffle(300)}


@pytest.mark.parametrize("below", OVER)
def test_over_any_flow_it_runs_where_the_resources_are_and_only_there(
    labelled: Any, tmp_path: Path, below: str
) -> None:
    log, rows = tmp_path / "log", ROWS // 4
    made: dict[str, Any] = {"fn_constructor_args": (str(log), 0.0), "fingerprint": "model"}
    ds = OVER[below](dml.range(rows, atom_rows=200)).map(Model, num_gpus=1, **made)
    ds = ds.with_options(telemetry_dir="off").epoch(0)
    names = pids(labelled)
    found = stream_hash(ds.with_options(scheduler=labelled))
    at = Counter(names.get(pid, "not a worker") for word, pid in words(log) if word == "called")
    called = sum(times for (word, _), times in words(log).items() if word == "called")
    assert at.keys() <= {"gpu-0", "gpu-1"}
    assert called == (-(-rows // 256) if below == "batch" else rows)
    assert found == stream_hash(ds.with_options(executor="sync", resources={"gpu": 1}))


def test_every_task_of_the_static_graph_says_what_it_needs(labelled: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    wanted = np.concatenate([batch["id"] for batch in pipeline(tmp_path / "here", 0.0)])
    assert eventually(lambda: idle(labelled))
    with dask.config.set({"optimization.fuse.delayed": True}):
        names = pids(labelled)
        parts = dask.optimize(*pipeline(log, 0.0, num_gpus=1).to_dask())
        futures = labelled.compute(list(parts))
        tables = labelled.gather(futures)
        asked = labelled.run_on_scheduler(
            lambda dask_scheduler: {
                key: dict(task.resource_restrictions or {})
                for key, task in dask_scheduler.tasks.items()
            }
        )
    assert pa.concat_tables(tables)["id"].to_pylist() == wanted.tolist()
    needing = [key for key, resources in asked.items() if resources]
    assert all(asked[key] == {"GPU": 1} for key in needing)
    # the first task finds the types, in one go with what reads for it, and tells them
    assert Counter(key[0].split("-")[-2] for key in needing) == {"mapbatches": 19, "settled": 2}
    wrote = words(log)
    assert {names.get(pid) for _, pid in wrote} == {"gpu-0", "gpu-1"}
    assert [n for (word, _), n in wrote.items() if word == "made"] == [1, 1]


def test_without_such_workers_the_error_comes_before_any_work(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(0, 2) as client:
        ds = pipeline(log, 0.5, num_gpus=1).with_options(scheduler=client)
        rows = iter(ds)
        with pytest.raises(PlanError, match="gpu=1, which no worker offers") as caught:
            next(rows)
        seen = client.run_on_scheduler(
            lambda dask_scheduler: (list(dask_scheduler.tasks), dask_scheduler.transition_counter)
        )
    assert "test_resources.py" in caught.value.at
    assert "--resources" in caught.value.try_
    assert "cpu=1" in caught.value.why
    assert seen[0] == []
    assert not log.exists(), "nothing was made, here or there"
