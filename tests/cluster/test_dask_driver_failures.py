"""Test failures of Dask clusters during runs: lost workers and schedulers, missing code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

import cloudpickle
import dask
import distributed
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dml
from dml.cluster.cluster import ASKED, ClusterWorker, _probe, unfit
from dml.cluster.job_broadcast import written_by_value
from dml.data.stream_hash import stream_hash
from dml.errors import PlanError, WorkerLostError
from dml.exec.tasks.job import Job
from tests.cluster.dask_cases import SOON_S, UNCLOSED, clean, cluster, rows_folder, written

pytestmark = UNCLOSED
folder = rows_folder


# ---------------------------------------------------------------------------------- what goes wrong


@pytest.mark.cluster
def test_killed_workers_change_no_byte(folder: Path, whole: bool) -> None:
    wanted = stream_hash(written(folder, "rows", executor="sync"))
    with cluster(2, processes=True) as made, Client(made) as client:
        for kills in range(5 if whole else 1):
            ds = written(folder, "rows", scheduler=client, target_partition_bytes=1)
            iterator = iter(ds)
            got = [next(iterator) for _ in range(20 + kills)]
            for nanny in list(made.workers.values())[: 1 + kills % 2]:
                os.kill(nanny.pid, signal.SIGKILL)
            assert stream_hash([*got, *iterator]) == wanted
        assert clean(client)


@pytest.mark.cluster
def test_workers_that_join_take_part(folder: Path) -> None:
    with cluster(1) as made, Client(made) as client:
        ds = (
            dml.read_parquet(folder)
            .map(slow)
            .with_options(scheduler=client, target_partition_bytes=1, telemetry_dir="off")
        )
        iterator = iter(ds)
        names = {next(iterator)["worker"]}
        made.scale(3)
        client.wait_for_workers(3, timeout=SOON_S)
        names |= {row["worker"] for row in iterator}
        assert len(names) == 3


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.0005)
    return {"k": row["k"], "worker": str(distributed.get_worker().name)}


@pytest.mark.cluster
def test_a_row_that_kills_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": np.arange(3000)}), tmp_path / "a.parquet", row_group_size=1000)

    def deadly(row: dict[str, Any]) -> dict[str, Any]:
        if row["k"] == 1500:
            os._exit(3)
        return {"k": row["k"]}

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        cluster(2, processes=True) as made,
        Client(made) as client,
    ):
        ds = dml.read_parquet(tmp_path).map(deadly).batch(500)
        iterator = iter(ds.with_options(scheduler=client, telemetry_dir="off"))
        with pytest.raises(WorkerLostError, match="died") as caught:
            list(iterator)
        assert "a.parquet, row group" in caught.value.at


@pytest.mark.cluster
@pytest.mark.parametrize("end", ["scheduler", "client"])
def test_a_cluster_lost_on_the_way(folder: Path, end: str) -> None:
    wanted = stream_hash(written(folder, "rows", executor="sync"))
    connect = "distributed.comm.timeouts.connect"
    with dask.config.set({connect: "30s"}), cluster(2, processes=True) as made:
        client = Client(made.scheduler_address, timeout=2)
        ds = written(folder, "rows", scheduler=client, target_partition_bytes=1)
        iterator = iter(ds)
        got = [next(iterator) for _ in range(5)]
        client.close() if end == "client" else made.sync(made.scheduler.close)
        start = time.monotonic()
        with pytest.raises(WorkerLostError, match="lost its cluster"):
            got.extend(iterator)
        assert time.monotonic() - start < SOON_S
        client.close()
        dask.config.set({connect: "1s"})  # workers do not look for the lost scheduler for long
    rest = iter(written(folder, "rows", executor="threads"))
    rest.load_state_dict(iterator.state_dict())
    assert stream_hash([*got, *rest]) == wanted


# -------------------------------------------------------------------------- code that differs there

MODULE = """
STEP = {step}

def helper(n):
    return n + STEP

def grown(row):
    return {{"id": helper(row["id"]), "text": "x" * row["id"].bit_length()}}
"""


@pytest.mark.cluster
@pytest.mark.parametrize("there", [None, 2])
def test_functions_that_workers_lack_or_have_otherwise_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int | None
) -> None:
    name = f"grown_{there}"
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for home, step in ((theirs, there), (ours, 1)):
        home.mkdir()
        if step is not None:
            (home / f"{name}.py").write_text(MODULE.format(step=step))
    monkeypatch.setenv("PYTHONPATH", str(theirs), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(ours))
    module = importlib.import_module(name)
    with cluster(2, processes=True) as made, Client(made) as client:
        client.run(_forget, str(ours), str(theirs))
        ds = dml.range(20).map(module.grown)
        rows = list(ds.with_options(scheduler=client, telemetry_dir="off"))
        assert [row["id"] for row in rows] == list(range(1, 21))


def _forget(ours: str, theirs: str) -> None:
    """On a worker: its modules are its own."""
    sys.path[:] = [theirs, *(path for path in sys.path if path not in (ours, theirs))]


@pytest.mark.law
def test_a_job_by_value_leaves_the_registry_alone() -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    written_by_value(cast("Job", {"any": "thing"}))
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_other_versions_are_told() -> None:
    here = _probe(ASKED)
    worker = ClusterWorker("tcp://10.0.0.1:1", "w", 1, 0, {})
    assert unfit(worker, here, here) is None
    assert unfit(worker, {**here, "numpy": "1.0"}, here) is None
    for key, other in {"dml": "0.0.1", "python": "3.9.1", "pyarrow": ""}.items():
        error = unfit(worker, {**here, key: other}, here)
        assert isinstance(error, PlanError)
        assert key in error.what
        assert "10.0.0.1" in error.at
    python = here["python"].rpartition(".")[0] + ".99"
    assert unfit(worker, {**here, "python": python}, here) is None
    assert isinstance(unfit(worker, OSError("gone"), here), WorkerLostError)
