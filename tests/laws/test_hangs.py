"""Law: if workers are stopped but not ended, a run continues without them, or names the cause."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.cluster.job_broadcast import INSIDE, Cargo
from dml.data.stream_hash import stream_hash
from dml.errors import WorkerLostError
from dml.exec.process import worker_pool
from tests.laws.kills import HANG_S, within
from tests.laws.phases import ROWS, UNIT_ROWS, UNITS, Graves, pipeline, write
from tests.laws.test_kills import WORKERS, without_nannies

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning"),
]


STUCK_S = 120  # no run that does without a stuck worker takes so long


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """These processes stand still."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with without_nannies() as made:
        yield made


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", [0, 2, UNITS // 2])
def test_a_stopped_worker_is_done_without(
    cluster: Any, moment: int, tmp_path: Path, whole: bool
) -> None:
    if moment != 2 and not whole:
        pytest.skip("a sample: the others run with --whole")
    client, pids = cluster
    write(tmp_path)
    wanted = stream_hash(pipeline(tmp_path, Graves(tmp_path), 0.0, executor="sync"))
    client.wait_for_workers(WORKERS, timeout=HANG_S)
    ds = pipeline(tmp_path, Graves(tmp_path), scheduler=client, worker_silent_s=3)
    batches = within(iter(ds), HANG_S)
    got = [next(batches) for _ in range(moment)]
    with stopped(pids()[0]):
        got.extend(batches)
    assert stream_hash(got) == wanted
    again = stream_hash(within(iter(ds), HANG_S))  # it is well again, and takes part
    assert again == wanted


def test_a_stopped_worker_may_be_the_only_one_that_has_the_job(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = cluster
    client.wait_for_workers(WORKERS, timeout=HANG_S)
    pids, ship = client.run(os.getpid), Cargo.ship
    halted: list[int] = []

    async def shipped(cargo: Cargo) -> None:
        await ship(cargo)
        if not halted:
            who = await client.scheduler.who_has(keys=[cargo._apart.key])
            halted.append(pids[who[cargo._apart.key][0]])
            os.kill(halted[0], signal.SIGSTOP)

    monkeypatch.setattr(Cargo, "ship", shipped)
    rows = INSIDE  # of eight bytes each: too much for a task
    ds = dml.from_numpy({"k": np.arange(rows)}, atom_rows=rows // UNITS).batch(rows // UNITS)
    ds = ds.with_options(scheduler=client, worker_silent_s=3, telemetry_dir="off")
    try:
        got = list(within(iter(ds.with_options(target_partition_bytes=1)), HANG_S))
    finally:
        os.kill(halted[0], signal.SIGCONT)
    assert np.concatenate([batch["k"] for batch in got]).tolist() == list(range(rows))


def test_a_worker_that_is_stuck_in_foreign_code_is_done_without(
    cluster: Any, tmp_path: Path
) -> None:
    client, _ = cluster
    client.wait_for_workers(WORKERS, timeout=HANG_S)
    pids = client.run(os.getpid)

    def stuck(row: dict[str, Any]) -> dict[str, Any]:
        if row["k"] == UNIT_ROWS and not (tmp_path / "once").exists():
            (tmp_path / "once").write_text(str(os.getpid()))
            ctypes.PyDLL(None).sleep(STUCK_S)  # keeps Python's lock
        return {"k": row["k"]}

    ds = dml.read_parquet(write(tmp_path) / "a.parquet").map(stuck).batch(UNIT_ROWS)
    ds = ds.with_options(
        scheduler=client, worker_silent_s=2, telemetry_dir="off", target_partition_bytes=1
    )
    started = time.monotonic()
    assert [k for batch in ds for k in batch["k"]] == list(range(ROWS))
    assert time.monotonic() - started < STUCK_S
    pid = int((tmp_path / "once").read_text())
    os.kill(pid, signal.SIGKILL)  # another takes its place
    (address,) = [each for each, its in pids.items() if its == pid]
    for _ in within(iter(lambda: address in client.nthreads(), False), HANG_S):
        time.sleep(0.01)  # or the test after this one would meet it while it dies


def test_a_row_over_which_every_worker_is_stuck_is_named(
    cluster: Any, tmp_path: Path, whole: bool
) -> None:
    if not whole:
        pytest.skip("on demand: --whole")
    client, _ = cluster
    client.wait_for_workers(WORKERS, timeout=HANG_S)

    def stuck(row: dict[str, Any]) -> dict[str, Any]:
        if row["k"] == 3 * UNIT_ROWS:
            ctypes.PyDLL(None).sleep(STUCK_S // 2)
        return {"k": row["k"]}

    ds = dml.read_parquet(write(tmp_path) / "a.parquet").map(stuck).batch(UNIT_ROWS)
    ds = ds.with_options(
        scheduler=client, worker_silent_s=2, telemetry_dir="off", target_partition_bytes=1
    )
    got: list[int] = []
    with pytest.raises(WorkerLostError, match="over one piece of work") as caught:
        got.extend(k for batch in ds for k in batch["k"])
    assert "a.parquet, row group 3" in caught.value.at
    assert "silent" in caught.value.why


def test_a_stopped_process_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "STOPPED_S", 1.0)
    write(tmp_path)
    wanted = stream_hash(pipeline(tmp_path, Graves(tmp_path), 0.0, executor="sync"))
    ds = pipeline(tmp_path, Graves(tmp_path), executor="processes", num_workers=WORKERS)
    batches = within(iter(ds), HANG_S)
    got = [next(batches)]
    pid = int((tmp_path / "ledger").read_text().splitlines()[-1].split()[1])
    with stopped(pid):
        got.extend(batches)
    assert stream_hash(got) == wanted


def test_workers_that_are_all_stopped_are_an_error(cluster: Any, tmp_path: Path) -> None:
    client, pids = cluster
    client.wait_for_workers(WORKERS, timeout=HANG_S)
    ds = pipeline(write(tmp_path), Graves(tmp_path), scheduler=client)
    batches = iter(ds.with_options(worker_silent_s=3, worker_wait_s=2))
    next(batches)
    started = time.monotonic()
    with stopped(*pids()), pytest.raises(WorkerLostError, match="nothing is heard") as caught:
        list(batches)
    assert time.monotonic() - started < HANG_S
    assert "tcp://" in caught.value.at
