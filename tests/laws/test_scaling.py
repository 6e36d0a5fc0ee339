"""Law: scaling policies keep their bounds, use no fixed units, and find the optimum under noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cluster.autoscale.scaling_policy import (
    Cachew,
    GainPolicy,
    ScalingPolicy,
    ScalingWindow,
    Utilisation,
)
from dml.testing.scaling_service import (
    Curve,
    changes,
    keyed,
    observed,
    served,
    settled_workers,
    within,
)

pytestmark = pytest.mark.law

POLICIES = {"ours": GainPolicy, "cachew": Cachew, "cpu": Utilisation}
IDEALS = (4, 13, 16, 24, 32, 40, 64, 128)
NOISE = 0.05

figures = st.floats(1e-6, 1e4)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def windows(draw: st.DrawFn) -> list[ScalingWindow]:
    """Any figures at all."""
    made = []
    for _ in range(draw(st.integers(1, 30))):
        step_s, wait_s = draw(figures), draw(st.just(0.0) | figures)
        queue, cpu = draw(st.floats(0, 1000)), draw(st.floats(0, 1))
        made.append(ScalingWindow(1, step_s + wait_s, step_s, draw(figures), queue, cpu))
    return made


@given(windows(), st.sampled_from(sorted(POLICIES)), st.integers(1, 9), st.integers(0, 50))
def test_no_policy_leaves_its_bounds(
    seen: list[ScalingWindow], name: str, least: int, more: int
) -> None:
    policy: ScalingPolicy = POLICIES[name](least, least + more)
    workers = least
    for each in seen:
        workers = policy.step(each._replace(workers=workers)).workers
        assert least <= workers <= least + more


@given(st.sampled_from(sorted(POLICIES)), seeds, st.integers(-8, 8), st.floats(1, 50))
def test_no_policy_knows_what_a_second_is(name: str, seed: int, power: int, need: float) -> None:
    """Twice as slow a world is the same world. Powers of two, so that no bit is rounded."""
    counts = []
    for unit in (1.0, 2.0**power):
        policy, rng, workers = POLICIES[name](), keyed(seed), 1
        counts.append([workers])
        for _ in range(30):
            seen = observed(Curve(need), workers, NOISE, rng)
            scaled = seen._replace(
                batch_time_s=seen.batch_time_s * unit,
                step_s=seen.step_s * unit,
                busy_s=seen.busy_s * unit,
            )
            workers = policy.step(scaled).workers
            counts[-1].append(workers)
    assert counts[0] == counts[1]


@given(seeds, st.floats(1, 300), st.integers(1, 300))
def test_ours_finds_any_need_from_anywhere(seed: int, need: float, start: int) -> None:
    """Within 15 % or a worker, whatever the seed: hypothesis looks for the worst of all."""
    seen = served(GainPolicy(), lambda _: Curve(need), 100, NOISE, keyed(seed), workers=start)
    assert abs(settled_workers(seen) - need) <= max(1.0, 0.15 * need)


@pytest.mark.sample(4)
@pytest.mark.parametrize("ideal", IDEALS)
def test_the_ideal_count_is_found_within_a_tenth(ideal: int) -> None:
    """In nearly all of 40 fresh seeds; the few that are not are a worker off."""
    every = [
        served(GainPolicy(), lambda _: Curve(float(ideal)), 120, NOISE, keyed(s)) for s in range(40)
    ]
    counts = sorted(settled_workers(each) for each in every)
    assert within(counts[20], ideal)
    assert sum(within(each, ideal) for each in counts) >= 36
    assert counts[-1] - ideal <= max(1, 0.1 * ideal)
    flips = sum(changes(each[-60:]) for each in every) / (60 * len(every))
    assert flips <= 0.01


@pytest.mark.parametrize("speed", [2.0, 0.5])
@pytest.mark.parametrize("ideal", [8, 16, 32, 64])
def test_another_trainer_is_followed_in_three_decisions(ideal: int, speed: float) -> None:
    goal = ideal * speed
    for seed in range(20):
        made = served(
            GainPolicy(),
            lambda i: Curve(float(ideal), 1.0 if i < 60 else 1 / speed),
            100,
            NOISE,
            keyed(seed),
        )[60:]
        near = [abs(each.workers - goal) <= max(1.0, 0.1 * goal) for each in made]
        assert True in near
        assert changes(made[: near.index(True)]) <= 3


@given(seeds, st.integers(2, 40), st.integers(2, 20))
def test_a_trainer_that_saves_now_and_then_keeps_its_workers(
    seed: int, need: int, slow: int
) -> None:
    """Every tenth window takes many times as long; nothing follows from it."""

    def load(number: int) -> Curve:
        return Curve(float(need), float(slow) if number % 10 == 9 else 1.0)

    made = served(GainPolicy(), load, 100, 0.005, keyed(seed))
    assert changes(made[20:]) <= 1  # one worker more or less, at most
    assert all(within(each.workers, need, max(0.1, 1 / need)) for each in made[20:])


@given(seeds, st.integers(2, 40), st.floats(1.2, 4.0))
def test_what_all_workers_share_is_not_answered_with_workers(
    seed: int, need: int, slow: float
) -> None:
    """Where batches come no faster, few more stay than give the speed that there is."""
    curve = Curve(float(need), floor_s=slow)
    made = served(GainPolicy(), lambda _: curve, 120, 0.005, keyed(seed))
    assert settled_workers(made) <= max(curve.ideal + 1, 1.1 * curve.ideal)
