"""This file measures what partitions cost that cross between processes of one host.

    python benchmarks/bench_lending.py [--bytes 1000 1000000] [--times 20] [--pipelines]

Partitions of 1 kB to 256 MB lie on a worker. Another worker, and the client, fetch them as a run
does, and read every byte, lent and sent. ``--pipelines`` runs W5 without its sleeping as well, and
counts processor seconds of its workers, and what its orders and notes take on their way through
the scheduler.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import distributed
import numpy as np
import pyarrow as pa
import pytest
from distributed.utils_comm import gather_from_workers

import dml
from dml.cluster.cluster import workers_of
from dml.cluster.worker_state import Shipment
from dml.data.block import Block
from dml.exec.process import shared_memory
from dml.exec.process.partition_codec import pack, unpack
from dml.exec.process.shared_memory import Lender, is_lent
from dml.exec.process.task_runner import Answer
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.slices import Outcome
from dml.kernels.rows.ids import RowIds, source_key

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 64_000_000, 256_000_000)
WORKERS, TIMES, MOST_BYTES = 2, 20, 1_000_000_000
GROUPS, ROWS, WIDTH = 5, 10, 250_000


@contextmanager
def started() -> Iterator[distributed.Client]:
    """A client of workers that are processes with a thread each."""
    usual = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    with (
        distributed.LocalCluster(n_workers=WORKERS, **usual) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(WORKERS)
        yield client


# ------------------------------------------------------------------------------- inside of workers


def made(size: int, number: int, *, lends: bool) -> Shipment:
    """What a task leaves on its worker: a partition of ``size`` bytes."""
    data = np.full(max(1, size // 8), number)
    batch = pa.record_batch({"x": pa.array(data)})
    block = Block.from_arrow(batch, RowIds.run(source_key("bench"), 0, len(data)))
    outcome = Outcome([Piece(0, 0, block)], size, len(data))
    lender = Lender()
    parcel = lender.lent(pack(outcome, lender.keep)) if lends else pack(outcome)
    worker = distributed.get_worker()
    whence = (worker.address, worker.get_current_task()) if is_lent(parcel) else None
    return Shipment((Answer(parcel, b""),), b"", whence)


def read(shipment: Shipment) -> tuple[int, float]:
    """Every byte, and when that was done."""
    assert shipment.answers[0].parcel is not None
    block = unpack(shipment.answers[0].parcel).value[0].block
    return int(block.columns[0].values.sum()), time.time()


# --------------------------------------------------------------------------------------- transfers


@dataclass(frozen=True)
class Seen:
    """Milliseconds of a transfer, the middle one of several."""

    size: int
    to: str
    lent_ms: float
    sent_ms: float


def to_client_s(client: distributed.Client, size: int, number: int, *, lends: bool) -> float:
    """Seconds until the client has read a partition that lies on a worker."""
    future = client.submit(made, size, number, lends=lends, pure=False)
    assert future.exception() is None
    ((key, places),) = client.who_has([future]).items()

    async def fetched() -> Shipment:
        found = await gather_from_workers({key: places}, rpc=client.rpc)
        return found[0][key]

    begin = time.time()
    total, end = read(client.sync(fetched))
    assert total == number * max(1, size // 8)
    return end - begin


def to_worker_s(client: distributed.Client, size: int, number: int, *, lends: bool) -> float:
    """Seconds from handing out a task until it has read a partition of another worker."""
    one, other = sorted(workers_of(client))
    future = client.submit(made, size, number, lends=lends, pure=False, workers=[one])
    assert future.exception() is None
    begin = time.time()
    total, end = client.submit(read, future, workers=[other], pure=False).result()
    assert total == number * max(1, size // 8)
    return end - begin


WAYS: dict[str, Callable[..., float]] = {"client": to_client_s, "worker": to_worker_s}


def transfers(client: distributed.Client, sizes: list[int], times: int) -> Iterator[Seen]:
    """Each size to each receiver, lent and sent in turn so that both see the same load."""
    for size in sizes:
        for to, way in WAYS.items():
            found: dict[bool, list[float]] = {True: [], False: []}
            for number in range(max(3, min(times, MOST_BYTES // size))):
                for lends in (True, False):
                    found[lends].append(way(client, size, number + 1, lends=lends))
            lent, sent = (statistics.median(found[lends]) * 1e3 for lends in (True, False))
            yield Seen(size, to, lent, sent)


# --------------------------------------------------------------------------------------- pipelines


def loaded(given: dict[str, Any]) -> Iterator[dict[str, np.ndarray]]:
    for _ in range(GROUPS * len(given["id"])):
        yield {"x": np.zeros((ROWS, WIDTH), np.uint8)}


def pipeline(loads: int) -> dml.Dataset:
    """W5 without its sleeping: groups of 2.5 MB are made, changed, carried, and made few."""
    x = {"x": pa.fixed_shape_tensor(pa.uint8(), (WIDTH,))}
    ds = dml.range(loads, atom_rows=1).map_batches(loaded, schema=x)
    ds = ds.map_batches(lambda g: {"x": np.ones_like(g["x"])}, batch_size=ROWS, schema=x)
    ds = ds.map_batches(
        lambda g: {"y": g["x"][:, 0].copy()}, batch_size=ROWS, num_cpus=0.5, schema={"y": "uint8"}
    )
    return ds.with_options(telemetry_dir="off", memory_limit="200MB")


def spent(client: distributed.Client) -> np.ndarray:
    """Processor seconds of all workers: user, system."""
    found = client.run(os.times).values()
    return np.array([sum(t.user for t in found), sum(t.system for t in found)])


def per_group_ms(client: distributed.Client, loads: int, *, shared: bool) -> np.ndarray:
    """Processor time of workers for each group of a run."""
    before = spent(client)
    ds = pipeline(loads).with_options(scheduler=client, shared_memory=shared)
    assert sum(len(b["y"]) for b in ds.epoch(0).batch(50)) == loads * GROUPS * ROWS
    return (spent(client) - before) / (loads * GROUPS) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--pipelines", action="store_true")
    asked = parser.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    with started() as client:
        list(transfers(client, [1_000_000], 2))
        print("| bytes | to | lent, ms | sent, ms | x |\n|---|---|---|---|---|")
        for seen in transfers(client, asked.bytes, asked.times):
            figures = f"{seen.lent_ms:.2f} | {seen.sent_ms:.2f} | {seen.sent_ms / seen.lent_ms:.1f}"
            print(f"| {seen.size:,} | {seen.to} | {figures} |", flush=True)
        if asked.pipelines:
            per_group_ms(client, 4, shared=True)
            for shared in (True, False, True, False):
                user, system = per_group_ms(client, 40, shared=shared)
                way = "lent" if shared else "sent"
                print(f"{way}: workers take {user:.2f} ms user, {system:.2f} ms system a group")
    print(f"load of the machine after: {os.getloadavg()[0]:.1f}")


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning")
def test_lending_is_measured() -> None:
    with started() as client:
        seen = list(transfers(client, [1000, 2 * shared_memory.LEAST], 3))
        assert [(each.size, each.to) for each in seen[:2]] == [(1000, "client"), (1000, "worker")]
        assert (per_group_ms(client, 2, shared=True) >= 0).all()


if __name__ == "__main__":
    main()
