"""Reproduce figures 6, 10 and 11 of the streaming batch paper on the virtual cluster."""

from __future__ import annotations

from functools import cache

import pytest

from dml.verify.simulate.virtual_cluster import ClusterTrace
from tests.exec.delivery.figure_cases import (
    DASK_S,
    DECODE_S,
    EMBEDDED_S,
    GB,
    IMAGE_LIMIT,
    ROWS,
    Hosts,
    best_static,
    first_output_s,
    fractional,
    images,
    images_fused,
    outage,
    plateau,
    scaled,
    videos,
)

pytestmark = pytest.mark.law
BEST = 0.95  # of the best throughput: what counts as the plateau of Figure 10


@cache
def made(policy: str, *, ordered: bool = False) -> ClusterTrace:
    """Figure 6a."""
    if policy == "fused":
        return images_fused().run("adaptive", IMAGE_LIMIT, ordered=ordered)
    return images().run(policy, IMAGE_LIMIT, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_6a_nothing_has_to_be_tuned(*, ordered: bool) -> None:
    quotas, best = best_static(images(), IMAGE_LIMIT)
    assert quotas == (4, 1, 4)
    assert best.seconds / made("adaptive", ordered=ordered).seconds >= 0.98


def test_6a_results_come_at_once_but_for_stages_one_by_one() -> None:
    usual, staged = made("adaptive"), made("staged")
    assert first_output_s(usual) <= 0.05 * usual.seconds
    assert first_output_s(staged) > 0.5 * staged.seconds
    assert staged.seconds > 1.5 * usual.seconds


def test_6a_one_task_for_all_is_the_slowest() -> None:
    """It is as wide as the scarcest resource: one GPU."""
    others = ("adaptive", "optimistic", "conservative", "static", "staged")
    assert made("fused").seconds > 2 * max(made(policy).seconds for policy in others)


@pytest.mark.parametrize("ordered", [False, True])
def test_6b_work_that_changes_is_followed(*, ordered: bool) -> None:
    quotas, _ = best_static(videos(drift=False), IMAGE_LIMIT)
    assert quotas == (4, 1, 4), "the best while all videos are like the first ones"
    fixed = videos().static(quotas, IMAGE_LIMIT, ordered=ordered)
    assert fixed.seconds >= 1.25 * videos().run("adaptive", IMAGE_LIMIT, ordered=ordered).seconds


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("units", [16, 64, 160, 800])
def test_11_fractions_of_a_slot_are_shared(units: int, *, ordered: bool) -> None:
    usual = fractional(units).run("adaptive", GB, ordered=ordered).seconds
    even = fractional(units).run("static", GB, ordered=ordered).seconds
    assert even == fractional(units).static((4, 4), GB, ordered=ordered).seconds
    assert usual == 3 * units / 8
    assert usual <= 0.76 * even
    assert usual < fractional(units).static((3, 5), GB, ordered=ordered).seconds


@pytest.mark.sample(1)
@pytest.mark.parametrize("beside_s", [EMBEDDED_S, DASK_S])
def test_10_the_plateau_of_partition_sizes_is_a_decade(beside_s: float) -> None:
    wide = [rows for rows, part in plateau(beside_s).items() if part >= BEST]
    assert max(wide) >= 10 * min(wide)
    assert 16 in wide, "what dml takes where memory allows"


def test_10_the_ends_are_bad_for_the_papers_reasons() -> None:
    found = plateau(DASK_S)
    assert found[1] < 0.8, "every partition has its price"
    assert found[ROWS] < 0.2, "one partition is one worker's"


def test_6d_sixteen_nodes_are_worth_sixteen() -> None:
    few, many = scaled(2), scaled(16)
    assert not many.stuck
    assert 2 * few.seconds / (16 * many.seconds) >= 0.9


@cache
def with_an_outage() -> Hosts:
    """Figure 6c: a minute without the node that has two thirds of the processors."""
    return outage()


def rate(hosts: Hosts, start: float, stop: float) -> float:
    """Videos per second that were decoded in a time, eight in each partition."""
    return 8 * sum(stage == 0 and start <= at < stop for at, stage in hosts.done) / (stop - start)


def test_6c_a_lost_node_costs_what_it_was_working_on() -> None:
    hosts = with_an_outage()
    assert not hosts.trace.stuck
    assert sorted(hosts.trace.offers) == [(unit, 0, 0) for unit in range(3000)]
    redone = sum(hosts.gone_at - at for _, at in hosts.lost)
    assert len(hosts.lost) <= 8
    assert redone <= 8 * DECODE_S
    checkpointed = 300.0 * sum(hosts.core.total.values())  # all since the last one, five minutes
    assert redone <= checkpointed / 3


def test_6c_no_restart_and_back_within_a_partition() -> None:
    """Throughput falls to that of the node that is left, and is back when the other one is."""
    hosts = with_an_outage()
    before, left = 8 * 12 / DECODE_S, 8 * 4 / DECODE_S
    assert rate(hosts, 300, 600) == pytest.approx(before, rel=0.05)
    assert rate(hosts, 600 + DECODE_S, 660) >= 0.9 * left
    assert rate(hosts, 660 + 2 * DECODE_S, 900) == pytest.approx(before, rel=0.05)
