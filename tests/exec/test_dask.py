"""This file runs pipelines on Dask clusters: the same bytes, whatever happens to the workers."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

import dml
from dml.errors import PlanError, UDFError, WorkerLostError
from dml.exec.backends import dask_crew
from dml.exec.cargo import Cargo
from dml.exec.cluster import Member, unfit, versions_here
from dml.exec.hub import Hub
from dml.settings import Settings
from dml.testing.stream_hash import stream_hash

SOON_S = 20.0  # longer than anything here takes; only a hang gets there
ROWS = 12_000

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning")


def cluster(workers: int = 2, **options: Any) -> LocalCluster:
    usual = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    return LocalCluster(n_workers=workers, silence_logs=50, **{**usual, **options})


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster() as made, Client(made) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rows")
    for part in range(3):
        start = part * ROWS // 3
        keys = np.arange(start, start + ROWS // 3)
        texts = [f"row {key}" for key in keys]
        values = np.random.Generator(np.random.Philox(part)).normal(size=len(keys))
        table = pa.table({"k": keys, "x": values, "s": texts})
        pq.write_table(table, root / f"{part}.parquet", row_group_size=500)
    return root


def turned(row: dict[str, Any]) -> dict[str, Any]:
    """Work that cannot be lifted."""
    text = row["s"]
    for _ in range(3):
        text = text[1:] + text[:1]
    return {"k": row["k"], "s": text, "words": len(text.split("o"))}


def halves(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"k": row["k"], "half": half} for half in range(row["k"] % 3)]


def doubled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"k": batch["k"] * 2}


PIPELINES: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "columns": lambda ds: ds.select("k", "x").filter(dml.col("x") > 0).batch(100),
    "rows": lambda ds: ds.filter(dml.col("k") % 7 != 3).map(turned).shuffle(900, seed=4).batch(64),
    "children": lambda ds: ds.select("k").flat_map(halves).shuffle(seed=1).batch(50),
    "stages": lambda ds: ds.map_batches(doubled, num_cpus=2).map(lambda r: {"z": r["k"] + 1}),
    "nothing": lambda ds: ds.filter(dml.col("x") > 1000).batch(10),
    "part": lambda ds: ds.map(turned).take(3001).batch(7),
}


def written(folder: Path, name: str, **options: Any) -> dml.Dataset:
    ds = PIPELINES[name](dml.read_parquet(folder))
    return ds.with_options(**{"telemetry_dir": "off", **options}).epoch(0)


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_S
    while not holds() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    return holds()


def clean(client: Client) -> bool:
    """True once nothing of any run is left on the cluster."""
    scheduler = client.cluster.scheduler
    return eventually(lambda: not scheduler.tasks and not client.futures and not crews(client))


def crews(client: Client) -> int:
    return len(Hub.of(client).crews)


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
    monkeypatch.setattr(dask_crew, "MOST_SLICES", 1)
    told: list[int] = []
    ordered: list[int] = []
    submit = client.submit

    def counted(fn: Any, *args: Any, **named: Any) -> Any:
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
    slices = sorted(ordered)[: len(told)]
    assert sum(told) / len(told) + sum(slices) / len(slices) < 2000


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


# ------------------------------------------------------------------------------ what a cluster lacks


def test_a_cluster_is_asked_for_by_name() -> None:
    ds = dml.range(5).with_options(executor="distributed", telemetry_dir="off")
    with pytest.raises(PlanError, match="needs a cluster"):
        list(ds)


def test_a_scheduler_that_does_not_answer() -> None:
    ds = dml.range(5).with_options(
        scheduler="tcp://127.0.0.1:9", connect_timeout_s=0.5, telemetry_dir="off"
    )
    start = time.monotonic()
    with pytest.raises(WorkerLostError, match="cannot be reached") as caught:
        list(ds)
    assert "127.0.0.1:9" in caught.value.at
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
    assert "test_dask.py" in caught.value.at
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
        infos = client.scheduler_info(n_workers=-1)["workers"].values()
        (labelled,) = (info["name"] for info in infos if info["resources"])
        pids = client.run(os.getpid)
        (pid,) = (
            p for a, p in pids.items() if client.scheduler_info()["workers"][a]["name"] == labelled
        )
        ds = dml.range(3000).map_batches(
            doubled_ids, batch_size=100, num_gpus=1, resources={"model": 2}
        )
        rows = ds.with_options(scheduler=client, telemetry_dir="off", target_partition_bytes=1)
        found = rows.to_numpy()
        assert found["id"].tolist() == list(range(0, 6000, 2))
        assert set(found["process"].tolist()) == {pid}


class cluster_worker:  # noqa: N801 (reads as a word in ``with``)
    """A `dask worker` from the shell, while it is entered."""

    def __init__(self, made: LocalCluster, *options: str) -> None:
        self.command = [sys.executable, "-m", "distributed.cli.dask_worker", made.scheduler_address]
        self.command += ["--nthreads", "1", "--no-dashboard", *options]

    def __enter__(self) -> Any:
        import subprocess

        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(SOON_S)


# ------------------------------------------------------------------------------------ what goes wrong


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
    from distributed import get_worker

    time.sleep(0.0005)
    return {"k": row["k"], "worker": str(get_worker().name)}


@pytest.mark.cluster
def test_a_row_that_kills_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": np.arange(3000)}), tmp_path / "a.parquet", row_group_size=1000)

    def deadly(row: dict[str, Any]) -> dict[str, Any]:
        if row["k"] == 1500:
            os._exit(3)
        return {"k": row["k"]}

    with cluster(2, processes=True) as made, Client(made) as client:
        ds = dml.read_parquet(tmp_path).map(deadly).batch(500)
        iterator = iter(ds.with_options(scheduler=client, telemetry_dir="off"))
        with pytest.raises(WorkerLostError, match="died") as caught:
            list(iterator)
        assert "a.parquet, row group" in caught.value.at


@pytest.mark.cluster
@pytest.mark.parametrize("end", ["scheduler", "client"])
def test_a_cluster_lost_on_the_way(folder: Path, end: str) -> None:
    wanted = stream_hash(written(folder, "rows", executor="sync"))
    with cluster(2, processes=True) as made:
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
    rest = iter(written(folder, "rows", executor="threads"))
    rest.load_state_dict(iterator.state_dict())
    assert stream_hash([*got, *rest]) == wanted


# ---------------------------------------------------------------------------- code that differs there

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
        ds = dml.range(500).map(module.grown)
        rows = list(ds.with_options(scheduler=client, telemetry_dir="off"))
        assert [row["id"] for row in rows] == list(range(1, 501))


def _forget(ours: str, theirs: str) -> None:
    """On a worker: its modules are its own."""
    sys.path[:] = [theirs, *(path for path in sys.path if path not in (ours, theirs))]


def test_a_job_by_value_leaves_the_registry_alone() -> None:
    import cloudpickle

    before = cloudpickle.list_registry_pickle_by_value()
    job: Any = object.__new__(object)
    from dml.exec.cargo import written_by_value

    with pytest.raises(Exception):  # noqa: B017, PT011
        written_by_value(job)
    assert cloudpickle.list_registry_pickle_by_value() == before
    assert Cargo.__doc__


def test_other_versions_are_told() -> None:
    here = versions_here()
    worker = Member("tcp://10.0.0.1:1", "w", 1, 0, {})
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


# ------------------------------------------------------------------------------------------- settings


@pytest.mark.cluster
def test_a_client_in_the_settings_stays_here(client: Client) -> None:
    ds = dml.range(5).with_options(scheduler=client)
    assert ds._settings.executor == "distributed"
    assert ds._settings == dml.range(5).with_options(executor="distributed")._settings
    assert ds.fingerprint() == dml.range(5).fingerprint()
    assert pickle.loads(pickle.dumps(ds))._settings.scheduler is None  # in this process only
    kept = pickle.loads(pickle.dumps(Settings().merged({"scheduler": "tcp://a:1"})))
    assert (kept.scheduler, kept.executor) == ("tcp://a:1", "distributed")


def test_client_memory_stays_flat(client: Client) -> None:
    ds = dml.range(2000, atom_rows=1) if _takes_atoms() else dml.range(2000)
    options = {"scheduler": client, "telemetry_dir": "off", "target_partition_bytes": 1}
    assert sum(1 for _ in ds.map_batches(doubled_plain).with_options(**options)) == 2000
    assert clean(client)
    assert not Hub.of(client).crews


def doubled_plain(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": batch["id"] * 2}


def _takes_atoms() -> bool:
    import inspect

    return "atom_rows" in inspect.signature(dml.range).parameters
