"""Test which caches of many pipelines to store: exact at a price, near-optimal in a quota."""

from __future__ import annotations

import random
from functools import reduce
from itertools import chain, combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.base.read_times import ReadTimes
from dml.fleet.cache_placement import (
    SOURCE,
    PlacementShare,
    Point,
    best,
    cached_bytes,
    gain,
    spent,
    within,
)
from tests.cache.store.far import linear

FLEETS, NODES = 100, 14


def fleet(draw: random.Random, count: int, *, kept: float = 0.0) -> list[Point]:
    """Pipelines that share prefixes, merged: mostly chains; leaves are asked for."""
    parents = [SOURCE]
    for number in range(1, count):
        near = draw.random() < 0.7
        parents.append(number - 1 if near else draw.randrange(SOURCE, number))
    points = []
    for number, parent in enumerate(parents):
        size = 10 ** draw.uniform(-1, 1.5)
        leaf = number not in parents
        runs = 10 ** draw.uniform(-0.3, 1.7) if leaf else draw.choice([0.0, 0.0, 0.0, 3.0])
        compute_s = 10 ** draw.uniform(-1, 2)
        keepable = draw.random() < 0.85
        there = keepable and draw.random() < kept
        points.append(Point(parent, compute_s, size, size, 2 * size, runs, keepable, there))
    return points


