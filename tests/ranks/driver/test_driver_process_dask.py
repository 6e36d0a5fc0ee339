"""Test driver processes on Dask clusters: only the driver process has a client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

import dml
from dml.cluster import cluster as clusters
from dml.data.stream_hash import stream_hash
from dml.errors import PlanError, WorkerLostError
from dml.ranks.driver.driver_handle import living
from tests.cluster.dask_cases import SOON_S, UNCLOSED, cluster, eventually, rows_folder, written
from tests.idle import no_drivers
from tests.processes import cluster_of_processes
from tests.ranks.driver.driver_cases import HANG_S, gone, killed

pytestmark = [pytest.mark.cluster, *([UNCLOSED] if not isinstance(UNCLOSED, list) else UNCLOSED)]

__all__ = ["rows_folder"]


@pytest.fixture(scope="module")
def there() -> Iterator[LocalCluster]:
    with cluster(processes=True) as found:
        yield found
    no_drivers(HANG_S)


def clients(there: LocalCluster) -> set[str]:
    """Who is connected to the scheduler as a client."""
    return {name for name in there.scheduler.clients if name != "fire-and-forget"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["rows", "children", "part"])
def test_the_stream_is_the_same(there: LocalCluster, rows_folder: Path, name: str) -> None:
    address = there.scheduler_address
    far = written(rows_folder, name, scheduler=address, driver="process")
    assert stream_hash(far) == stream_hash(written(rows_folder, name))
    begun = iter(far)
    first = list(islice(begun, 5))
    here = iter(written(rows_folder, name))
    here.load_state_dict(begun.state_dict())
    begun.close()
    assert stream_hash([*first, *here]) == stream_hash(far)


@pytest.mark.parametrize("named", ["address", "cluster", "client", "current"])
def test_only_the_driver_is_a_client(there: LocalCluster, rows_folder: Path, named: str) -> None:
    with own_client(there, wanted=named in ("client", "current")) as client:
        before, opened = clients(there), [*clusters._OPENED]
        clustered = [*clusters._OF_CLUSTERS]
        options = {
            "address": {"scheduler": there.scheduler_address},
            "cluster": {"scheduler": there},
            "client": {"scheduler": client},
            "current": {"executor": "distributed"},
        }[named]
        ds = written(rows_folder, "rows", driver="process", **options)
        ds.explain()
        ds.memory_report()
        it = iter(ds)
        assert clients(there) == before, "nobody has connected before the first element"
        next(it)
        during = clients(there) - before
        assert len(during) == 1
        assert [*clusters._OPENED] == opened
        assert {*clusters._OF_CLUSTERS} <= {*clustered}
        assert ds.stats() is not None
        assert clients(there) == before | during
        for _ in it:
            pass
        assert eventually_true(lambda: clients(there) == before), "the driver has left"
        list(islice(ds, 3))
        assert eventually_true(lambda: clients(there) == before), "also a run that was left"


@contextmanager
def own_client(there: LocalCluster, *, wanted: bool) -> Iterator[Client | None]:
    if not wanted:
        yield None
        return
    with Client(there) as client:
        yield client


def eventually_true(holds: Callable[[], bool]) -> bool:
    eventually(holds)
    return holds()


def test_a_cluster_inside_this_process_is_refused(rows_folder: Path) -> None:
    with cluster(processes=False) as inside:
        ds = written(rows_folder, "rows", scheduler=inside, driver="process")
        with pytest.raises(PlanError, match="cannot reach the cluster"):
            iter(ds)


def test_certificates_travel_along_and_are_not_kept(there: LocalCluster, rows_folder: Path) -> None:
    pytest.importorskip("cryptography")
    with cluster(processes=True, security=True) as found, Client(found) as client:
        assert client.scheduler.address.startswith("tls://")
        ds = written(rows_folder, "columns", scheduler=client, driver="process")
        wanted = stream_hash(written(rows_folder, "columns"))
        assert stream_hash(ds) == wanted
        plain = ds.with_options(scheduler=there.scheduler_address)
        assert stream_hash(plain) == wanted, "in the same process, which has none now"


def test_no_cluster_is_told_as_ever(rows_folder: Path) -> None:
    texts = []
    for driver in ("here", "process"):
        ds = written(rows_folder, "rows", executor="distributed", driver=driver)
        with pytest.raises(PlanError) as caught:
            next(iter(ds))
        texts.append((caught.value.what, caught.value.why, caught.value.try_))
    assert texts[0] == texts[1]
    ds = written(rows_folder, "rows", scheduler="tcp://127.0.0.1:9", driver="process")
    with pytest.raises(WorkerLostError, match="the scheduler cannot be reached"):
        next(iter(ds.with_options(connect_timeout_s=1.0)))


def test_a_killed_driver_leaves_no_client_and_no_task(
    there: LocalCluster, rows_folder: Path
) -> None:
    no_drivers(HANG_S)
    before = clients(there)
    ds = written(rows_folder, "columns", scheduler=there.scheduler_address, driver="process")
    it = iter(ds.with_options(target_partition_bytes=1, prefetch=1))
    begun = list(islice(it, 4))
    (pid,) = [each.process.pid for each in living()]
    killed(pid)
    gone([pid])
    with pytest.raises(WorkerLostError, match="the driver process died"):
        begun.extend(it)
    assert eventually_true(lambda: clients(there) == before)
    assert eventually_true(lambda: not there.scheduler.tasks)
    rest = iter(ds)
    rest.load_state_dict(it.state_dict())
    assert stream_hash([*begun, *rest]) == stream_hash(written(rows_folder, "columns"))


def test_workers_die_as_without_it(rows_folder: Path) -> None:
    with cluster_of_processes(2) as found:
        until = time.monotonic() + SOON_S
        ds = written(rows_folder, "rows", scheduler=found, driver="process")
        it = iter(ds.with_options(target_partition_bytes=1))
        begun = [next(it)]
        next(iter(found.workers.values())).process.terminate()
        begun.extend(it)
        assert time.monotonic() < until + HANG_S
        assert stream_hash(begun) == stream_hash(written(rows_folder, "rows"))


def test_ranks_of_a_split_take_from_it(there: LocalCluster) -> None:
    ds = dml.range(1000, atom_rows=50).batch(10)
    ds = ds.with_options(scheduler=there, driver="process", telemetry_dir="off")
    (rank,) = ds.streaming_split(1)
    assert stream_hash(rank) == stream_hash(dml.range(1000).batch(10))
