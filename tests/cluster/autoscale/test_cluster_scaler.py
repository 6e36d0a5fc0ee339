"""Scale Dask clusters up and down during runs: no row is lost or repeated."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from distributed import Client

import dml
from dml.cluster.autoscale import throughput
from dml.cluster.autoscale.cluster_scaler import Staff, grouped, leavers
from dml.cluster.autoscale.scaling_policy import ScalingDecision, ScalingWindow
from dml.cluster.cluster import ClusterWorker, connected, member
from dml.cluster.placement import Places
from dml.cluster.worker_monitor import Hub
from dml.data.stream_hash import stream_hash
from dml.errors import PlanError
from dml.exec.delivery.iterator import Elements
from dml.exec.scheduler.policy import Demand
from tests.cluster.dask_cases import SOON_S, UNCLOSED, cluster, eventually, rows_folder, written

pytestmark = UNCLOSED
folder = rows_folder


class Planted:
    """Asks for given numbers of workers, one window each, and then for the last."""

    def __init__(self, *asked: int) -> None:
        self.asked = list(asked)

    def step(self, window: ScalingWindow) -> ScalingDecision:
        asked = self.asked.pop(0) if len(self.asked) > 1 else self.asked[0]
        return ScalingDecision(asked, "planted")


def taken(iterator: Elements, staff: list[Staff]) -> Iterator[Any]:
    """Every batch; the trainer stands still while the number of workers changes."""
    for batch in iterator:
        yield batch
        scaling = scaling_of(iterator)
        if scaling.staff is not None and scaling.staff.changing:
            settle(scaling.staff)
            assert scaling.staff.count == scaling.changes[-1].asked
            staff.append(scaling.staff)


def while_scaled(it: Elements, asked: dict[int, int]) -> Iterator[Any]:
    """Every batch; after some of them there will be other numbers of workers."""
    for number, batch in enumerate(it):
        yield batch
        if number in asked and scaling_of(it).going:
            (crew,) = scaling_of(it).crews
            staff = Staff.of(crew.hub)
            staff.follow(asked[number], [crew], SOON_S)
            settle(staff)
            assert staff.count == asked[number] or not scaling_of(it).going


def settle(staff: Staff) -> None:
    """Wait until workers have come or gone; processes take their time on a busy machine."""
    for _ in range(6):
        if eventually(lambda: not staff.changing):
            return
    raise AssertionError("the number of workers is still changing")


def scaling_of(it: Elements) -> throughput.TrainerMeter:
    scaling = it.report.received
    assert isinstance(scaling, throughput.TrainerMeter)
    return scaling


def logged(batch: dict[str, np.ndarray], log: str) -> dict[str, np.ndarray]:
    """Leaves a line for every call."""
    with open(log, "ab", buffering=0) as file:
        file.write(b"%d\n" % batch["id"][0])
    return {"id": batch["id"] * 3, "process": np.full(len(batch["id"]), os.getpid())}


# ------------------------------------------------------------------------------------- up, and down


@pytest.mark.cluster
def test_one_to_six_and_back_in_one_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "policy_of", lambda _: Planted(6, 6, 1))
    log, rows = str(tmp_path / "log"), 600 * 100
    ds = dml.range(rows, atom_rows=100).map_batches(
        lambda batch: logged(batch, log), fingerprint="logged"
    )
    changed: list[Staff] = []
    with cluster(1, processes=True, memory_limit=0) as made:
        scaled = ds.batch(100).with_options(
            scheduler=made,
            autoscale=dml.Autoscale(1, 6, window=20),
            telemetry_dir="off",
            target_partition_bytes=1,
            memory_limit="1MiB",  # so that there is work left when workers come and go
            worker_wait_s=120.0,
        )
        it = iter(scaled)
        got = list(taken(it, changed))
        told = it.stats().summary
    assert np.array_equal(np.concatenate([b["id"] for b in got]), np.arange(rows) * 3)
    assert [each[1:3] for each in told["scaled"]] == [(1, 6), (6, 1)]
    assert len(changed) == 2
    assert len({int(b["process"][0]) for b in got}) >= 5  # who came took part
    calls = Counter(Path(log).read_text().split())
    assert set(calls.values()) == {1}  # who went had done all that was begun there
    assert len(calls) == 600


@pytest.mark.sample(2)
@pytest.mark.cluster
@pytest.mark.parametrize("name", ["columns", "rows", "stages", "part"])
def test_scaling_changes_no_byte(folder: Path, name: str, whole: bool) -> None:
    if name not in {"rows", "stages"} and not whole:
        pytest.skip("a sample: the others run with --whole")
    wanted = stream_hash(written(folder, name, executor="sync"))
    with cluster(2) as made:  # one of the stages asks for two processors
        small = {"target_partition_bytes": 1, "memory_limit": "1MiB"}
        ds = written(folder, name, scheduler=made, autoscale=(2, 4), **small)
        it = iter(ds)
        assert stream_hash(while_scaled(it, {2: 4, 5: 2, 9: 3, 12: 2})) == wanted


@pytest.mark.cluster
def test_what_lies_on_a_worker_that_goes_is_delivered(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    ds = dml.range(20_000, atom_rows=1000).map_batches(
        lambda batch: logged(batch, log), fingerprint="logged"
    )
    with cluster(3) as made:
        it = iter(
            ds.batch(1000).with_options(
                scheduler=made, autoscale=(1, 3), telemetry_dir="off", target_partition_bytes=1
            )
        )
        got = [next(it)]
        (crew,) = scaling_of(it).crews
        staff = Staff.of(crew.hub)
        assert eventually(lambda: len(crew.loop.stored) >= 15)  # all made, and nearly all there
        staff.follow(1, [crew], SOON_S)
        settle(staff)
        assert (staff.count, len(made.scheduler.workers), len(made.workers)) == (1, 1, 1)
        got += it
    assert np.array_equal(np.concatenate([b["id"] for b in got]), np.arange(20_000) * 3)
    assert set(Counter(Path(log).read_text().split()).values()) == {1}


def naps(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    time.sleep(0.02)
    return {"id": batch["id"]}


@pytest.mark.cluster
@pytest.mark.parametrize(("start", "pause_s", "end"), [(1, 0.0, 4), (4, 0.2, 1)])
def test_a_trainer_that_waits_gets_workers_and_a_slow_one_loses_them(
    start: int, pause_s: float, end: int
) -> None:
    with cluster(start) as made:
        ds = dml.range(10_000, atom_rows=10).map_batches(naps, fingerprint="naps").batch(10)
        it = iter(
            ds.with_options(
                scheduler=made,
                autoscale=dml.Autoscale(1, 4, window=8),
                telemetry_dir="off",
                target_partition_bytes=1,
                memory_limit="1MiB",
            )
        )
        for batch in taken(it, []):
            assert len(batch["id"]) == 10
            time.sleep(pause_s)  # what a trainer does
            if scaling_of(it).changes and scaling_of(it).changes[-1].asked == end:
                break
        changes = scaling_of(it).changes
        assert (changes[0].workers, changes[-1].asked) == (start, end)
        assert len(changes) <= 3
        it.close()


@pytest.mark.sample(1)
@pytest.mark.cluster
@pytest.mark.parametrize(("start", "bounds", "end"), [(4, (1, 2), 2), (1, (2, 3), 2)])
def test_bounds_hold_whatever_there_is(
    start: int, bounds: tuple[int, int], end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "policy_of", lambda _: Planted(start))
    with cluster(start) as made:
        ds = dml.range(20_000, atom_rows=10).map_batches(naps, fingerprint="naps").batch(10)
        usual = {"telemetry_dir": "off", "target_partition_bytes": 1, "memory_limit": "1MiB"}
        asked = dml.Autoscale(*bounds, window=4)
        it = iter(ds.with_options(scheduler=made, autoscale=asked, **usual))
        staff = None
        for _ in taken(it, []):
            staff = Staff.of(scaling_of(it).crews[0].hub)
            if staff.count == end and not staff.changing:
                break
        assert staff is not None
        assert staff.count == end
        it.close()


@pytest.mark.cluster
def test_one_run_at_a_time_scales_a_cluster() -> None:
    with cluster(2) as made:
        ds = (
            dml.range(3000, atom_rows=10)
            .batch(10)
            .with_options(
                scheduler=made, autoscale=(1, 2), telemetry_dir="off", target_partition_bytes=1
            )
        )
        one, two = iter(ds), iter(ds)
        rows = [next(one), next(one), next(two), next(two)]
        (crew,) = scaling_of(one).crews
        staff = Staff.of(crew.hub)
        assert staff.claim(scaling_of(one))
        assert not staff.claim(scaling_of(two))
        one.close()
        assert staff.claim(scaling_of(two))
        two.close()
        assert len(rows) == 4


@pytest.mark.cluster
def test_a_cluster_without_workers_gets_the_least() -> None:
    with cluster(0) as made:
        ds = (
            dml.range(100)
            .batch(10)
            .with_options(scheduler=made, autoscale=(2, 3), telemetry_dir="off")
        )
        assert len(list(ds)) == 10
        assert eventually(lambda: len(made.scheduler.workers) == 2)


# ------------------------------------------------------------------------------------------ refused


@pytest.mark.cluster
def test_what_cannot_be_scaled_is_refused() -> None:
    with cluster(1) as made, Client(made.scheduler_address) as plain, Client(made) as whole:
        ds = dml.range(10)
        for scheduler in (made.scheduler_address, plain):
            with pytest.raises(PlanError, match="needs a Dask cluster object"):
                ds.with_options(scheduler=scheduler, autoscale=(1, 2))
        late = ds.with_options(executor="distributed", autoscale=(1, 2), telemetry_dir="off")
        with plain.as_current(), pytest.raises(PlanError, match="needs a Dask cluster object"):
            list(late)
        with whole.as_current():
            assert len(list(late)) == 10
        assert connected(whole, 5.0) is whole


def test_workers_of_this_host_are_not_scaled() -> None:
    with pytest.raises(PlanError, match="workers that come and go"):
        dml.range(10).with_options(executor="threads", autoscale=(1, 2))
    with pytest.raises(PlanError, match="workers that come and go"):
        iter(dml.range(10).with_options(autoscale=(1, 2), telemetry_dir="off"))


@pytest.mark.parametrize(
    "wrong",
    [(2, 1), (0, 4), (1, 2, 3), 4, "auto", {"min": 1}, (1.5, 2)],
)
def test_what_is_no_autoscale_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match="autoscale"):
        dml.range(10).with_options(autoscale=wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"rho": 0.0}, {"rho": 1}, {"rho": True}, {"rho": "x"}),
        *({"minimize": "money"}, {"window": 0}, {"policy": "magic"}),
    ],
)
def test_options_of_autoscale_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=f"autoscale {next(iter(wrong))}"):
        dml.Autoscale(1, 4, **wrong)


# ------------------------------------------------------------------------------------------- pieces


def worker(address: str, **resources: float) -> ClusterWorker:
    return ClusterWorker(address, address, 1, 0, resources)


def test_whole_groups_leave_those_that_hold_least_first() -> None:
    own = {"a": "job-0", "b": "job-0", "c": "job-1", "d": "job-1", "e": "job-2"}
    laden = {"a": 5.0, "b": 0.0, "c": 1.0, "d": 1.0, "e": 9.0}
    groups = grouped(own, laden.__getitem__)
    assert groups == [["c", "d"], ["a", "b"], ["e"]]
    members = {each: worker(each) for each in own}
    assert leavers(groups, members, 1, lambda _: True) == {"e"}
    assert leavers(groups, members, 2, lambda _: True) == {"c", "d"}
    assert leavers(groups, members, 3, lambda _: True) == {"c", "d", "e"}
    assert leavers(groups, members, 5, lambda _: True) == {"a", "b", "c", "d"}


def test_who_alone_has_what_a_stage_needs_stays() -> None:
    members = {"a": worker("a", gpu=1.0), "b": worker("b"), "c": worker("c")}
    found = leavers(
        [["a"], ["b"], ["c"]], members, 2, lambda left: any(m.resources for m in left.values())
    )
    assert found == {"b", "c"}


def test_who_is_leaving_gets_nothing_new() -> None:
    leaving: set[str] = set()
    places = Places({"a": worker("a"), "b": worker("b")}, None, 1, leaving=leaving)
    assert (places.slots()["cpu"], places.full) == (4.0, 4)
    leaving.add("a")
    assert (places.slots()["cpu"], places.full) == (2.0, 2)
    assert places.choose(Demand(), ["a"]) == "b"
    leaving.add("b")
    assert places.choose(Demand(), ["a"]) is None


def test_a_window_says_what_a_batch_takes() -> None:
    sums = throughput.WindowSums(
        10.0, throughput.Totals(4, 8.0, 1.0, handed=20, stored=2), batches=100
    )
    sums.add(50, wait_s=1.0, step_s=4.0, queue=3.0)
    sums.add(50, wait_s=0.0, step_s=5.0, queue=1.0)
    to = throughput.Totals(30, 28.0, 11.0, handed=40, stored=7)
    window = sums.window(20.0, to, workers=4, threads=2)
    assert window is not None
    assert (window.batch_time_s, window.step_s, window.result_queue_size) == (0.1, 0.09, 2.0)
    # 20 s of 2 threads each for 25 partitions, of which a batch takes a fifth
    assert window.busy_s == pytest.approx(10 / 25 / 5)
    assert window.cpu_share == pytest.approx(10 / (10 * 4 * 2))
    assert sums.window(20.0, throughput.Totals(4, 8.0, 1.0, 20, 2), 4, 2) is None


def test_policies_by_name() -> None:
    names = [
        type(throughput.policy_of(dml.Autoscale(1, 4, policy=each))).__name__ for each in KINDS
    ]
    assert names == ["GainPolicy", "Cachew", "Utilisation"]


KINDS = ("gain", "cachew", "cpu")


def test_workers_that_take_no_part_for_a_time_are_not_scaled_away() -> None:
    """Dask closes what is beyond the number that it is given, whatever that does and holds."""
    asked: list[int] = []
    jobs: dict[int, dict[str, str]] = {name: {} for name in range(4)}
    made: Any = type("Cluster", (), {"worker_spec": jobs, "scale": staticmethod(asked.append)})()
    hub = Hub(cast("Any", SimpleNamespace(id="none")))
    for name in range(2):  # the memory of the others is full
        address = f"tcp://10.0.0.{name}:1"
        hub.members[address] = member(address, {"nthreads": 1, "name": name, "resources": {}})
    staff = Staff(made, hub)
    asyncio.run(staff._grow(3, 0.0))
    assert asked == [4]
    asyncio.run(staff._grow(6, 0.0))
    assert asked == [4, 6]


def test_a_cluster_that_raises_before_a_run_is_told_by_the_run() -> None:
    def scale(_number: int) -> None:
        raise OSError("no more machines")

    made: Any = type("Cluster", (), {"scale": staticmethod(scale)})()
    there: dict[str, Any] = {"workers": {}}
    scheduler = SimpleNamespace(identity=lambda **_: there)
    client = SimpleNamespace(id="none", scheduler=scheduler, sync=lambda ask, **how: ask(**how))
    staff = Staff(made, Hub(cast("Any", client)))
    staff.least(2)
    assert str(staff.error) == "no more machines"


def test_a_cluster_that_nobody_has_is_forgotten() -> None:
    made: Any = type("Cluster", (), {"scale": print})()
    hub = Hub(cast("Any", SimpleNamespace(id="none", cluster=made)))
    assert Staff.of(hub) is Staff.of(hub)
    left = weakref.ref(made)
    del made, hub
    gc.collect()
    assert left() is None
