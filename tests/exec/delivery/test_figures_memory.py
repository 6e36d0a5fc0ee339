"""Reproduce figure 9 of the streaming batch paper on the virtual cluster: the order of policies."""

from __future__ import annotations

from functools import cache

import pytest

from dml.verify.simulate.virtual_cluster import ClusterTrace
from tests.exec.delivery.figure_cases import (
    FIFTIETH_BOUND_S,
    GB,
    MEMORY_BOUND_S,
    fiftieth,
    memory_aware,
    memory_aware_fused,
)
from tests.exec.schedule_bound import lower_bound

pytestmark = pytest.mark.law
POLICIES = ("adaptive", "optimistic", "conservative", "static", "staged")
LIMITS = (1, 2, 4, 8, 16, 32)  # gigabytes
PLENTY = (8, 16, 32)
SCARCE = (2, 4)  # what no ablation bears


@cache
def trace(policy: str, limit_gb: int, part_mb: int = 100, *, ordered: bool = False) -> ClusterTrace:
    work = memory_aware_fused() if policy == "fused" else memory_aware(part_mb)
    policy = "adaptive" if policy == "fused" else policy
    return work.run(policy, limit_gb * GB, ordered=ordered)


def ratio(policy: str, limit_gb: int, part_mb: int = 100, *, ordered: bool = False) -> float:
    """Times of the bound."""
    return trace(policy, limit_gb, part_mb, ordered=ordered).seconds / MEMORY_BOUND_S


@pytest.mark.sample(4)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_is_ever_over_the_limit(policy: str, *, ordered: bool) -> None:
    for limit_gb in LIMITS:
        seen = trace(policy, limit_gb, ordered=ordered)
        assert not seen.stuck
        assert not seen.over
        assert not seen.forced
        assert seen.peak_bytes <= limit_gb * GB
        assert seen.seconds >= MEMORY_BOUND_S


@pytest.mark.sample(3)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("limit_gb", PLENTY)
def test_the_papers_order(limit_gb: int, *, ordered: bool) -> None:
    """Streaming batch, streams, batches; and one task for all, which the section leaves out."""
    ways = ("adaptive", "optimistic", "static", "staged", "fused")
    found = [ratio(way, limit_gb, ordered=ordered) for way in ways]
    assert found == sorted(found)
    assert found[0] <= 1.03


@pytest.mark.parametrize("limit_gb", [2, 4, *PLENTY])
def test_algorithms_1_and_2_take_what_the_paper_measured(limit_gb: int) -> None:
    """Up to 1.3 times the optimum there, at all limits but the lowest; here to 1.4."""
    assert 1.05 < ratio("optimistic", limit_gb) <= 1.4
    assert ratio("adaptive", limit_gb) < 0.95 * ratio("optimistic", limit_gb)


def test_a_budget_from_wrong_estimates_is_still_within_memory() -> None:
    """Section 4.3.2: what was let in too fast takes slots, and so slows down what follows."""
    noisy = memory_aware(noise=0.5).run("optimistic", 4 * GB)
    assert noisy.peak_bytes <= 4 * GB
    assert noisy.seconds <= 1.5 * MEMORY_BOUND_S


@pytest.mark.parametrize("limit_gb", SCARCE)
def test_without_the_adaptive_scheduler_it_takes_a_tenth_longer(limit_gb: int) -> None:
    assert ratio("conservative", limit_gb) >= 1.1 * ratio("adaptive", limit_gb)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("limit_gb", SCARCE)
def test_without_streaming_repartition_it_takes_far_longer(limit_gb: int, *, ordered: bool) -> None:
    whole = ratio("adaptive", limit_gb, 500, ordered=ordered)
    assert whole >= 2 * ratio("adaptive", limit_gb, ordered=ordered)


def test_at_the_lowest_limit_only_smaller_partitions_help() -> None:
    """Where ten partitions are all the memory there is, no order of tasks is good enough."""
    assert min(ratio(policy, 1) for policy in POLICIES) > 1.5
    assert ratio("adaptive", 1, 25) <= 1.05


@pytest.mark.parametrize("ordered", [False, True])
def test_a_stage_with_a_hundredth_of_a_processor_does_not_wait_behind_whole_ones(
    *, ordered: bool
) -> None:
    """The experiment at a fiftieth, where turns of loads kept inference back: 1.4 of the bound."""
    work = fiftieth()
    seen = work.run("adaptive", GB, ordered=ordered)
    least = lower_bound(
        work.stages, work.truth, work.slots, GB, work.units, ordered=ordered
    ).seconds
    assert seen.seconds <= 1.15 * FIFTIETH_BOUND_S + 1e-9
    assert seen.seconds <= 1.05 * least
    assert seen.seconds <= work.run("conservative", GB, ordered=ordered).seconds
    assert not seen.over
    assert not seen.stuck
