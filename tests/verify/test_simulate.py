"""Test simulated runs: models on the virtual cluster, against bounds and real runs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml.exec.scheduler.policy import Demand
from dml.verify.simulate import forecast
from dml.verify.simulate.forecast import Foreseen, foresee, tried
from dml.verify.simulate.run_model import Model, ModelStage, ModelWork, RunPlace
from dml.verify.simulate.virtual_cluster import TaskTruth
from tests.sampling import amount

GB = 10**9
LOW, HIGH = 0.97, 1.03


def step(name: str, seconds: float, nbytes: int = 1, slices: int = 1, **asked: Any) -> ModelStage:
    demand = Demand(name, output_bytes=nbytes, seconds=seconds, bounded=True, **asked)
    work = ModelWork(name, seconds, 1.0, float(nbytes), cpu_s=0.0)
    return ModelStage(demand, TaskTruth(seconds, nbytes, slices), (work,))


def model(*steps: ModelStage, tasks: int, limit: int = GB, **rest: Any) -> Model:
    known: dict[str, Any] = {"consume_s": 0.0, "after_s": 0.0, "stepping_s": 0.0, "ahead": False}
    known |= {"read_bytes": 0.0, "over": ()}
    return Model(steps, tasks, limit, **(known | rest))


def place(cpu: float, **rest: Any) -> RunPlace:
    more = rest.pop("slots", {})
    return RunPlace({"cpu": cpu, **more}, cores=cpu, **rest)


def of(one: Model, where: RunPlace) -> Foreseen:
    return foresee([one], where)


@st.composite
def models(draw: st.DrawFn) -> Model:
    seconds = st.floats(0.01, 2.0)
    steps = [step("read", draw(seconds), draw(st.integers(1, 50)), draw(st.integers(1, 4)))]
    for name in draw(st.sampled_from([(), ("map",), ("map", "infer")])):
        most = draw(st.sampled_from([None, None, 1, 3]))
        steps.append(step(name, draw(seconds), draw(st.integers(1, 50)), max_parallel=most))
    stepping = draw(st.sampled_from([0.0, 0.0, 0.1]))
    tasks, limit = draw(st.integers(1, 40)), draw(st.sampled_from([200, 1_000, GB]))
    return model(*steps, tasks=tasks, limit=limit, consume_s=stepping)


@pytest.mark.law
@settings(max_examples=amount(30, 60))
@given(models(), st.integers(1, 6))
def test_no_run_is_shorter_than_its_bound(one: Model, workers: int) -> None:
    found = of(one, place(workers))
    assert found.seconds >= found.bound_s * (1 - 1e-9)
    assert found.seconds <= 1e-9 + math.fsum(
        one.slices(i) * step.truth.seconds for i, step in enumerate(one.steps)
    ) + (one.partitions * one.consume_s)
    for share in found.shares:
        assert 0 <= share.share <= 1 + 1e-9
    assert found.peak_bytes <= max(one.limit_bytes, sum(s.truth.output_bytes for s in one.steps))


@pytest.mark.law
def test_the_memory_aware_experiment_is_foreseen() -> None:
    """Section 5.3.1 of the streaming batch model: its solver finds 153 s."""
    part = 100 * 10**6
    steps = (
        step("load", 1.0, part, 5),
        step("transform", 0.5, part),
        step("infer", 0.5, 0, resources=(("gpu", 1.0),)),
    )
    found = of(model(*steps, tasks=160, limit=2 * GB), place(8, slots={"gpu": 4.0}))
    assert found.bound_s == 150
    assert 150 <= found.seconds <= 153.5
    assert found.narrow.kind == "cpu"
    assert found.narrow.title == "load"
    assert found.peak_bytes <= 2 * GB


@pytest.mark.law
@pytest.mark.parametrize("workers", [2, 7, 100])
@pytest.mark.parametrize("limit", [600, GB])
def test_many_tasks_take_what_they_would_take_one_by_one(
    workers: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = model(
        step("a", 0.3, 50, 2), step("b", 0.2, 50, max_parallel=90), tasks=1_000, limit=limit
    )
    where = place(workers)
    found = tried(one, where)
    monkeypatch.setattr(forecast, "SLICES", 10**9)
    monkeypatch.setattr(forecast, "MOST_SLOTS", 10**9)
    whole = tried(one, where)
    assert LOW <= found.seconds / whole.seconds <= HIGH
    assert LOW <= found.busy_s["cpu"] / whole.busy_s["cpu"] <= HIGH


@pytest.mark.law
def test_slots_that_stand_for_many_are_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    one = model(step("a", 0.3, 50), step("b", 0.7, 50), tasks=4_000, consume_s=1e-4)
    where = place(512)
    found = tried(one, where)
    monkeypatch.setattr(forecast, "SLICES", 10**9)
    monkeypatch.setattr(forecast, "MOST_SLOTS", 10**9)
    whole = tried(one, where)
    assert LOW <= found.seconds / whole.seconds <= HIGH
    assert LOW <= found.busy_s["cpu"] / whole.busy_s["cpu"] <= HIGH


def test_few_tasks_are_solved() -> None:
    """Three tasks on two slots: work alone says 1.5, no schedule takes less than 2."""
    found = of(model(step("a", 1.0), tasks=3), place(2))
    assert found.bound_s == 2
    assert found.optimal
    assert found.seconds == 2


def test_a_pool_is_what_is_narrow() -> None:
    one = model(step("read", 0.1), step("model", 1.0, max_parallel=2), tasks=20)
    narrow = of(one, place(8)).narrow
    assert (narrow.kind, narrow.title) == ("pool", "model")
    assert narrow.share > 0.9


def test_storage_is_shared_by_all_workers() -> None:
    one = model(step("read", 0.01), tasks=20, read_bytes=1e6)
    found = of(one, place(8, storage_bytes_s=1e6))
    assert found.narrow.kind == "storage"
    assert 20 <= found.seconds <= 20.2
    assert of(one, place(8, storage_bytes_s=1e12)).seconds < 0.1


def test_the_training_step_is_what_is_narrow() -> None:
    one = model(step("read", 0.01), tasks=20, consume_s=0.5, stepping_s=10.0)
    found = of(one, place(4, step_s=0.5))
    assert found.narrow.kind == "training"
    assert 10 <= found.seconds <= 10.1


@pytest.mark.law
def test_memory_is_what_is_narrow() -> None:
    """Two partitions fit, so that one task runs at a time while the other's output is used."""
    one = model(step("read", 1.0, 50), step("use", 1.0, 50), tasks=30, limit=150)
    found = of(one, place(8))
    assert found.narrow.kind == "memory"
    assert found.seconds > 2 * of(dataclasses.replace(one, limit_bytes=GB), place(8)).seconds


