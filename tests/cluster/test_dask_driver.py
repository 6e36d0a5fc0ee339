"""Run pipelines on Dask clusters: the same bytes, even if workers are lost."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dml
from dml.cluster import placement
from dml.cluster.cluster import close_all, workers_of
from dml.cluster.worker_monitor import Hub
from dml.data.stream_hash import stream_hash
from dml.errors import PlanError, UDFError, WorkerLostError
from dml.settings import Settings
from tests.cluster.dask_cases import (
    PIPELINES,
    SOON_S,
    UNCLOSED,
    clean,
    cluster,
    doubled,
    eventually,
    rows_folder,
    written,
)

pytestmark = UNCLOSED
folder = rows_folder


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster() as made, Client(made) as found:
        yield found


@pytest.mark.sample(7)
@pytest.mark.cluster
@pytest.mark.parametrize("target", [1, 30_000, "auto"])
@pytest.mark.parametrize("name", PIPELINES)
def test_the_same_bytes_as_without_a_cluster(
    folder: Path, client: Client, name: str, target: int | str
) -> None:
    wanted = stream_hash(written(folder, name, executor="sync"))
    ds = written(folder, name, executor="distributed", target_partition_bytes=target)
    assert stream_hash(ds) == wanted
    assert clean(client)


@pytest.mark.cluster
def test_every_way_to_name_a_cluster(folder: Path, client: Client) -> None:
    wanted = stream_hash(written(folder, "rows", executor="sync"))
    for scheduler in (client, client.cluster, client.scheduler.address):
        assert stream_hash(written(folder, "rows", scheduler=scheduler)) == wanted
    close_all()


@pytest.mark.cluster
def test_what_a_run_may_use_is_what_the_workers_have(folder: Path) -> None:
    limit = 4 << 30  # workers in this process, whatever earlier tests have left in it
    with cluster(3, threads_per_worker=2, memory_limit=limit) as made, Client(made) as found:
        ds = written(folder, "rows", scheduler=found)
        report = ds.memory_report()
        assert (report.workers, report.limit_bytes) == (6, 3 * limit // 4)
        named = ds.with_options(num_workers=4, memory_limit="300MiB").memory_report()
        assert (named.workers, named.limit_bytes) == (4, 300 << 20)


@pytest.mark.cluster
def test_what_lies_in_memory_travels_once(client: Client) -> None:
    column = np.arange(400_000)
    ds = dml.from_numpy({"k": column}).map_batches(doubled).batch(50_000)
    run = list(ds.with_options(executor="distributed", telemetry_dir="off"))
    assert np.array_equal(np.concatenate([b["k"] for b in run]), column * 2)
    assert clean(client)


@pytest.mark.cluster
def test_little_passes_the_scheduler(
    folder: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "MOST_SLICES", 1)
    told: list[int] = []
    ordered: list[int] = []
    submit = client.submit

    def counted(fn: Any, *args: Any, **named: Any) -> Any:
        if not named["key"][0].startswith("dml-seat"):  # which carries the job, once a worker
            ordered.append(len(pickle.dumps([a for a in args if isinstance(a, bytes)])))
        return submit(fn, *args, **named)

    heard = Hub._heard

    def listened(hub: Hub, event: tuple[float, bytes]) -> None:
        told.append(len(event[1]))
        heard(hub, event)

    monkeypatch.setattr(client, "submit", counted)
    monkeypatch.setattr(Hub, "_heard", listened)
    rows = list(written(folder, "rows", executor="distributed", target_partition_bytes=30_000))
    assert rows
    assert sum(told) / len(told) + sum(ordered) / len(ordered) < 2000


@pytest.mark.cluster
def test_closing_early_leaves_nothing(folder: Path, client: Client) -> None:
    ds = written(folder, "rows", executor="distributed", target_partition_bytes=1)
    iterator = iter(ds)
    next(iterator)
    state = iterator.state_dict()
    iterator.close()
    assert clean(client)
    rest = iter(written(folder, "rows", executor="threads"))
    rest.load_state_dict(state)
    first = [next(iter(written(folder, "rows", executor="sync")))]
    assert stream_hash([*first, *rest]) == stream_hash(written(folder, "rows", executor="sync"))


@pytest.mark.cluster
def test_a_forgotten_iterator_leaves_nothing(folder: Path, client: Client) -> None:
    iterator = iter(written(folder, "rows", executor="distributed", target_partition_bytes=1))
    next(iterator)
    del iterator
    assert clean(client)


@pytest.mark.cluster
def test_two_runs_on_one_client_at_once(folder: Path, client: Client) -> None:
    wanted = stream_hash(written(folder, "rows", executor="sync"))
    one, two = (iter(written(folder, "rows", executor="distributed")) for _ in range(2))
    batches = list(zip(one, two, strict=True))
    assert stream_hash([pair[0] for pair in batches]) == wanted
    assert stream_hash([pair[1] for pair in batches]) == wanted


@pytest.mark.cluster
def test_errors_come_at_their_place(folder: Path, client: Client) -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["k"] == 1234:
            raise ValueError("no such row")
        return {"k": row["k"]}

    ds = dml.read_parquet(folder).map(fails).batch(100)
    iterator = iter(ds.with_options(executor="distributed", telemetry_dir="off"))
    got: list[Any] = []
    with pytest.raises(UDFError, match="no such row") as caught:
        got.extend(iterator)
    assert len(got) == 12
    assert caught.value.row == 1234
    assert clean(client)


# ----------------------------------------------------------------------------- what a cluster lacks


def test_a_cluster_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> None:
        raise ValueError("no client")

    monkeypatch.setattr(distributed, "get_client", nobody)
    ds = dml.range(5).with_options(executor="distributed", telemetry_dir="off")
    with pytest.raises(PlanError, match="needs a cluster"):
        list(ds)


@pytest.mark.law
def test_a_scheduler_that_does_not_answer() -> None:
    ds = dml.range(5).with_options(
        scheduler="tcp://127.0.0.1:9", connect_timeout_s=0.5, telemetry_dir="off"
    )
    start = time.monotonic()
    with pytest.raises(WorkerLostError, match="cannot be reached") as caught:
        list(ds)
    assert "127.0.0.1:9" in caught.value.at
    assert time.monotonic() - start < SOON_S


@pytest.mark.law
@pytest.mark.parametrize("scheme", ["tcp", "tls", "nonsense"])
def test_somebody_else_who_listens_there(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ds = dml.range(5).with_options(
            scheduler=f"{scheme}://127.0.0.1:{silent.getsockname()[1]}",
            connect_timeout_s=0.5,
            telemetry_dir="off",
        )
        start = time.monotonic()
        with pytest.raises(WorkerLostError, match="cannot be reached"):
            list(ds)
        assert time.monotonic() - start < SOON_S


@pytest.mark.cluster
def test_a_cluster_without_workers() -> None:
    with cluster(0) as made, Client(made) as client:
        ds = dml.range(5).with_options(scheduler=client, worker_wait_s=0.3, telemetry_dir="off")
        with pytest.raises(WorkerLostError, match="no workers"):
            list(ds)
        threading.Timer(0.5, made.scale, [1]).start()
        assert len(list(ds.with_options(worker_wait_s=SOON_S))) == 5


@pytest.mark.cluster
def test_a_resource_that_nobody_has(client: Client) -> None:
    calls: list[int] = []

    def seen(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        calls.append(1)
        return batch

    ds = dml.range(1000).map_batches(seen).map_batches(doubled_ids, num_gpus=1)
    with pytest.raises(PlanError, match="gpu=1, which no worker offers") as caught:
        list(ds.with_options(scheduler=client, telemetry_dir="off"))
    assert "cpu=1" in caught.value.why
    assert "test_dask_driver.py" in caught.value.at
    assert not calls


def doubled_ids(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": batch["id"] * 2, "process": np.full(len(batch["id"]), os.getpid())}


@pytest.mark.cluster
def test_tasks_with_a_label_run_where_it_is(folder: Path) -> None:
    with (
        cluster(1, processes=True) as made,
        Client(made) as client,
        cluster_worker(made, "--resources", "GPU=1 model=2"),
    ):
        client.wait_for_workers(2, timeout=SOON_S)
        infos = workers_of(client)
        (labelled,) = (info["name"] for info in infos.values() if info["resources"])
        pids = client.run(os.getpid)
        (pid,) = (p for a, p in pids.items() if infos[a]["name"] == labelled)
        ds = dml.range(3000).map_batches(
            doubled_ids, batch_size=100, num_gpus=1, resources={"model": 2}
        )
        rows = ds.with_options(scheduler=client, telemetry_dir="off", target_partition_bytes=1)
        found = rows.to_numpy()
        assert found["id"].tolist() == list(range(0, 6000, 2))
        assert set(found["process"].tolist()) == {pid}


def slowly_doubled(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.05)
    return {"id": batch["id"] * 2}


@pytest.mark.sample(1)
@pytest.mark.cluster
@pytest.mark.parametrize("replaced", [False, True])
def test_the_only_worker_with_a_label_dies(*, replaced: bool) -> None:
    with ExitStack() as stack:
        made = stack.enter_context(cluster(1, processes=True))
        client = stack.enter_context(Client(made))
        labelled = stack.enter_context(cluster_worker(made, "--resources", "GPU=1", "--no-nanny"))
        client.wait_for_workers(2, timeout=SOON_S)
        ds = dml.range(4000).map_batches(slowly_doubled, batch_size=100, num_gpus=1)
        wait_s = SOON_S if replaced else 1
        given = {"scheduler": client, "worker_wait_s": wait_s, "telemetry_dir": "off"}
        it = iter(ds.with_options(**given, target_partition_bytes=1).batch(100))
        found = [next(it)["id"]]
        labelled.kill()
        if replaced:
            stack.enter_context(cluster_worker(made, "--resources", "GPU=1"))
            found += [batch["id"] for batch in it]
            assert np.concatenate(found).tolist() == list(range(0, 8000, 2))
            return
        with pytest.raises(WorkerLostError, match="no worker offers cpu=1, gpu=1 any more") as lost:
            list(it)
        assert "slowly_doubled" in lost.value.at
        assert it.state_dict()


class cluster_worker:  # noqa: N801 (reads as a word in ``with``)
    """A `dask worker` from the shell, while it is entered."""

    def __init__(self, made: LocalCluster, *options: str) -> None:
        self.command = [sys.executable, "-m", "distributed.cli.dask_worker", made.scheduler_address]
        self.command += ["--nthreads", "1", "--no-dashboard", *options]

    def __enter__(self) -> Any:
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(SOON_S)


# ----------------------------------------------------------------------------------------- settings


@pytest.mark.cluster
def test_a_client_in_the_settings_stays_here(client: Client) -> None:
    ds = dml.range(5).with_options(scheduler=client)
    assert ds._settings.executor == "distributed"
    assert ds._settings == dml.range(5).with_options(executor="distributed")._settings
    assert ds.fingerprint() == dml.range(5).fingerprint()
    assert pickle.loads(pickle.dumps(ds))._settings.scheduler is None  # in this process only
    kept = pickle.loads(pickle.dumps(Settings().merged({"scheduler": "tcp://a:1"})))
    assert (kept.scheduler, kept.executor) == ("tcp://a:1", "distributed")


@pytest.mark.cluster
def test_many_small_tasks_leave_no_trace(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MOST_SLICES", 1)
    groups = dml.from_numpy({"id": np.arange(2000)}, atom_rows=10).map_batches(doubled_plain)
    ds = groups.with_options(scheduler=client, telemetry_dir="off", target_partition_bytes=1)
    assert sum(1 for _ in ds) == 2000
    assert clean(client)


def doubled_plain(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": batch["id"] * 2}


@pytest.mark.cluster
def test_the_dashboard_names_operators_and_functions(client: Client) -> None:
    ds = dml.range(400, atom_rows=100).map_batches(doubled_plain).shuffle().batch(10)
    assert list(ds.with_options(scheduler=client, telemetry_dir="off"))
    names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes))
    assert any("> MapBatches(doubled_plain)" in name and name.startswith("dml:") for name in names)


@pytest.mark.cluster
def test_runs_leave_no_more_on_a_scheduler_than_the_first_did() -> None:
    """Dask keeps spans for good, and in them groups of tasks: they are the same for every run."""
    with cluster() as made, Client(made) as client:
        scheduler = made.scheduler
        spans = scheduler.extensions["spans"].spans

        def kept() -> tuple[int, int, int]:
            groups = sum(len(each.groups) for each in spans.values())
            return len(scheduler.task_groups), len(spans), groups

        first = 0, 0, 0
        for run in range(5):
            ds = dml.range(400, atom_rows=100).map(lambda row: {"y": row["id"] + 1}).shuffle()
            assert list(ds.batch(10).with_options(scheduler=client, telemetry_dir="off"))
            assert clean(client)
            first = first if run else kept()
            assert eventually(partial(lambda wanted: kept() == wanted, first))
        assert first[1] == 1
