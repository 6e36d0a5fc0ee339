"""Law: random scaling, killed leaving workers, and aborted runs change no byte."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dml
from dml.cluster.autoscale import throughput
from dml.cluster.autoscale.cluster_scaler import Staff
from dml.cluster.worker_monitor import Hub
from dml.exec.delivery.iterator import Elements
from dml.testing.scaling_service import keyed
from tests.cluster.dask_cases import UNCLOSED, clean, cluster, eventually

pytestmark = [pytest.mark.cluster, UNCLOSED]

ROWS, ATOM = 30_000, 100


def naps(batch: dict[str, np.ndarray], seconds: float) -> dict[str, np.ndarray]:
    time.sleep(seconds)
    return {"id": batch["id"] * 3, "process": np.full(len(batch["id"]), os.getpid())}


def pipeline(client: Client, seconds: float) -> dml.Dataset:
    ds = dml.range(ROWS, atom_rows=ATOM)
    ds = ds.map_batches(lambda batch: naps(batch, seconds), fingerprint="naps").batch(ATOM)
    return ds.with_options(
        scheduler=client,
        autoscale=(1, 4),
        telemetry_dir="off",
        target_partition_bytes=1,
        memory_limit="1MiB",  # so that there is always work left
    )


def begun(it: Elements) -> tuple[list[Any], Staff, list[Any]]:
    """The first batches of a run, who scales its cluster, and its crews."""
    got = [next(it) for _ in range(3)]
    scaling = it.report.received
    assert isinstance(scaling, throughput.TrainerMeter)
    return got, Staff.of(scaling.crews[0].hub), scaling.crews


def whole(batches: list[Any]) -> bool:
    return np.array_equal(np.concatenate([b["id"] for b in batches]), np.arange(ROWS) * 3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(3))
def test_any_numbers_at_any_time(seed: int) -> None:
    rng = keyed(seed)
    with cluster(2) as made, Client(made) as client:
        it = iter(pipeline(client, 0.002))
        got, staff, crews = begun(it)
        asked = set()
        for batch in it:
            got.append(batch)
            if not staff.changing and rng.random() < 0.2:
                wanted = int(rng.integers(1, 5))
                asked.add(wanted)
                staff.follow(wanted, crews, 5.0)
        assert whole(got)
        assert asked
        assert clean(client)
        assert eventually(lambda: not staff.changing and not staff.hub.leaving)


def test_who_is_killed_while_leaving_costs_nothing() -> None:
    with cluster(3, processes=True) as made, Client(made) as client:
        pids = client.run(os.getpid)
        it = iter(pipeline(client, 0.02))
        got, staff, crews = begun(it)
        staff.follow(1, crews, 20.0)
        assert eventually(lambda: bool(staff.hub.leaving))
        os.kill(pids[next(iter(staff.hub.leaving))], signal.SIGKILL)
        got += it
        assert whole(got)
        assert eventually(lambda: not staff.changing)
        assert eventually(lambda: not staff.hub.leaving)


def test_a_run_that_ends_lets_them_stay() -> None:
    with cluster(3) as made, Client(made) as client:
        it = iter(pipeline(client, 0.5))
        _, staff, crews = begun(it)
        staff.follow(1, crews, 20.0)
        assert eventually(lambda: bool(staff.hub.leaving))
        it.close()
        assert eventually(lambda: not staff.changing)
        assert not Hub.of(client).leaving
        assert clean(client)
        got, *_ = begun(again := iter(pipeline(client, 0.0)))
        assert whole([*got, *again])


def test_a_cluster_that_raises_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(n: int) -> None:
        raise RuntimeError(f"no quota for {n}")

    with cluster(1) as made, Client(made) as client:
        it = iter(pipeline(client, 0.0))
        got, staff, crews = begun(it)
        monkeypatch.setattr(made, "scale", refuses)
        staff.follow(4, crews, 20.0)
        assert eventually(lambda: not staff.changing)
        assert "no quota for 4" in str(staff.error)
        got += it
        assert whole(got)
        assert (staff.count, staff.error) == (1, None)
        assert "no quota for 4" in it.stats().warnings[0]
        monkeypatch.undo()
