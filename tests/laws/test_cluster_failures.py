"""Law: failures of a cluster lead to a typed error or the right rows, with little repeated work."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.cluster.cluster import workers_of
from dml.data.stream_hash import stream_hash
from dml.errors import WorkerLostError
from dml.exec.scheduler.core import OPEN_PER_SLOT
from tests.cluster.dask_cases import eventually
from tests.laws.kills import HANG_S, Killer, pipeline, within, write
from tests.processes import LocalCluster

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning"),
]

_log = logging.getLogger(__name__)

START_S = 90
WORKERS = 2


@contextmanager
def small(memory: int | str = "auto", **config: Any) -> Iterator[Any]:
    """A client of a cluster whose worker processes have ``memory`` and are started again."""
    with (
        dask.config.set({f"distributed.{key}": value for key, value in config.items()}),
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            memory_limit=memory,
            dashboard_address=":0",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def rest_of(batches: Iterator[Any], got: list[Any]) -> WorkerLostError | None:
    """Append all that ``batches`` still give to ``got``; how they ended before their end."""
    lost = None
    try:
        got.extend(within(batches, HANG_S))
    except WorkerLostError as error:
        lost = error
    assert lost is None or all((lost.what, lost.at, lost.why, lost.try_))
    return lost


# ---------------------------------------------------------------------- a scheduler started again


class Shell:
    """A scheduler and workers as they are started from a shell, at the same address every time."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Shell:
        self.run("dask_scheduler", "--host", "127.0.0.1", "--port", self.port)
        for _ in range(WORKERS):
            self.run("dask_worker", self.address, "--no-nanny", "--nthreads", "1")
        return self

    def run(self, name: str, *options: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.{name}", *options, "--no-dashboard"]
        quiet = subprocess.DEVNULL
        self.running.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))

    @property
    def scheduler(self) -> int:
        """The pid of the scheduler."""
        return self.running[0].pid

    def stop(self, number: int) -> None:
        """End the scheduler by a signal; workers that lose it end too, at the latest by another."""
        scheduler, *workers = self.running
        scheduler.send_signal(number)
        scheduler.wait()
        for worker in workers:
            worker.kill()
            worker.wait()
        self.running.clear()

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)


