"""Test slices: parked generators may be dropped at any moment without effect on results."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise

import pytest

from dml.errors import NonDeterminismError, WorkerLostError
from dml.exec.scheduler.messages import Consumed, Run, Settled
from dml.exec.scheduler.policy import Demand, Seq
from dml.exec.tasks.partition import ReadTask
from dml.exec.tasks.slices import DriverLoop, Failure, NotSent, NotSentError, Outcome, Runtime


def letters(unit: str) -> Iterator[Outcome]:
    """One partition per letter of the unit."""
    for letter in unit:
        yield Outcome(letter, 1, 1)


def ran(runtime: Runtime, run: Run, argument: object) -> Outcome | None:
    """The partition of a slice; raises the error of a failure."""
    result, seconds = runtime.perform(run, argument)
    assert seconds >= 0
    if isinstance(result, Failure):
        raise result.error
    return result


def take(runtime: Runtime, seq: Seq, k: int, unit: str = "abc") -> str | None:
    outcome = ran(runtime, Run(seq, 0, k, ""), unit)
    return None if outcome is None else str(outcome.value)


def test_slices_go_on_where_they_stopped() -> None:
    runtime = Runtime([letters])
    assert [take(runtime, (0,), k) for k in range(4)] == ["a", "b", "c", None]
    assert runtime.replayed == 0


def test_tasks_do_not_disturb_each_other() -> None:
    runtime = Runtime([letters])
    got = [(take(runtime, (0,), k, "abc"), take(runtime, (1,), k, "xyz")) for k in range(3)]
    assert got == [("a", "x"), ("b", "y"), ("c", "z")]


@pytest.mark.parametrize("at", range(4))
def test_a_dropped_generator_is_run_up_to_its_place(at: int) -> None:
    runtime = Runtime([letters])
    got = []
    for k in range(4):
        if k == at:
            runtime.drop((0,))
        got.append(take(runtime, (0,), k))
    assert got == ["a", "b", "c", None]
    assert runtime.replayed == at


def test_a_lost_slice_may_be_run_again() -> None:
    runtime = Runtime([letters])
    assert take(runtime, (0,), 0) == "a"
    with pytest.raises(WorkerLostError):
        ran(runtime, Run((0,), 0, 1, "lose"), "abc")
    assert take(runtime, (0,), 1) == "b"


def test_what_is_parked_needs_no_argument_and_what_was_lost_says_so() -> None:
    runtime = Runtime([letters])
    assert take(runtime, (0,), 0) == "a"
    assert ran(runtime, Run((0,), 0, 1, ""), NotSent()).value == "b"  # type: ignore[union-attr]
    runtime.drop((0,))
    with pytest.raises(NotSentError):
        ran(runtime, Run((0,), 0, 2, ""), NotSent())
    assert take(runtime, (0,), 2) == "c"


def test_a_generator_that_was_cut_at_other_rows_is_not_gone_on_with() -> None:
    """Of two attempts at a slice only one counts, but both are parked where they ran."""
    begun: list[list[int]] = []

    def cut(task: ReadTask) -> Iterator[Outcome]:
        begun.append(list(task.ends))
        for end in (10, 20):
            yield Outcome(end, 1, 1, ends=(end, end))

    runtime, task = Runtime([cut]), ReadTask(0, 1)
    assert ran(runtime, Run((0,), 0, 0, ""), task) is not None
    ran(runtime, Run((0,), 0, 1, ""), ReadTask(0, 1, ends=array("q", [10, 10])))
    assert begun == [[]]
    runtime = Runtime([cut])
    assert ran(runtime, Run((0,), 0, 0, ""), task) is not None
    ran(runtime, Run((0,), 0, 1, ""), ReadTask(0, 1, ends=array("q", [7, 7])))
    assert begun == [[], [], [7, 7]]
    assert runtime.replayed == 1


def test_a_slice_asked_for_again_is_made_again() -> None:
    runtime = Runtime([letters])
    assert [take(runtime, (0,), k) for k in (0, 1, 1, 0, 2)] == ["a", "b", "b", "a", "c"]


def test_a_fault_can_drop() -> None:
    runtime = Runtime([letters])
    take(runtime, (0,), 0)
    outcome = ran(runtime, Run((0,), 0, 1, "drop"), "abc")
    assert outcome is not None
    assert (outcome.value, runtime.replayed) == ("b", 1)


def test_fewer_partitions_than_before_is_told() -> None:
    runtime = Runtime([letters])
    with pytest.raises(NonDeterminismError, match="gave 1 partitions when run again, 2 before"):
        ran(runtime, Run((0,), 0, 2, ""), "a")


@pytest.mark.parametrize("how", ["close", "done"])
def test_generators_are_ended(how: str) -> None:
    ended = []

    def careful(unit: int) -> Iterator[Outcome]:
        try:
            for k in range(unit):
                yield Outcome(k, 1, 1, done=k == 1)
        finally:
            ended.append(unit)

    runtime = Runtime([careful])
    ran(runtime, Run((0,), 0, 0, ""), 5)
    assert not ended
    if how == "close":
        runtime.close()
    else:
        ran(runtime, Run((0,), 0, 1, ""), 5)
    assert ended == [5]


def drive(loop: DriverLoop) -> list[object]:
    """Run a loop to its end, one slice at a time, in the order in which the core starts them."""
    pending, got = loop.begin(), []
    pending += loop.take(Settled())
    while pending or loop.offers:
        while loop.offers:
            seq = loop.offers.popleft()
            held = loop.stored[seq]
            got.append(held.value if isinstance(held, Outcome) else held.error)
            pending += loop.take(Consumed(seq))
        if pending:
            run = pending.pop(0)
            pending += loop.end(run, *loop.runtime.perform(run, loop.argument(run)))
    return got


def test_a_chain_hands_partitions_down_and_forgets_them() -> None:
    def doubled(letter: str) -> Iterator[Outcome]:
        yield Outcome(letter, 1, 1)
        yield Outcome(letter.upper(), 1, 1, done=True)

    stages = (Demand("read", output_bytes=1), Demand("double", output_bytes=1))
    loop = DriverLoop.over(["ab", "", "c"], [letters, doubled], {"stages": stages}, slots=2)
    assert drive(loop) == ["a", "A", "b", "B", "c", "C"]
    assert loop.core.finished
    assert not loop.stored
    assert loop.core.state.used_bytes == 0


def test_an_exception_comes_at_its_place() -> None:
    def shy(unit: str) -> Iterator[Outcome]:
        yield from letters(unit)
        if unit == "b":
            raise ValueError(unit)

    loop = DriverLoop.over(["a", "b", "c"], shy, {}, slots=1)
    got = drive(loop)
    assert got[:2] == ["a", "b"]
    assert isinstance(got[2], ValueError)
    assert loop.tally.failures == 1


def test_a_slice_is_timed_and_its_failure_kept() -> None:
    def broken(unit: int) -> Iterator[Outcome]:
        if unit:
            raise KeyError(unit)
        yield Outcome(None, 0, 0)

    loop = DriverLoop.over([7], broken, {}, slots=1)
    (run,) = loop.begin()
    result, seconds = loop.runtime.perform(run, loop.argument(run))
    assert isinstance(result, Failure)
    assert result.error.args == (7,)
    assert seconds > 0


def test_bytes_are_charged_from_the_making_to_the_release() -> None:
    def steps(unit: int) -> Iterator[Outcome]:
        for k in range(3):
            yield Outcome(k, 10, 1, parked_bytes=5)

    loop = DriverLoop.over([0], steps, {"ahead": 1, "stages": (Demand(output_bytes=10),)}, slots=1)
    run = loop.begin()[0]
    held = []
    for _ in range(3):
        assert not loop.end(run, *loop.runtime.perform(run, loop.argument(run)))
        held.append(loop.core.state.used_bytes)
        (run,) = loop.take(Consumed(loop.offers.popleft()))
    assert held == [15, 15, 15]
    loop.end(run, *loop.runtime.perform(run, loop.argument(run)))
    assert loop.core.state.used_bytes == 0
    assert all(a < b for a, b in pairwise([0, loop.core.peak_bytes]))
