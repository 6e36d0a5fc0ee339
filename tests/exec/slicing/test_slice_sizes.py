"""Test how large slices are, how many wait, and how many run at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.exec.slicing.slice_sizes import (
    AHEAD_S,
    PER_WORKER,
    Cutting,
    LastRun,
    SlicePace,
    Spent,
    Width,
)


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(1e-6, 0.5)), max_size=30), st.data())
def test_rows_under_way_are_bounded_by_those_handed_on(
    seen: list[tuple[int, float]], data: st.DataObject
) -> None:
    sized, workers, under_way = SlicePace(Cutting(4), 4), 4, 0
    for rows, seconds in seen:
        sized.measured(Spent(rows, seconds), 8 * rows)
        while sized.admits(under_way, under_way, under_way, waiting=False):
            under_way += sized.rows(under_way)
            assert under_way <= max(PER_WORKER * workers + sized.handed, 1)
        handed = data.draw(st.integers(0, under_way))
        sized.handed += handed
        under_way -= handed


def test_slow_rows_are_a_slice_each_and_one_for_each_worker() -> None:
    sized = SlicePace(Cutting(4), 4)
    sized.handed = 1000
    sized.measured(Spent(10, 10.0), 80)
    assert sized.rows(0) == 1
    assert sized.admits(3, 3, 3, waiting=False)
    assert not sized.admits(4, 4, 4, waiting=False)
    assert AHEAD_S < 4 * 1.0


@pytest.mark.parametrize(
    ("row_s", "row_bytes", "expected"),
    [
        (1e-5, 8, [4, 16, 16]),  # four times the last, then an even share for each worker
        (1e-3, 8, [4, 5, 5]),  # five milliseconds of work
        (0.1, 8, [1, 1, 1]),
        (1e-5, 1 << 20, [4, 4, 4]),  # as many bytes as a slice may have
        (1e-5, 64 << 20, [1, 1, 1]),
    ],
)
def test_rows_that_settle_types_are_divided_among_the_workers(
    row_s: float, row_bytes: int, expected: list[int]
) -> None:
    sized = SlicePace(Cutting(4), 4)
    assert sized.settling_rows(64, 0, 0) == 1  # nothing is known yet
    sized.measured(Spent(1, row_s), row_bytes)
    assert [sized.settling_rows(64, 0, 0) for _ in range(3)] == expected
    assert sized.settling_rows(2, 0, 0) == 1


@pytest.mark.parametrize(
    ("cpu_s", "expected"),
    [(1e-4, 1), (2.5e-3, 4), (0.015, 2)],
    ids=["they wait", "0.2 s at most", "40 ms of processor time"],
)
def test_slices_that_queue_for_processors_have_more_rows(cpu_s: float, expected: int) -> None:
    """Sixteen workers on few processors: each row takes 50 ms, whatever it computes."""
    sized = SlicePace(Cutting(16), 16)
    sized.handed = 1000
    for _ in range(8):
        sized.measured(Spent(1, 0.05, cpu_s, beside=16, share_s=0.05 / 16), 8)
        sized.rows(0)
    assert sized.rows(0) == expected
    assert sized.admits(16, 16, 16, waiting=False)
    assert sized.admits(31, 31 * expected, 31, waiting=False) is True


def test_slices_have_more_rows_where_handing_one_on_takes_longer() -> None:
    near, far = (SlicePace(Cutting.of(name, 4), 4) for name in ("processes", "distributed"))
    for sized in (near, far):
        sized.measured(Spent(1, 0.02), 8)
        sized.handed, sized.last = 1000, 10
    assert (near.rows(0), far.rows(0)) == (2, 5)
    assert (near.settling_rows(64, 0, 0), far.settling_rows(64, 0, 0)) == (1, 2)


def test_a_run_that_knows_how_long_rows_take_settles_types_in_a_slice_for_each_worker() -> None:
    sized = SlicePace(Cutting(4), 4)
    sized.expected_s = 1e-5
    taken = [sized.settling_rows(missing, 0, n) for n, missing in enumerate((64, 48, 32, 16))]
    assert taken == [16, 16, 16, 16]
    slow = SlicePace(Cutting(4), 4)
    slow.expected_s = 0.1
    assert slow.settling_rows(64, 0, 0) == 1


def test_what_the_run_before_knew_is_not_believed_where_rows_may_be_slow_by_now() -> None:
    sized = SlicePace(Cutting(16), 16)
    sized.expected_s = 1e-6
    assert sized.rows(0) == 1  # one for each worker, until one is measured
    assert sized.slow  # a run that is closed does not wait for a slice of many
    sized.measured(Spent(1, 0.5), 8)
    assert sized.settling_rows(64, 0, 0) == 1


def test_slices_that_run_alone_are_longer_for_a_consumer_that_only_waits() -> None:
    sized = SlicePace(Cutting(2), 2)
    sized.measured(Spent(1000, 0.001), 8000)
    assert sized.short_rows == 5000  # nothing is known of the consumer yet
    for _ in range(20):
        sized.waited(0.009, 0.001)
    assert sized.short_rows == 20_000
    for _ in range(20):
        sized.waited(0.006, 0.004)  # it does something with the rows
    assert sized.short_rows == 5000


def test_one_worker_settles_types_in_few_slices() -> None:
    sized = SlicePace(Cutting(1), 1)
    sized.measured(Spent(1, 0.02), 8)
    assert [sized.settling_rows(63, 0, 0) for _ in range(3)] == [4, 10, 10]  # 0.2 s of work at most


def spent(seconds: float, cpu_s: float, beside: int, others_s: float = 0.0) -> Spent:
    return Spent(10, seconds, cpu_s, others_s, beside, seconds / beside)


def measured(width: Width, *parts: Spent) -> list[int | None]:
    return [width.measured(part) for part in parts]


def test_a_slice_that_takes_far_longer_than_others_is_not_waited_for_alone() -> None:
    width = Width(8)
    assert width.given_up(9.0, 0.01) is None
    measured(width, *[spent(0.8, 0.1, 8)] * 6)
    assert width.given_up(0.09, 0.01) is None
    assert width.given_up(2.0, 1.0) is None  # they all take so long
    assert width.given_up(0.2, 0.01) == 8
    assert not width.trying
    assert not width.decided


def test_threads_that_take_turns_run_alone() -> None:
    width = Width(8)
    assert measured(width, *[spent(0.8, 0.1, 8)] * 6) == [None] * 5 + [1]  # one processor for eight
    # the training loop has the lock now and then
    found = measured(width, *[spent(0.1 + 0.1 * (n % 2), 0.1, 1) for n in range(6)])
    assert found == [None] * 5 + [2]
    assert not width.decided
    assert measured(width, *[spent(0.2, 0.1, 2)] * 2) == [None, 1]
    assert width.alone
    assert width.decided


def test_slices_that_did_not_take_turns_before_are_doubted_only_after_many() -> None:
    earlier = LastRun()
    width = Width(8, earlier)
    measured(width, *[spent(0.01, 0.01, 2)] * 12)
    assert width.decided
    assert earlier.apart
    second = Width(8, earlier)
    assert measured(second, *[spent(0.02, 0.01, 2)] * 49) == [None] * 49  # they warm up
    assert 1 in measured(second, *[spent(0.02, 0.01, 2)] * 2)
    measured(second, *[spent(0.01, 0.01, 1)] * 6, *[spent(0.02, 0.01, 2)] * 8)
    assert second.alone
    assert not earlier.apart


def test_slices_that_compute_are_tried_alone_whatever_has_the_lock_in_between() -> None:
    """A training step has the lock for most of the time: together they use few processors."""
    width = Width(8)
    held = Spent(10, 0.012, 0.012, 0.0, 8, 0.04)
    assert measured(width, *[held] * 6)[-1] == 1
    measured(width, *[spent(0.012, 0.012, 1)] * 6, *[spent(0.024, 0.012, 2)] * 8)
    assert width.alone


def test_a_function_that_waits_for_most_rows_is_not_tried_alone() -> None:
    """Such as one that downloads what is not on this disk yet."""
    width, here = Width(8), Spent(1, 0.012, 0.012, 0.0, 8, 0.002)
    far = Spent(1, 0.3, 0.001, 0.0, 8, 0.04)
    assert measured(width, here, *[far] * 5) == [None] * 6
    assert width.decided
    assert not width.alone


def test_a_run_that_decides_nothing_is_followed_by_one_that_doubts_at_once() -> None:
    earlier = LastRun(apart=True)
    assert measured(Width(8, earlier), *[spent(0.02, 0.01, 2)] * 40) == [None] * 40
    assert measured(Width(8, earlier), *[spent(0.02, 0.01, 2)] * 6)[-1] == 1


def test_a_loop_that_always_has_the_lock_in_between_does_not_look_like_waiting() -> None:
    width = Width(8)
    measured(width, *[spent(0.8, 0.1, 8)] * 6)
    assert measured(width, *[spent(0.2, 0.1, 1, 0.1)] * 6)[-1] == 2
    measured(width, *[spent(0.2, 0.1, 2)] * 2)
    assert width.alone


@pytest.mark.parametrize("others_s", [0.0, 0.2], ids=["nobody", "on another processor"])
def test_slices_that_wait_are_seen_to_whatever_computes_beside_them(others_s: float) -> None:
    width = Width(8)
    measured(width, *[spent(0.8, 0.1, 8)] * 6)
    assert measured(width, *[spent(0.2, 0.1, 1, others_s)] * 6)[-1] == 8
    assert width.decided
    assert not width.alone


@pytest.mark.parametrize(
    ("together", "alone", "again"),
    [
        ((0.8, 0.0), None, None),
        ((0.8, 0.2), None, None),
        ((0.8, 0.1), (0.05, 0.02), None),
        ((0.8, 0.1), (0.2, 0.2), (0.8, 0.1)),
        ((0.8, 0.1), (0.05, 0.05), (0.1, 0.05)),
    ],
    ids=[
        "they wait",
        "they run side by side",
        "alone they wait",
        "alone they are slower",
        "the first were loading",
    ],
)
def test_threads_stay_where_they_help(together: Any, alone: Any, again: Any) -> None:
    width = Width(8)
    for times, beside in ((together, 8), (alone, 1), (again, 8)):
        if times is not None:
            assert not width.decided
            measured(width, *[spent(times[0], times[1], beside)] * 6)
    assert not width.alone
    assert width.decided
