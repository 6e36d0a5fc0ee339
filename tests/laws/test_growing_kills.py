"""Law: killing workers that have parked generators does not change the rows before or after."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import dml
from dml.data.stream_hash import stream_hash
from tests.cluster.dask_cases import UNCLOSED, cluster, eventually
from tests.laws.test_kills import PATIENT

pytestmark = [pytest.mark.cluster, UNCLOSED]
distributed: Any = pytest.importorskip("distributed")
dask: Any = pytest.importorskip("dask")

UNITS, PARTS = 24, 6
PARAMETERS = {"step": 3}


def grown(batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Several batches of each; nobody could prove that they are always the same."""
    for part in range(PARTS):
        yield {"x": np.repeat(batch["id"], 2) * PARTS + part * PARAMETERS["step"]}


def summed(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"sum": batch["x"].sum(keepdims=True) + PARAMETERS["step"]}


def pipeline() -> dml.Dataset:
    ds = dml.range(UNITS, atom_rows=1).map_batches(grown, schema={"x": "int64"})
    ds = ds.map_batches(summed, batch_size=2, num_cpus=0.5, schema={"sum": "int64"})
    # so little that tasks wait for the consumer half way
    return ds.with_options(telemetry_dir="off", target_partition_bytes=1, memory_limit="2MiB")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Of two worker processes, which are started again when they die."""
    with (
        dask.config.set(PATIENT),
        cluster(2, processes=True) as made,
        distributed.Client(made, set_as_default=False) as found,
    ):
        yield found


def moved(client: Any, home: str, other: str) -> int:
    """Move results of parked generators from ``home`` to ``other``, as Dask's memory manager may.

    Returns how many were moved.
    """

    async def move(dask_scheduler: Any) -> int:
        of = dask_scheduler.workers[home]
        keys = [each.key for each in of.has_what if "grown" in each.key[0] and each.key[-1] > 0]
        if keys:
            await dask_scheduler.replicate(keys=keys, workers=[other], n=1)
        tasks = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
        free = [
            each.key
            for each in tasks
            if len(each.who_has or ()) == 2 and of not in {w.processing_on for w in each.waiters}
        ]
        dask_scheduler.request_remove_replicas(home, free, stimulus_id="test")
        return len(free)

    found: int = client.run_on_scheduler(move)
    return found


@pytest.mark.timeout(180)
def test_results_that_lie_away_from_their_generators_are_made_again(
    client: Any, whole: bool
) -> None:
    """Dask makes them again where the generator is, or was, without the argument of the task."""
    wanted = stream_hash(pipeline().with_options(executor="sync").epoch(0))
    found = 0
    for turn in range(4 if whole else 2):
        homes = client.run(os.getpid, on_error="ignore")  # processes by address
        home, other = sorted(homes)[:: 1 if turn % 2 else -1]
        run, got = iter(pipeline().with_options(scheduler=client).epoch(0)), []
        for number, batch in enumerate(run):
            got.append(batch)
            if number == 7:
                found += moved(client, home, other)
                os.kill(homes[other], signal.SIGKILL)
        assert stream_hash(got) == wanted
        assert eventually(partial(replaced, client, homes[other]))
    assert found


def replaced(client: Any, victim: int) -> bool:
    """True once another process has taken the place of a dead one."""
    return len(alive(client) - {victim}) == 2


def alive(client: Any) -> set[int]:
    """Worker processes that answer."""
    return {*client.run(os.getpid, on_error="ignore").values()}


@pytest.mark.sample(1)
@pytest.mark.timeout(180)
@pytest.mark.parametrize("after", [1, 7, 40])
def test_a_worker_dies_over_growing_outputs(client: Any, after: int, whole: bool) -> None:
    if after != 7 and not whole:
        pytest.skip("a sample: the others run with --whole")
    wanted = stream_hash(pipeline().with_options(executor="sync").epoch(0))
    victim = min(alive(client))
    run, got = iter(pipeline().with_options(scheduler=client).epoch(0)), []
    for number, batch in enumerate(run):
        got.append(batch)
        if number == after:
            os.kill(victim, signal.SIGKILL)
    assert stream_hash(got) == wanted
    assert len(got) == UNITS * PARTS
    assert eventually(partial(replaced, client, victim))
