"""``profile`` counts steps and waits, and compares the loop with one on a repeated element."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import dml
from dml.api import run_profile
from dml.api.run_profile import RunProfile, StepClock, Train, measured, repeated
from dml.errors import PlanError


class Now:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    clock = Now()
    monkeypatch.setattr(run_profile, "time", clock)
    return clock


def slow(now: Now, waits: Iterable[float]) -> Iterator[int]:
    for number, wait in enumerate(waits):
        now.now += wait
        yield number


def loop(now: Now, steps: Iterable[float], most: int = 99) -> Train:
    def train(elements: Iterable[Any]) -> None:
        lasts = iter(steps)
        for number, _ in enumerate(elements, 1):
            now.now += next(lasts)
            if number == most:
                return

    return train


def test_waits_and_steps_are_those_after_the_first(now: Now) -> None:
    clock = measured(slow(now, [50.0, 1.0, 3.0]), loop(now, [9.0, 2.0, 4.0]))
    assert clock.steps == 3
    assert clock.each() == (5.0, 2.0)  # (1 + 2 + 3 + 4) / 2, and (1 + 3) / 2
    assert clock.ended - clock.begun == 69.0


def test_a_loop_may_end_before_its_elements(now: Now) -> None:
    clock = measured(slow(now, [0.0] * 9), loop(now, [1.0, 2.0, 6.0], most=3))
    assert clock.steps == 3
    assert clock.each() == (4.0, 0.0)


def test_one_step_is_all_that_is_known(now: Now) -> None:
    clock = measured(slow(now, [1.0]), loop(now, [2.0]))
    assert clock.each() == (3.0, 0.0)


def test_no_step_is_an_error(now: Now) -> None:
    nothing: list[Train | None] = [None, lambda _: None, loop(now, [])]
    for train in nothing:
        with pytest.raises(PlanError, match="no step to profile"):
            measured([], train)


def test_the_first_element_is_repeated_as_often_as_there_were_steps() -> None:
    first = {"x": np.arange(3)}
    clock = measured([first, {"x": np.arange(4)}], lambda elements: [*elements])
    found = list(repeated(clock))
    assert len(found) == 2
    assert all(each is not first and each["x"] is first["x"] for each in found)
    assert list(repeated(measured([7, 8, 9], None))) == [7, 7, 7]


def of(step_s: float, waited_s: float, bound_s: float | None) -> RunProfile:
    return RunProfile(10, 10.0, step_s, waited_s, bound_s, "Map (90% of 2 cores)", trained=True)


@pytest.mark.parametrize(
    ("found", "bound"),
    [
        (of(1.0, 0.0, 1.0), False),
        (of(1.019, 0.5, 1.0), False),
        (of(1.03, 0.0, 1.0), True),
        (of(1.0, 0.019, None), False),
        (of(1.0, 0.03, None), True),
    ],
)
def test_a_loop_within_two_percent_of_the_bound_does_not_wait(
    found: RunProfile, bound: bool
) -> None:
    assert found.input_bound is bound
    assert ("not input bound" in str(found)) is not bound


def called(row: dict[str, int]) -> dict[str, int]:
    return {"y": len(str(row))}


def test_a_profile_is_no_epoch_and_names_an_operator() -> None:
    ds = dml.range(64).map(called).batch(8).with_options(executor="sync", telemetry_dir="off")
    taken: list[int] = []
    found = ds.profile(lambda batches: taken.extend(len(each["y"]) for each in batches))
    assert taken == [8] * 8 == [8] * found.steps
    assert found.trained
    assert any(name in found.bottleneck for name in ("MapRows(called)", "Batch(8)", "Range("))
    assert next(iter(ds))["y"].tolist() == next(iter(ds.epoch(0)))["y"].tolist()
    alone = ds.profile()
    assert "without a training loop" in str(alone)


def twice(elements: Iterable[Any]) -> None:
    for _ in range(2):
        deque(elements, maxlen=0)


def test_bad_uses_are_refused() -> None:
    with pytest.raises(PlanError, match="a second time"):
        dml.range(3).profile(twice)
    for train in (3, "train"):
        with pytest.raises(PlanError, match="takes a training loop, not"):
            dml.range(3).profile(train)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="an upper bound without a training loop"):
        dml.range(3).profile(upper_bound=True)
    with pytest.raises(PlanError, match="endless"):
        dml.range(3).repeat().profile()
    with pytest.raises(PlanError, match="no step"):
        dml.range(0).profile()
    stops: Callable[[Iterable[Any]], Any] = lambda rows: next(iter(rows))  # noqa: E731
    one = dml.range(3).repeat().profile(stops, upper_bound=True)
    assert one.steps == 1
    assert "verdict   none" in str(one)


def test_the_clock_can_be_read_once(now: Now) -> None:
    assert list(StepClock(slow(now, [1.0, 1.0]))) == [0, 1]
