"""This file kills workers that hold generators half way: what was given before stays as it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dml
from dml.testing.stream_hash import stream_hash
from tests.exec.dask_cases import UNCLOSED, cluster, eventually

pytestmark = [pytest.mark.cluster, UNCLOSED]
distributed: Any = pytest.importorskip("distributed")

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


@pytest.mark.timeout(180)
@pytest.mark.parametrize("after", [1, 7, 40])
def test_a_worker_dies_over_growing_outputs(after: int) -> None:
    wanted = stream_hash(pipeline().with_options(executor="sync").epoch(0))
    with (
        cluster(2, processes=True) as made,
        distributed.Client(made, set_as_default=False) as client,
    ):
        pids = client.run(os.getpid)
        run, got = iter(pipeline().with_options(scheduler=client).epoch(0)), []
        for number, batch in enumerate(run):
            got.append(batch)
            if number == after:
                os.kill(next(iter(pids.values())), signal.SIGKILL)
        assert stream_hash(got) == wanted
        assert eventually(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 2)
    assert len(got) == UNITS * PARTS
