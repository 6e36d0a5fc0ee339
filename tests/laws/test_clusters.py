"""Law: pipelines deliver the same bytes on Dask clusters of every kind."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dml.data.stream_hash import stream_hash
from dml.settings import SCHEDULER_POLICIES
from dml.testing.executions import RunWay, elements
from dml.testing.pipelines import NAMED
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case, violation
from tests.processes import LocalCluster
from tests.vectors.make_streams import read, states

pytestmark = pytest.mark.cluster
distributed = pytest.importorskip("distributed")

START_S = 90
SIZES = (1, 3000, 1 << 20)
KINDS = [*(f"{n} {kind}" for kind in ("threads", "processes") for n in (1, 2, 3)), "shell"]
USUAL = ("2 threads", "2 processes", "shell")


@contextmanager
def local(count: int, *, processes: bool) -> Iterator[str]:
    """The address of a LocalCluster of ``count`` workers with a thread each."""
    cluster = LocalCluster(
        n_workers=count, threads_per_worker=1, processes=processes, dashboard_address=":0"
    )
    with cluster:
        yield cluster.scheduler_address


@contextmanager
def from_the_shell(count: int) -> Iterator[str]:
    """The address of a scheduler and workers started as a user would from a shell."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    run = [sys.executable, "-m", "distributed.cli"]
    quiet = subprocess.DEVNULL
    with ExitStack() as stack:
        scheduler = [f"{run[-1]}.dask_scheduler", "--host", address, "--no-dashboard"]
        commands = [scheduler]
        worker = [f"{run[-1]}.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
        commands += [worker] * count
        for command in commands:
            started = subprocess.Popen([*run[:-1], *command], stdout=quiet, stderr=quiet)
            stack.callback(started.wait)
            stack.callback(started.terminate)
        yield address


class Clusters:
    """Clusters by kind, started when they are first asked for."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.clients: dict[str, Any] = {}

    def client(self, kind: str) -> Any:
        if kind not in self.clients:
            number, _, word = kind.partition(" ")
            made = (
                from_the_shell(2)
                if kind == "shell"
                else local(int(number), processes=word != "threads")
            )
            address = self.stack.enter_context(made)
            client = distributed.Client(address, timeout=START_S, set_as_default=False)
            self.stack.enter_context(client)
            client.wait_for_workers(2 if kind == "shell" else int(number), timeout=START_S)
            self.clients[kind] = client
        return self.clients[kind]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    made = Clusters()
    with made.stack:
        yield made


Cell = tuple[str, RunWay]
Cells = Callable[[str], Iterator[Cell]]


@pytest.fixture
def cells(whole: bool, clusters: Clusters) -> Cells:
    """`cells(name)`: all cells; or one of the usual kinds of cluster, of each pipeline another."""

    def drawn(name: str) -> Iterator[Cell]:
        ways = [
            (kind, RunWay(target_bytes=size, rewriting=rewriting))
            for rewriting in (True, False)
            for size in SIZES
            for kind in (KINDS if whole else USUAL)
        ]
        turn = [*NAMED].index(name) % len(ways)
        for kind, way in ways if whole else [ways[turn]]:
            yield kind, replace(way, scheduler=clusters.client(kind))

    return drawn


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", NAMED)
def test_named_pipelines_on_clusters(name: str, data: Path, cache: Path, cells: Cells) -> None:
    wanted = read("stream_hashes")[name]
    node = NAMED[name].make(data)._node
    for kind, way in cells(name):
        assert stream_hash(elements(node, way, cache)) == wanted, (kind, way)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", NAMED)
def test_restored_on_a_cluster_it_gives_the_rest(
    name: str, data: Path, cache: Path, cells: Cells, sampled: Callable[[list[int], int], list[int]]
) -> None:
    node = NAMED[name].make(data)._node
    out, found = states(NAMED[name].make(data), cache)
    kind, way = next(cells(name))
    way = replace(way, rewriting=True)  # a state belongs to a plan
    for place in sampled(list(range(len(out) + 1)), 1):
        rest = list(elements(node, way, cache, state=found[place]))
        assert stream_hash(rest) == stream_hash(out[place:]), (kind, place)


def test_random_pipelines_on_clusters(
    pool: DataPool, cache: Path, many: Callable[[int, int], int], whole: bool, clusters: Clusters
) -> None:
    kinds = KINDS if whole else USUAL
    for number in range(8_000_000, 8_000_000 + many(8, 500)):
        one, draw = case(number, pool), random.Random(number)
        one.ways = [
            RunWay(
                scheduler=clusters.client(draw.choice(kinds)),
                target_bytes=draw.choice(SIZES),
                rewriting=draw.random() < 0.7,
                fuzz=draw.choice([None, number]),
                policy=draw.choice(SCHEDULER_POLICIES),
            )
            for _ in range(many(2, 4))
        ]
        found = violation(one, cache)
        assert not found, found
