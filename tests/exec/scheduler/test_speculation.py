"""Test which slices get a second attempt, and which attempt counts, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.exec.scheduler.messages import Run
from dml.exec.scheduler.speculation import ENOUGH, FACTOR, LEAST_S, Race, repeatable
from dml.exec.tasks.job import Job
from tests.exec.process.test_task_runner import job_of


def anywhere(_run: Run) -> bool:
    return True


def nowhere(_run: Run) -> bool:
    return False


def slice_of(unit: int, k: int = 0) -> Run:
    return Run((unit,), 0, k, "")


def raced(seconds: float, slices: int = ENOUGH, **how: Any) -> Race:
    """A race in which so many slices took ``seconds`` each; it ended at 0."""
    race = Race(1)
    race.repeatable = True
    for unit in range(slices):
        race.begin(slice_of(unit), -seconds)
        assert race.end(slice_of(unit), 0.0, **how)
    return race


@given(st.floats(0.001, 100.0))
def test_a_slice_is_late_after_a_multiple_of_what_is_usual(seconds: float) -> None:
    race, run = raced(seconds), slice_of(ENOUGH)
    limit_s = max(FACTOR * seconds, LEAST_S)
    race.begin(run, 0.0)
    assert race.late(0.999 * limit_s, anywhere) is None
    assert race.late(1.001 * limit_s, nowhere) is None
    assert race.late(1.001 * limit_s, anywhere) == run
    assert race.late(9.0 * limit_s, anywhere) is None, "it was begun again already"


def test_nothing_is_begun_twice_where_that_is_not_allowed_or_not_known_to_help() -> None:
    run = slice_of(99)
    forbidden = raced(1.0)
    forbidden.repeatable = False
    later = slice_of(99, k=1)
    for race, each in (
        (raced(1.0, ENOUGH - 1), run),  # too few to compare with
        (raced(1.0, more=True), run),  # generators would stay parked
        (forbidden, run),
        (raced(1.0), later),
    ):
        race.begin(each, 0.0)
        assert race.late(1000.0, anywhere) is None


@pytest.mark.law
@given(st.data())
def test_of_all_attempts_one_counts(data: st.DataObject) -> None:
    """The first result, or the loss of the last one; after a loss it is tried anew."""
    race, run, under, told = Race(1), slice_of(0), 0, 0
    while told == 0 or under:
        if told == 0 and under < 2 and (under == 0 or data.draw(st.booleans())):
            race.begin(run, 0.0)
            under += 1
            continue
        lost = data.draw(st.booleans())
        under -= 1
        before = race.wanted(run)
        counts = race.end(run, 1.0, lost=lost)
        assert counts == (before and told == 0 and (not lost or under == 0))
        told += counts and not lost
    assert told == 1
    assert not race.under_way(run)
    assert race.wanted(run)


def twice(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"] * 2}


def printed(row: dict[str, Any]) -> dict[str, Any]:
    print(row)  # noqa: T201 (what is not pure)
    return row


class Model:
    def __call__(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize(
    ("ds", "wanted"),
    [
        (dml.range(10).map(twice), {"auto", True}),
        (dml.range(10).filter(dml.col("id") > 3), {"auto", True}),
        (dml.range(10).map(printed), {True}),
        (dml.range(10).map_batches(Model), set()),
        (dml.range(10).map(twice).map_batches(Model, num_cpus=0.5), set()),
    ],
)
def test_only_what_may_be_done_twice_is_repeatable(ds: dml.Dataset, wanted: set[Any]) -> None:
    job: Job = job_of(ds)
    assert {given for given in ("auto", True, False) if repeatable(job, given)} == wanted