def every_choice(points: list[Point]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and bytes of every set of points that may be kept, by the definition."""
    places = [n for n, each in enumerate(points) if each.keepable and not each.kept]
    sets = np.arange(1 << len(places))
    asked = [np.full(len(sets), each.runs) for each in points]
    seconds, nbytes = np.zeros(len(sets)), np.zeros(len(sets))
    for place in range(len(points) - 1, -1, -1):
        each, times = points[place], asked[place]
        if each.kept:
            seconds += times * each.read_s
            continue
        if place in places:
            chosen = (sets >> places.index(place) & 1).astype(bool)
            first = np.minimum(times, 1.0)
            reading = (times - first) * each.read_s + first * each.write_s
            seconds += np.where(chosen, reading, 0.0)
            nbytes += np.where(chosen, each.nbytes, 0.0)
            times = np.where(chosen, first, times)
        seconds += times * each.seconds
        if each.parent != SOURCE:
            asked[each.parent] = asked[each.parent] + times
    return seconds, nbytes


@given(st.integers(0, 1 << 40), st.integers(1, 10), st.sampled_from([0.0, 0.01, 0.3, 5.0]))
def test_no_choice_costs_less_at_a_price(seed: int, count: int, price: float) -> None:
    points = fleet(random.Random(seed), count, kept=0.1)
    kept = best(points, price)
    seconds, nbytes = every_choice(points)
    least = float((seconds + price * nbytes).min())
    assert spent(points, kept) + price * cached_bytes(points, kept) == pytest.approx(least)
    assert all(points[place].keepable and not points[place].kept for place in kept)


@given(st.integers(0, 1 << 40), st.integers(1, 8))
def test_what_runs_take_is_what_its_definition_says(seed: int, count: int) -> None:
    points = fleet(random.Random(seed), count, kept=0.1)
    places = [n for n, each in enumerate(points) if each.keepable and not each.kept]
    seconds, nbytes = every_choice(points)
    sets = chain.from_iterable(combinations(places, n) for n in range(len(places) + 1))
    for kept in sets:
        number = reduce(lambda a, b: a | b, (1 << places.index(each) for each in kept), 0)
        assert spent(points, frozenset(kept)) == pytest.approx(float(seconds[number]))
        assert cached_bytes(points, frozenset(kept)) == pytest.approx(float(nbytes[number]))


def taken(points: list[Point], shares: tuple[PlacementShare, ...]) -> tuple[float, float]:
    """Seconds and bytes of a choice of parts."""
    seconds = sum(each.part * spent(points, each.kept) for each in shares)
    return seconds, sum(each.part * cached_bytes(points, each.kept) for each in shares)


@pytest.mark.parametrize("fraction", [0.5, 0.25, 0.1])
def test_within_a_room_a_hundred_fleets_cost_what_the_best_of_all_choices_does(
    fraction: float,
) -> None:
    draw = random.Random(11)
    ratios = []
    for _ in range(FLEETS):
        points = fleet(draw, NODES)
        room = fraction * 0.4 * sum(each.nbytes for each in points if each.keepable)
        seconds, nbytes = every_choice(points)
        least = float(seconds[nbytes <= room].min())
        shares = within(points, room, parts=64)
        ours, size = taken(points, shares)
        assert size <= room * (1 + 1e-9)
        assert sum(each.part for each in shares) == pytest.approx(1.0)
        ratios.append(ours / least)
    assert max(ratios) <= 1.1, ratios
    assert np.mean(ratios) <= 1.0


@given(st.integers(0, 1 << 40), st.integers(1, 40), st.floats(0, 1))
def test_no_room_is_exceeded_and_more_room_never_costs_more(
    seed: int, count: int, fraction: float
) -> None:
    points = fleet(random.Random(seed), count)
    whole = sum(each.nbytes for each in points)
    found = [taken(points, within(points, room * whole, 1000)) for room in (fraction / 2, fraction)]
    assert found[1][1] <= fraction * whole * (1 + 1e-9)
    assert found[1][0] <= found[0][0] * (1 + 1e-2)


def test_a_thousand_points_are_placed() -> None:
    points = fleet(random.Random(4), 1000)
    kept = best(points, 0.1)
    draw = random.Random(5)
    usual = spent(points, kept) + 0.1 * cached_bytes(points, kept)
    for _ in range(200):  # one more or one less never helps
        place = draw.randrange(len(points))
        if points[place].keepable:
            other = kept ^ {place}
            assert spent(points, other) + 0.1 * cached_bytes(points, other) >= usual - 1e-9


def test_gain_is_what_is_saved() -> None:
    assert gain(1, 100.0, 1.0, 2.0) == -2.0
    assert gain(5, 100.0, 1.0, 2.0, hold_s=10.0) == 4 * 99 - 2 - 10
    alone = [Point(SOURCE, 100.0, 1.0, 1.0, 2.0, runs=5)]
    saved = spent(alone, frozenset()) - spent(alone, frozenset([0]))
    assert saved == gain(5, 100.0, 1.0, 2.0)


def rises(curve: ReadTimes) -> bool:
    """Reading more bytes never takes less time."""
    return all(a[1] <= b[1] and a[0] < b[0] for a, b in pairwise(curve.knots))


@given(
    st.floats(1e-5, 1e-1),
    st.floats(1e6, 1e10),
    st.lists(st.floats(1, 1e10), min_size=1, max_size=20),
)
def test_read_times_are_near_a_latency_and_a_bandwidth(
    latency_s: float, bytes_per_s: float, sizes: list[float]
) -> None:
    curve = linear(latency_s, bytes_per_s)
    assert rises(curve)
    for size in sizes:
        assert curve(size) == pytest.approx(latency_s + size / bytes_per_s, rel=0.15)


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(0, 10)), min_size=1, max_size=30))
def test_read_times_never_fall(samples: list[tuple[float, float]]) -> None:
    curve = ReadTimes.measured(samples)
    assert rises(curve)
    sizes = sorted({size for size, _ in samples} | {0.5, 3.0, 1e10})
    found = [curve(size) for size in sizes]
    assert found == sorted(found)


def test_an_odd_sample_does_not_decide() -> None:
    curve = ReadTimes.measured([(1000, 1.0), (1000, 1.1), (1000, 50.0), (4000, 2.0), (4000, 2.0)])
    assert curve(1000) == pytest.approx(1.1)
    assert curve(4000) == pytest.approx(2.0)
    assert curve(0) == 0.0
    with pytest.raises(ValueError, match="measured"):
        ReadTimes.measured([])
