"""Test the policy on random pipelines, against lower bounds of any schedule."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import pytest

from dml.exec.scheduler.policy import Demand
from dml.verify.simulate.virtual_cluster import TaskTruth, VirtualCluster
from tests.exec.pipelines import PART, Pipeline, drawn
from tests.exec.schedule_bound import lower_bound

FRESH = range(910_000, 912_000)  # nothing was tuned on these seeds
SAMPLE = 90
MEDIAN, WORST = 1.03, 2.0


def ratio(pipeline: Pipeline) -> float:
    """Seconds by the bound, once what must always hold has been seen to."""
    trace, bound = pipeline.run(), pipeline.bound()
    assert not trace.stuck, pipeline
    assert not trace.over, pipeline
    assert not trace.forced, pipeline
    assert trace.peak_bytes <= pipeline.limit_bytes, pipeline
    assert trace.seconds >= bound.seconds * (1 - 1e-9), pipeline
    return trace.seconds / bound.seconds if bound.seconds else 1.0


@pytest.mark.law
@pytest.mark.timeout(1800)  # all 2000 of them take minutes
def test_random_pipelines_are_near_what_no_schedule_can_beat(
    sampled: Callable[[Iterable[int], int], list[int]],
) -> None:
    ratios = {seed: ratio(drawn(seed)) for seed in sampled(FRESH, SAMPLE)}
    assert statistics.median(ratios.values()) <= MEDIAN
    assert max(ratios.values()) <= WORST, max(ratios, key=lambda seed: ratios[seed])


@pytest.mark.law
@pytest.mark.parametrize(
    ("seed", "most"),
    [
        (900_491, 1.3),  # a stage that takes every processor gave its turn up before that paid
        (901_255, 1.8),  # it took one for a slice or two, and shut out those that bring it more
        (900_920, 1.9),  # tasks began side by side whose outputs wait for each other in memory
    ],
)
def test_what_once_took_twice_as_long_as_need_be(seed: int, most: float) -> None:
    assert ratio(drawn(seed)) <= most


@pytest.mark.law
def test_the_least_memory_that_lets_one_partition_through_is_enough(
    sampled: Callable[[Iterable[int], int], list[int]],
) -> None:
    for seed in sampled(FRESH, SAMPLE // 6):
        ratio(drawn(seed, tight=True))


# -------------------------------------------------------------------------------------- the bound


def bound_s(
    *truth: TaskTruth, limit_bytes: int = 10**6, units: int = 8, ordered: bool = True
) -> float:
    """Of stages that each ask for one of four processors."""
    demands = [Demand(f"s{i}", output_bytes=1) for i in range(len(truth))]
    slots = {"cpu": 4.0}
    return lower_bound(demands, truth, slots, limit_bytes, units, ordered=ordered).seconds


def test_the_bound_counts_work_and_what_comes_before_and_after_it() -> None:
    assert bound_s(TaskTruth(3.0, 1)) == 6.0
    assert bound_s(TaskTruth(3.0, 1), TaskTruth(1.0, 1)) == 8.0
    assert bound_s(TaskTruth(3.0, 1), TaskTruth(1.0, 1), units=1) == 4.0


def test_the_bound_knows_that_slices_of_a_task_follow_each_other() -> None:
    assert bound_s(TaskTruth(3.0, 1, slices=10), units=1) == 30.0


def test_the_bound_knows_how_many_large_slices_fit() -> None:
    demand, truth, slots = Demand(resources=(("cpu", 3.0),)), [TaskTruth(1.0, 1)], {"cpu": 4.0}
    assert lower_bound([demand], truth, slots, 10**9, 10).seconds == 10.0


def test_the_bound_knows_what_memory_allows() -> None:
    assert bound_s(TaskTruth(1.0, 10), TaskTruth(1.0, 10), limit_bytes=10) > 16.0


def test_the_bound_knows_what_order_keeps_in_memory() -> None:
    """While one task of ten slices is delivered, the others may be ahead by five partitions."""
    free = bound_s(TaskTruth(1.0, 1, slices=10), limit_bytes=5, units=40, ordered=False)
    kept = bound_s(TaskTruth(1.0, 1, slices=10), limit_bytes=5, units=40)
    assert free == 100.0
    assert 170.0 < kept < 200.0


@pytest.mark.law
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_names_the_bottleneck(seed: int) -> None:
    """With a pool, a processor or a consumer that is ten times slower, that is what it names."""
    stages = [Demand("first", output_bytes=PART), Demand("last", max_parallel=1)]
    slow = [TaskTruth(1.0, PART), TaskTruth(5.0, 1)]
    assert lower_bound(stages, slow, {"cpu": 8.0}, 10**12, 20).bottleneck == "pool of last"
    fast = [TaskTruth(1.0, PART), TaskTruth(0.01, 1)]
    assert lower_bound(stages, fast, {"cpu": 8.0}, 10**12, 20).bottleneck == "work on cpu"
    bound = lower_bound(stages, fast, {"cpu": 8.0}, 10**12, 20, consume_s=1.0)
    assert bound.bottleneck == "consumer"
    cluster = VirtualCluster(stages, slow, {"cpu": 8.0}, 10**12, seed=seed)
    assert cluster.run(20).seconds == pytest.approx(101.0)