def test_few_tasks_are_what_is_narrow() -> None:
    found = of(model(step("read", 1.0), tasks=3), place(8))
    assert found.narrow.kind == "tasks"
    assert found.narrow.of == "so few tasks (3)"


def test_pythons_lock_is_what_is_narrow() -> None:
    work = ModelWork("python", 10.0, 1.0, 1.0, cpu_s=10.0, locked_s=10.0)
    one = model(ModelStage(step("python", 0.5).demand, TaskTruth(0.5, 1), (work,)), tasks=20)
    found = of(one, place(8, shares_lock=True))
    assert found.seconds == found.bound_s == 10
    assert found.narrow.kind == "python"
    assert of(one, place(8)).seconds == pytest.approx(1.5)


def test_more_workers_than_cores_do_not_compute_faster() -> None:
    work = ModelWork("numpy", 10.0, 1.0, 1.0, cpu_s=10.0)
    one = model(ModelStage(step("numpy", 0.5).demand, TaskTruth(0.5, 1), (work,)), tasks=20)
    found = of(one, dataclasses.replace(place(8), cores=2))
    assert found.seconds == 5
    assert found.narrow.kind == "cores"


def test_in_turn_everything_adds_up() -> None:
    one = model(step("read", 0.1), step("map", 0.2), tasks=10, consume_s=0.05, after_s=1.0)
    assert of(one, place(1, in_turn=True)).seconds == pytest.approx(10 * 0.35 + 1)


def test_plans_run_side_by_side() -> None:
    first, second = model(step("a", 0.5), tasks=4), model(step("b", 1.0), tasks=10)
    assert foresee([first, second], place(2)).seconds == of(second, place(2)).seconds == 5
