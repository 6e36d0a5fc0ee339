"""Test scaling policies, window by window, against the papers that define them."""

from __future__ import annotations

import numpy as np
import pytest

from dml.cluster.autoscale.scaling_policy import (
    TRAINER,
    Cachew,
    GainPolicy,
    Log,
    ScalingPolicy,
    ScalingWindow,
    Utilisation,
)
from dml.testing.scaling_service import (
    CURVES,
    Curve,
    keyed,
    observed,
    served,
    settled_workers,
    waiting,
    within,
)

QUIET = 0.0


def window(workers: int, batch_time: float, queue: float = 0.0, **more: float) -> ScalingWindow:
    figures = {"step_s": 0.5, "busy_s": 1.0, "cpu_share": 1.0, **more}
    return ScalingWindow(workers, batch_time, result_queue_size=queue, **figures)


# ----------------------------------------------------------------------------------- the 3 % rule


@pytest.mark.parametrize("need", [4, 13, 16, 24, 32])
def test_three_percent_find_what_the_paper_found(need: int) -> None:
    assert (
        settled_workers(served(Cachew(), lambda _: Curve(float(need)), 60, QUIET, keyed(0))) == need
    )


@pytest.mark.parametrize("need", [34, 40, 64, 128])
def test_three_percent_end_at_33(need: int) -> None:
    assert (
        settled_workers(served(Cachew(), lambda _: Curve(float(need)), 60, QUIET, keyed(0))) == 33
    )


def test_three_percent_take_the_superfluous_worker_away() -> None:
    policy = Cachew()
    asked = [policy.step(window(n, t)).workers for n, t in [(1, 4.0), (2, 2.0), (3, 1.99)]]
    assert asked == [2, 3, 2]
    assert policy.step(window(2, 2.0)).settled


def converged(queue: float) -> Cachew:
    """Three workers, batches of one second, ``queue`` waiting."""
    policy = Cachew()
    for n, batch_time in [(1, 3.0), (2, 1.5), (3, 1.0), (4, 1.0)]:
        policy.step(window(n, batch_time))
    assert policy.step(window(3, 1.0, queue)).settled
    return policy


def test_what_converged_is_looked_at_every_tenth_window() -> None:
    policy = converged(4.0)
    assert [policy.step(window(3, 2.0, 4.0)).workers for _ in range(10)] == [3] * 9 + [4]


@pytest.mark.parametrize(("queue", "left"), [(5.5, 3), (5.7, 2)])
def test_a_queue_of_forty_percent_more_lets_a_worker_go(queue: float, left: int) -> None:
    policy = converged(4.0)
    assert [policy.step(window(3, 1.0, queue)).workers for _ in range(10)][-1] == left


def test_workers_go_while_batches_come_as_fast() -> None:
    policy = converged(4.0)
    for _ in range(10):
        policy.step(window(3, 1.0, 9.0))
    assert policy.step(window(2, 1.02, 9.0)).workers == 1
    assert policy.step(window(1, 1.04, 9.0)).workers == 2
    assert policy.step(window(2, 1.0, 9.0)).settled


# ------------------------------------------------------------------------------------ processor use


@pytest.mark.parametrize(
    ("use", "workers", "asked"), [(1.0, 4, 5), (0.84, 10, 10), (0.4, 10, 10), (0.95, 10, 12)]
)
def test_use_of_processors_meets_its_target(use: float, workers: int, asked: int) -> None:
    assert Utilisation().step(window(workers, 1.0, cpu_share=use)).workers == asked


def test_workers_go_once_three_windows_agree() -> None:
    policy = Utilisation()
    policy.step(window(10, 1.0, cpu_share=0.8))
    asked = [policy.step(window(10, 1.0, cpu_share=0.4)).workers for _ in range(3)]
    assert asked == [10, 10, 5]


# --------------------------------------------------------------------------------------------- ours


@pytest.mark.parametrize("need", [1, 4, 13, 16, 24, 32, 40, 64, 128, 500])
def test_ours_jumps_and_stays(need: int) -> None:
    seen = served(GainPolicy(), lambda _: Curve(float(need)), 40, QUIET, keyed(0))
    assert within(settled_workers(seen), need)
    assert within(seen[3].workers, need)


def test_what_brings_nothing_is_taken_back() -> None:
    curve = Curve(16.0, floor_s=2.0)  # eight give all that there is, though the trainer asks for 16
    seen = served(GainPolicy(), lambda _: curve, 60, QUIET, keyed(0))
    assert settled_workers(seen) == curve.ideal == 8


