"""Test the decision of ``autocache()``: Cachew's formulas, and dml's rule against all choices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.base.read_times import ReadTimes
from dml.fleet.cache_placement import SOURCE, Point, best, spent
from dml.optimize.search.autocache_choice import CacheState, Hint, Site, cachew, decided

PER_BYTE = ReadTimes(((1.0, 1e-9), (1e12, 1e3)))  # a nanosecond a byte


def test_times_for_n_elements_are_those_of_the_paper() -> None:
    # 1000 batches of 64: the first hint sees rows, the second batches
    hints = [Hint(64_000, 1e-4, 1e5), Hint(1000, 2e-2, 3.2e7)]
    found, times = cachew(1000, 3e-2, hints, PER_BYTE)
    whole = 1000 * 3e-2
    first = 64_000 * 1e-4 + (whole - 64_000 * 1e-4)  # reads as fast as it computes
    second = 1000 * 3.2e-2 + (whole - 1000 * 2e-2)
    assert times == pytest.approx((whole, first, second))
    assert found is None  # 30 s, 30 s, 42 s
    found, times = cachew(1000, 3e-2, [Hint(1000, 2e-2, 1e6)], PER_BYTE)
    assert found == 0
    assert times[1] == pytest.approx(1.0 + 10.0)


def test_compute_is_taken_where_keeping_hardly_helps() -> None:
    hints = [Hint(1, 1.0, 0.9e9)]
    assert cachew(1, 3.0, hints, PER_BYTE)[0] == 0
    assert cachew(1, 3.0, hints, PER_BYTE, near=0.05)[0] is None


def test_of_equal_hints_the_one_of_fewer_bytes_is_taken() -> None:
    hints = [Hint(2, 1.0, 2e8), Hint(2, 0.75, 1e8)]
    found, times = cachew(2, 2.0, hints, ReadTimes(((1e8, 0.25), (2e8, 0.5))))
    assert times[1] == times[2] == 3.0
    assert found == 1


seconds = st.floats(1e-3, 1e3)


@st.composite
def chains(draw: st.DrawFn, *, there: bool = False) -> list[Site]:
    """Sites above each other."""
    below, found, epochs = 0.0, [], draw(st.floats(1, 100))
    for _ in range(draw(st.integers(1, 5))):
        below += draw(seconds)
        part = draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])) if there else 0.0
        found.append(Site(below, draw(seconds), draw(seconds), epochs, there=part))
    return found


@given(chains())
def test_one_job_decides_what_the_search_over_all_choices_does(sites: list[Site]) -> None:
    found, epochs = decided(sites, near=0.0), sites[0].epochs
    points = []
    for number, each in enumerate(sites):
        step = each.below_s - (sites[number - 1].below_s if number else 0.0)
        top = number == len(sites) - 1
        below = number - 1 if number else SOURCE
        points.append(Point(below, step, 1.0, each.read_s, each.write_s, epochs if top else 0.0))
    kept = frozenset(n for n, each in enumerate(found) if each.state is CacheState.PUT)
    assert len(kept) <= 1
    assert spent(points, kept) == pytest.approx(spent(points, best(points)))
    usual = spent(points, frozenset())
    assert sum(each.saves_s for each in found) == pytest.approx(usual - spent(points, kept))


@given(seconds, seconds, seconds, st.integers(1, 60))
def test_without_a_word_about_epochs_no_number_of_them_costs_twice_the_least(
    below_s: float, read_s: float, write_s: float, epochs: int
) -> None:
    took, there = 0.0, 0.0
    for past in range(epochs):
        site = Site(below_s, read_s, write_s, past + 1, there=there)
        (found,) = decided([site], near=0.0)
        if found.state is CacheState.PUT:
            took, there = took + below_s + write_s, 1.0
        else:
            took += read_s if found.state is CacheState.GET else below_s
    least = min(epochs * below_s, below_s + write_s + (epochs - 1) * read_s)
    assert took <= 2 * least * (1 + 1e-9)


@given(chains(there=True), st.sampled_from([0.0, 0.05]))
def test_what_is_done_makes_sense(sites: list[Site], near: float) -> None:
    found = decided(sites, near=near)
    for site, each in zip(sites, found, strict=True):
        assert each.saves_s >= 0
        if each.state is CacheState.GET:
            assert site.there
            assert site.read_s < site.below_s
        if each.state is CacheState.PUT:
            assert site.there < 1
            assert site.read_s < site.below_s
        if each.state is CacheState.COMPUTE and site.there == 1 and site.read_s < site.below_s:
            higher = found[found.index(each) + 1 :]
            assert any(other.state is CacheState.GET for other in higher)
    assert sum(each.state is CacheState.PUT for each in found) <= 1


def test_one_epoch_is_computed_and_nothing_written() -> None:
    (found,) = decided([Site(100.0, 1.0, 1.0, 1)])
    assert found.state is CacheState.COMPUTE
    assert str(found) == (
        "COMPUTE 1 epoch to come: computing 100 s, reading 1.00 s, writing 1.00 s"
    )


def test_what_nobody_measured_is_profiled_and_what_is_there_is_read() -> None:
    found = decided([Site(10.0, 1.0, 1.0, 5, there=1.0), None])
    assert [each.state for each in found] == [CacheState.GET, CacheState.PROFILE]
    assert [each.state for each in decided([None, None])] == [CacheState.PROFILE] * 2


def test_bytes_that_others_need_are_dear() -> None:
    assert decided([Site(10.0, 1.0, 1.0, 5)])[0].state is CacheState.PUT
    assert decided([Site(10.0, 1.0, 1.0, 5, hold_s=40.0)])[0].state is CacheState.COMPUTE


def test_half_of_it_is_read_where_the_rest_is_not_worth_writing() -> None:
    (found,) = decided([Site(10.0, 1.0, 100.0, 2, there=0.5)])
    assert found.state is CacheState.GET
    assert found.saves_s == pytest.approx(0.5 * 2 * 9)
    (found,) = decided([Site(10.0, 1.0, 1.0, 5, there=0.5)])
    assert found.state is CacheState.PUT
