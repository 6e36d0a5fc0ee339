"""This file kills workers that hold generators half way: what was given before stays as it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
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


def alive(client: Any) -> set[int]:
    """Worker processes that answer."""
    return {*client.run(os.getpid, on_error="ignore").values()}


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
    assert eventually(lambda: len(alive(client) - {victim}) == 2)