def test_a_run_goes_on_from_its_state_on_a_cluster_started_again(
    tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    wanted = stream_hash(pipeline(write(tmp_path), executor="sync"))
    shell = Shell()
    with shell, distributed.Client(shell.address, set_as_default=False) as client:
        for number in range(many(2, 20)):
            client.wait_for_workers(WORKERS, timeout=START_S)
            broken = iter(pipeline(tmp_path, scheduler=client))
            got = [next(broken) for _ in range(2 + 5 * number)]
            shell.stop((signal.SIGKILL, signal.SIGTERM)[number % 2])
            shell.__enter__()
            rest_of(broken, got)
            again = iter(pipeline(tmp_path, scheduler=client))
            again.load_state_dict(broken.state_dict())
            got.extend(within(again, HANG_S))
            assert stream_hash(got) == wanted, number


SAVED = 3  # batches between two checkpoints


class Trainer:
    """A training loop that saves its state now and then; a failure takes it back to the last."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.saved, self.state, self.target = 0, "", 0

    def train(self, ds: dml.Dataset) -> bool:
        """Go on as far as it goes; False if the cluster was lost."""
        batches = iter(ds)
        if self.state:
            batches.load_state_dict(json.loads(self.state))
            del self.got[self.saved :]
        try:
            for batch in within(batches, HANG_S):
                self.got.append(batch)
                if len(self.got) % SAVED == 0:
                    self.saved, self.state = len(self.got), json.dumps(batches.state_dict())
        except WorkerLostError:
            return False
        return True


@pytest.mark.sample(2)
@pytest.mark.parametrize("part", range(5))
def test_a_scheduler_that_is_killed_again_and_again(part: int, tmp_path: Path, whole: bool) -> None:
    if part and not whole:
        pytest.skip("a sample: the others run with --whole")
    wanted = stream_hash(pipeline(write(tmp_path), executor="sync"))
    kills, trainer, shell, draw = 0, Trainer(), Shell(), random.Random(part)

    def due() -> list[int]:
        return [shell.scheduler] if len(trainer.got) >= trainer.target else []

    with shell, distributed.Client(shell.address, set_as_default=False) as client:
        ds, over, most = pipeline(tmp_path, scheduler=client), False, 5 if whole else 2
        while kills < most or not over:
            if over:
                trainer = Trainer()
            client.wait_for_workers(WORKERS, timeout=START_S)
            trainer.target = trainer.saved + draw.randint(1, 40)
            with Killer(due, kills, most=int(kills < most), each_s=0.02) as killer:
                over = trainer.train(ds)
            assert not over or stream_hash(trainer.got) == wanted, kills
            kills += killer.kills
            if killer.kills:
                _log.info(
                    "kill %d with %d batches, %d saved", kills, len(trainer.got), trainer.saved
                )
                shell.stop(signal.SIGKILL)
                shell.__enter__()


# ------------------------------------------------------------------------------------ full memories

LIMIT_BYTES = 300 << 20
STEP_BYTES = 2 << 20
PACE_S = 0.005
DEADLY = 1600  # a row of row group 3
MOST_LINES = 60  # of logs


def write_keys(root: Path, rows: int, group: int) -> Path:
    pq.write_table(pa.table({"k": np.arange(rows)}), root / "a.parquet", row_group_size=group)
    return root


def hungry(once: Path | None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Takes all memory at one row, or only if nobody has done so before."""

    def eat(row: dict[str, Any]) -> dict[str, Any]:
        if row["k"] != DEADLY or (once is not None and once.exists()):
            return {"k": row["k"]}
        if once is not None:
            once.touch()
        held = []
        for _ in range(LIMIT_BYTES // STEP_BYTES):
            held.append(b"\1" * STEP_BYTES)
            time.sleep(PACE_S)
        time.sleep(HANG_S)  # whoever watches the memory kills this worker
        raise AssertionError(f"nobody watches the memory: {len(held)}")

    return eat


def greedy(once: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Takes memory at one row until Dask gives its worker no more tasks, and keeps it."""

    def keep(row: dict[str, Any]) -> dict[str, Any]:
        if row["k"] == DEADLY and not once.exists():
            once.touch()
            worker = distributed.get_worker()
            worker.kept = []
            while worker.status.name != "paused":
                if len(worker.kept) < LIMIT_BYTES // STEP_BYTES:
                    worker.kept.append(b"\1" * STEP_BYTES)
                time.sleep(PACE_S)
        return {"k": row["k"]}

    return keep


def keys(folder: Path, function: Callable[..., Any], client: Any, **options: Any) -> dml.Dataset:
    ds = dml.read_parquet(folder).map(function).batch(100)
    return ds.with_options(
        scheduler=client, telemetry_dir="off", target_partition_bytes=1, **options
    )


def test_a_row_that_needs_more_memory_than_workers_have(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_keys(tmp_path, 3000, 500)
    with small(LIMIT_BYTES, **{"scheduler.allowed-failures": 0}) as client:
        got: list[Any] = []
        lost = rest_of(iter(keys(tmp_path, hungry(None), client)), got)
        assert lost is not None
        assert "a.parquet, row group 3" in lost.at
        assert [k for batch in got for k in batch["k"]] == list(range(1500))
        client.wait_for_workers(WORKERS, timeout=START_S)
        rows = [batch["k"] for batch in keys(tmp_path, hungry(tmp_path / "once"), client)]
        assert np.concatenate(rows).tolist() == list(range(3000))
        assert (tmp_path / "once").exists()
    assert len(capfd.readouterr().err.splitlines()) < MOST_LINES


def test_a_worker_whose_memory_stays_full_is_left_out(tmp_path: Path) -> None:
    write_keys(tmp_path, 30_000, 500)
    with small(LIMIT_BYTES, **{"worker.memory.terminate": False}) as client:
        ds = keys(tmp_path, greedy(tmp_path / "once"), client)
        rows = [batch["k"] for batch in within(iter(ds), HANG_S)]
        assert np.concatenate(rows).tolist() == list(range(30_000))
        states = {each["status"] for each in workers_of(client).values()}
        assert "paused" in states


def test_workers_whose_memory_is_full_are_an_error(tmp_path: Path) -> None:
    write_keys(tmp_path, 30_000, 500)
    with small(LIMIT_BYTES, **{"worker.memory.terminate": False}) as client:
        client.retire_workers([next(iter(client.nthreads()))])
        ds = keys(tmp_path, greedy(tmp_path / "once"), client, worker_wait_s=2)
        lost = rest_of(iter(ds), [])
        assert lost is not None
        assert lost.what == "all workers of the cluster stand still"
        assert "memory" in lost.why


# ---------------------------------------------------------------------------------- work done again

UNITS, UNIT_ROWS = 32, 40


class Ledger:
    """Every call of a function: the process that made it, and for which row."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def writer(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """A function of rows that takes its time and is written down."""
        path = str(self.path)

        def noted(row: dict[str, Any]) -> dict[str, Any]:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, f"{os.getpid()} {row['k']}\n".encode())
            os.close(file)
            time.sleep(0.001)
            return {"k": row["k"]}

        return noted

    def calls(self) -> list[tuple[int, int]]:
        lines = (line.split() for line in self.path.read_text().splitlines())
        return [(int(pid), int(key)) for pid, key in lines]


def killed_run(ds: dml.Dataset, ledger: Ledger, kills: int) -> list[tuple[int, int]]:
    """Run ``ds`` while the worker that worked last is killed, so many times.

    Of each that was killed: its pid, and the units that were delivered whole by then.
    """
    got: list[int] = []
    deaths: list[tuple[int, int]] = []
    for batch in within(iter(ds), HANG_S):
        got.extend(batch["k"].tolist())
        if len(deaths) < kills and len(got) > (len(deaths) + 1) * UNITS * UNIT_ROWS // (kills + 2):
            pids = [pid for pid, _ in reversed(ledger.calls()) if pid not in dict(deaths)]
            for pid in pids[:1]:  # nobody may have worked since the last one died
                os.kill(pid, signal.SIGKILL)
                deaths.append((pid, len(got) // UNIT_ROWS))
    assert got == list(range(UNITS * UNIT_ROWS))
    assert deaths
    return deaths


def made_again(
    calls: Sequence[tuple[int, int]],
    deaths: Sequence[tuple[int, int]],
    parts: int,
    across: int = 0,
) -> int:
    """How many rows were made again: those of units that a killed worker had begun, undelivered.

    Of a unit that is made in ``parts``, any of them may begin it anew on a cluster, since parked
    work stays behind where a part goes to another worker; nothing begins oftener than parts are.
    Slices may begin ``across`` units before those that were not delivered.
    """
    forgiven: Counter[int] = Counter()
    for pid, delivered in deaths:
        begun = {key // UNIT_ROWS for by, key in calls if by == pid}
        forgiven.update(unit for unit in begun if unit >= delivered - across)
    made = Counter(key for _, key in calls)
    assert len(made) == UNITS * UNIT_ROWS
    for key, times in made.items():
        unit, row = divmod(key, UNIT_ROWS)
        assert times <= (1 + forgiven[unit]) * (parts - row * parts // UNIT_ROWS)
    return made.total() - len(made)


@pytest.fixture(scope="module")
def steady() -> Iterator[Any]:
    """A client of two workers that are started again, however often they die."""
    # one copy of what two workers have may be left with the one who dies
    config: Any = {"scheduler.active-memory-manager.start": False}
    with small(**config, **{"deploy.lost-worker-timeout": "1h"}) as client:
        yield client


@pytest.fixture(params=["processes", "cluster"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of a run, once there are as many workers as there should be."""
    if request.param == "processes":
        return {"executor": "processes", "num_workers": WORKERS}
    client = request.getfixturevalue("steady")
    assert eventually(lambda: len(client.run(os.getpid, on_error="ignore")) == WORKERS)
    return {"scheduler": client}


@pytest.mark.sample(2)
@pytest.mark.parametrize("atoms", [1, 4])
def test_what_a_killed_worker_did_not_deliver_is_all_that_is_done_again(
    tmp_path: Path,
    options: dict[str, Any],
    atoms: int,
    many: Callable[[int, int], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dml.exec.slicing.open_lanes.MOST_ROWS", UNIT_ROWS // 2)
    write_keys(tmp_path, UNITS * UNIT_ROWS, UNIT_ROWS)
    kills = many(2, 3)
    for number in range(many(1, 10)):
        ledger = Ledger(tmp_path / f"calls-{number}")
        ds = dml.read_parquet(tmp_path / "a.parquet", atom_rows=UNIT_ROWS // atoms)
        ds = (
            ds.map(ledger.writer())
            .batch(UNIT_ROWS // 2)
            .with_options(telemetry_dir="off", target_partition_bytes=1, **options)
        )
        deaths = killed_run(ds, ledger, kills)
        held = "scheduler" in options  # processes keep what they made outside of workers
        again = made_again(ledger.calls(), deaths, *((atoms, 0) if held else (1, 1)))
        if not held:  # a worker has begun what it has in hand, and what is parked there
            begun = 1 if atoms == 1 else OPEN_PER_SLOT * WORKERS + 1
            assert again <= kills * begun * UNIT_ROWS
