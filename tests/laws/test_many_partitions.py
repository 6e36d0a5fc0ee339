"""Law: a run on a cluster delivers each of many partitions once, and its client stays small.

Every run has a thousand one-row partitions, a hundred thousand with ``--whole``. The objects and
Dask futures of the client are counted, and its memory is measured.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dml
from dml.exec.memory.memory_meter import anonymous_bytes
from tests.cluster.dask_cases import UNCLOSED
from tests.processes import cluster_of_processes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(7200), UNCLOSED]

SAMPLE, WHOLE, LOOKS = 1_000, 100_000, 20
WORKERS = 2
MIB = 1 << 20
# Workers without work are faster than any client: what they make waits, as far as this allows.
MEMORY = MIB
# What a run may come to hold after a third of it: caches of libraries fill, allocators keep pages.
# A future of Dask is some 65 objects, of which a thousand partitions would have too many.
OBJECTS, FUTURES, GROWTH = 10_000, 500, 48 * MIB


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Scheduler and workers in processes of their own: what grows here is the client's."""
    with (
        cluster_of_processes(WORKERS) as cluster,
        Client(cluster, set_as_default=False) as found,
    ):
        found.wait_for_workers(WORKERS)
        yield found


@dataclass
class Held:
    """What this process holds at each look, from the first to the last partition."""

    client: Client
    objects: list[int] = field(default_factory=list)
    futures: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Count it; what is garbage is no matter."""
        gc.collect()
        self.objects.append(len(gc.get_objects()))
        self.futures.append(len(self.client.futures))
        self.nbytes.append(anonymous_bytes() or 0)

    @staticmethod
    def growth(counts: list[int]) -> int:
        """From the second third of the looks, by their middle, to the last third."""
        third = len(counts) // 3
        return int(np.median(counts[2 * third :]) - np.median(counts[third : 2 * third]))


def test_each_partition_comes_once_and_the_client_stays_small(client: Client, whole: bool) -> None:
    partitions = WHOLE if whole else SAMPLE
    ds = dml.range(partitions, atom_rows=1).map_batches(doubled, fingerprint="doubled")
    ds = ds.with_options(scheduler=client, telemetry_dir="off", target_partition_bytes=1)
    held, came = Held(client), np.zeros(partitions, np.int64)
    it = iter(ds.with_options(memory_limit=MEMORY))
    for number, row in enumerate(it):
        assert row == {"id": number, "twice": 2 * number}
        came[row["id"]] += 1
        if number % (partitions // LOOKS) == 0:
            held.look()
    assert (came == 1).all()
    assert slices(it) == partitions, "no two of them were made as one"
    assert held.growth(held.objects) < OBJECTS
    assert held.growth(held.nbytes) < GROWTH
    assert max(held.futures) < FUTURES, "whatever the number of partitions"


def doubled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": batch["id"], "twice": 2 * batch["id"]}


def slices(it: Any) -> int:
    """How many slices the stage had that gave a partition."""
    (stage,) = it.memory_report().stages
    found: int = stage.slices
    return found