def test_a_trainer_that_waits_for_others_does_not_make_it_grow() -> None:
    curve = Curve(1.0, step_s=0.1, drag_s=0.9)  # 0.9 s of a batch are not the workers' work
    seen = served(GainPolicy(most=64), lambda _: curve, 100, QUIET, keyed(0))
    assert settled_workers(seen) < 12


def test_a_trainer_without_work_gets_all_there_is() -> None:
    seen = served(GainPolicy(most=6), lambda _: Curve(3.0, step_s=1e-7), 10, 0.05, keyed(0))
    assert settled_workers(seen, 5) == 6


def test_cost_stops_where_a_worker_costs_more_than_it_saves() -> None:
    curve = Curve(400.0)
    time = settled_workers(served(GainPolicy(), lambda _: curve, 60, QUIET, keyed(0)))
    cost = settled_workers(
        served(GainPolicy(minimize="cost"), lambda _: curve, 60, QUIET, keyed(0))
    )
    assert cost <= time
    soft = Curve(400.0, step_s=0.1, drag_s=1.0)
    time, cost = (
        settled_workers(served(GainPolicy(minimize=goal), lambda _: soft, 100, QUIET, keyed(0)))
        for goal in ("time", "cost")
    )
    assert soft.cost(cost, TRAINER) <= soft.cost(time, TRAINER)


@pytest.mark.parametrize("name", CURVES)
def test_ours_costs_no_more_than_processor_use_nor_the_3_percent_rule(name: str) -> None:
    curve = CURVES[name]
    policies: list[ScalingPolicy] = [GainPolicy(), Cachew(), Utilisation()]
    ours, rule, use = (
        settled_workers(served(each, lambda _: curve, 150, 0.005, keyed(7))) for each in policies
    )
    assert curve.cost(ours, TRAINER) <= 1.01 * curve.cost(rule, TRAINER)
    assert curve.cost(ours, TRAINER) <= curve.cost(use, TRAINER)
    assert curve.batch_time_s(ours) <= 1.05 * curve.batch_time_s(4096)


def test_processor_use_errs_as_the_paper_says() -> None:
    def counts(name: str) -> int:
        return settled_workers(served(Utilisation(), lambda _: CURVES[name], 60, QUIET, keyed(0)))

    assert counts("ResNet50, compute") == 1
    assert counts("SimCLR, compute") == 24
    resnet, simclr = CURVES["ResNet50, compute"], CURVES["SimCLR, compute"]
    assert resnet.batch_time_s(1) / resnet.batch_time_s(4) >= 0.8 * 4.1
    assert resnet.cost(1, TRAINER) / resnet.cost(4, TRAINER) >= 0.8 * 3.8
    assert 0.12 <= simclr.cost(24, TRAINER) / simclr.cost(16, TRAINER) - 1 <= 0.20


def test_least_and_most_hold() -> None:
    for policy in (GainPolicy(3, 5), Cachew(3, 5), Utilisation(3, 5)):
        few = [policy.step(window(3, 9.0, busy_s=30.0)).workers for _ in range(1)]
        assert all(3 <= each <= 5 for each in few)


# ---------------------------------------------------------------------------------------- what they
# ---------------------------------------------------------------------------------------- rest upon


def test_means_know_their_error() -> None:
    log, rng = Log(expected=0.05), keyed(1)
    errors = []
    for _ in range(24):
        log.add(float(np.exp(rng.normal(0, 0.05))))
        errors.append(log.error)
    assert errors[0] == pytest.approx(0.05, rel=0.2)
    assert errors[-1] == pytest.approx(0.05 / np.sqrt(24), rel=0.4)
    assert abs(log.mean - 1) < 3 * errors[-1]
    assert log.far(2.0, 0.3)
    assert not log.far(1.2, 0.3)


def test_a_queue_fills_when_more_is_made_than_taken() -> None:
    loads = [waiting(load, 16) for load in (0.1, 0.9, 1.0, 1.1, 2.0, 50.0)]
    assert loads == sorted(loads)
    assert (loads[2], loads[-1]) == (8.0, 16.0)


def test_windows_show_the_curve_where_nothing_scatters() -> None:
    seen = observed(Curve(6.0, step_s=1.0), 3, QUIET, keyed(0))
    assert (seen.batch_time_s, seen.step_s, seen.busy_s, seen.cpu_share) == (2.0, 1.0, 6.0, 1.0)
