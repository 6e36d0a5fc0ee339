"""Law: killing workers at random moments changes no byte, and leaves no files or processes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dml.data.stream_hash import stream_hash
from tests.idle import descriptors, no_workers
from tests.laws.kills import HANG_S, Killer, pipeline, within, write
from tests.processes import LocalCluster

START_S = 90
WORKERS = 2
# Dask's clusters let go of a worker that is away so long after any of its deaths, though it may
# have come back and died again since: who is killed every few seconds would be missing soon.
PATIENT = {"distributed.deploy.lost-worker-timeout": "1h"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("kills"))


@pytest.fixture(scope="module")
def wanted(folder: Path) -> str:
    return stream_hash(pipeline(folder, executor="sync"))


def workers() -> list[int]:
    """Worker processes that are children of this one."""
    entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(entry.name) for entry in entries if _is_worker(entry)]


def _is_worker(entry: Path) -> bool:
    try:
        line = (entry / "cmdline").read_bytes()
        parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return False
    return b"dml.exec.process.worker" in line and int(parent) == os.getpid()


def test_killed_processes_change_no_byte(
    folder: Path, wanted: str, many: Callable[[int, int], int]
) -> None:
    kills = run = 0
    while kills < many(4, 100):
        run += 1
        # more losses of one slice than are forgiven would be an error, as it should be
        with Killer(workers, run, most=3, each_s=0.15) as killer:
            ds = pipeline(folder, executor="processes", num_workers=WORKERS)
            assert stream_hash(within(iter(ds), HANG_S)) == wanted, run
        kills += killer.kills


def test_files_and_processes_of_a_run_are_gone(folder: Path, wanted: str) -> None:
    no_workers(HANG_S)
    before = descriptors()
    ds = pipeline(folder, executor="processes", num_workers=WORKERS)
    assert stream_hash(ds) == wanted
    no_workers(HANG_S)  # workers that wait for the next run
    assert Path("/proc/self/maps").read_text().count("memfd:dml") == 0
    assert not workers()
    assert descriptors() <= before


@contextmanager
def with_nannies() -> Iterator[tuple[Any, Callable[[], list[int]]]]:
    """A client of a cluster whose workers are started again by Dask, and their pids."""
    distributed = pytest.importorskip("distributed")
    patient = importlib.import_module("dask").config.set(PATIENT)
    cluster = LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    )
    with patient, cluster, distributed.Client(cluster, set_as_default=False) as client:

        def pids() -> list[int]:
            found = client.run(os.getpid, on_error="ignore")
            return list(found.values()) if len(found) == WORKERS else []

        yield client, pids


@contextmanager
def without_nannies() -> Iterator[tuple[Any, Callable[[], list[int]]]]:
    """A client of a cluster whose dead workers are replaced by new ones, and their pids."""
    distributed = pytest.importorskip("distributed")
    cluster = LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50)
    started: list[subprocess.Popen[bytes]] = []
    over = threading.Event()

    def start() -> None:
        address = cluster.scheduler_address
        command = ["-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1"]
        quiet = subprocess.DEVNULL
        made = subprocess.Popen(
            [sys.executable, *command, "--no-dashboard"], stdout=quiet, stderr=quiet
        )
        started.append(made)

    def replace() -> None:
        while not over.wait(0.1):
            for dead in [each for each in started if each.poll() is not None]:
                started.remove(dead)
                start()

    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        for _ in range(WORKERS):
            start()
        client.wait_for_workers(WORKERS, timeout=START_S)
        thread = threading.Thread(target=replace, daemon=True)
        thread.start()
        try:
            yield client, lambda: [e.pid for e in started] if len(client.nthreads()) > 1 else []
        finally:
            over.set()
            thread.join()
            for each in started:
                each.kill()
                each.wait()


@pytest.mark.sample(1)
@pytest.mark.cluster
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cluster", [with_nannies, without_nannies])
def test_killed_workers_of_a_cluster_change_no_byte(
    cluster: Any, folder: Path, wanted: str, many: Callable[[int, int], int]
) -> None:
    kills = run = 0
    while kills < many(2, 50):
        # a new cluster now and then: a nanny gives up over a worker that was killed while starting
        with cluster() as (client, pids):
            client.wait_for_workers(WORKERS, timeout=START_S)
            for _ in range(10):
                run += 1
                with Killer(pids, run, most=1, each_s=0.2) as killer:
                    ds = pipeline(folder, scheduler=client)
                    assert stream_hash(within(iter(ds), HANG_S)) == wanted, run
                kills += killer.kills
                if kills >= many(2, 50):
                    break
