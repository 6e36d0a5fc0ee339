"""Test that users' objects are called at once exactly as often as resources allow.

Calls wait for each other at a barrier, so that a run with fewer concurrent calls than allowed would
not end, and each call records how many are in progress.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import dml
from dml.data.stream_hash import stream_hash
from dml.errors import PlanError

Batch = dict[str, Any]
ROWS = 24
WAIT_S = 60.0


class Watched:
    """How many are made, and how many of them are called at once."""

    made = inside = most = run = 0
    lock = threading.Lock()
    barrier: threading.Barrier

    def __init__(self, run: int) -> None:
        assert run == Watched.run, "instances of another run"
        with Watched.lock:
            Watched.made += 1
        self.mine = threading.Lock()

    def __call__(self, batch: Batch) -> Batch:
        assert self.mine.acquire(blocking=False), "calls of one instance never overlap"
        with Watched.lock:
            Watched.inside += 1
            Watched.most = max(Watched.most, Watched.inside)
        Watched.barrier.wait(WAIT_S)
        with Watched.lock:
            Watched.inside -= 1
        self.mine.release()
        return {"id": batch["id"] + 1}


@pytest.fixture(autouse=True)
def _begun() -> None:
    Watched.run += 1
    Watched.made = Watched.inside = Watched.most = 0


def called(ds: dml.Dataset, **needs: Any) -> dml.Dataset:
    made: dict[str, Any] = {"fn_constructor_args": (Watched.run,), "fingerprint": "watched"}
    return ds.map_batches(Watched, schema={"id": "int64"}, **made, **needs)


def watched(at_once: int, **needs: Any) -> dml.Dataset:
    Watched.barrier = threading.Barrier(at_once)
    ds = called(dml.range(ROWS, atom_rows=1), **needs)
    return ds.with_options(telemetry_dir="off", target_partition_bytes=1, num_workers=6).epoch(0)


@pytest.mark.law
@pytest.mark.parametrize(
    ("gpus", "needs", "at_once"),
    [
        (3, {"num_gpus": 1, "num_cpus": 0}, 3),
        (1, {"num_gpus": 0.5}, 2),
        (2, {"resources": {"GPU": 1}, "concurrency": 1}, 1),
        (4, {"num_gpus": 1, "concurrency": 2}, 2),
        (2, {"resources": {"tape": 1}}, 1),
        (2, {"concurrency": 2}, 2),
        (2, {"num_cpus": 1}, 1),
    ],
)
def test_as_many_instances_as_may_be_called_at_once(
    gpus: int, needs: dict[str, Any], at_once: int
) -> None:
    ds = watched(at_once, **needs).with_options(resources={"gpu": gpus, "tape": 1})
    rows = ds.to_numpy()["id"]
    assert rows.tolist() == list(range(1, ROWS + 1))
    assert (Watched.made, Watched.most) == (at_once, at_once)


@pytest.mark.parametrize(("executor", "at_once"), [("threads", 2), ("sync", 1)])
def test_stages_of_one_resource_share_it_and_their_instances(executor: str, at_once: int) -> None:
    ds = watched(1, num_gpus=0.5).map_batches(lambda b: b, batch_size=1, num_cpus=0.5)
    ds = called(ds, num_gpus=0.5).with_options(resources={"GPU": 1}, executor=executor)
    assert ds.to_numpy()["id"].tolist() == list(range(2, ROWS + 2))
    # an instance for each slice at once, whichever stage it is of; few calls may have met in them
    assert Watched.most <= Watched.made <= at_once


@pytest.mark.law
def test_resources_change_nothing_but_when() -> None:
    hashes = set()
    for how in ({"executor": "sync"}, {"executor": "threads"}, {"executor": "threads"}):
        for gpus in (1, 2.5):
            ds = dml.range(100, atom_rows=3).map_batches(plus, batch_size=2, num_gpus=1)
            hashes.add(stream_hash(ds.with_options(**how, resources={"GPU": gpus}).batch(7)))
    assert len(hashes) == 1


def plus(batch: Batch) -> Batch:
    return {"id": batch["id"] + np.int64(len(batch["id"]))}


def test_what_this_host_lacks_is_told_with_what_to_say() -> None:
    ds = dml.range(4).map_batches(plus, num_gpus=2).with_options(telemetry_dir="off")
    for options in ({}, {"resources": {"GPU": 1}}):
        with pytest.raises(PlanError, match="needs gpu=2, which no slot offers") as caught:
            list(ds.with_options(**options))
        assert 'resources={"gpu": 2}' in caught.value.try_
        assert "test_pools.py" in caught.value.at
