"""Test that the temporary memory of slices is measured, and limits which slices start."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.exec.memory.slice_gauge import Gauge
from dml.exec.scheduler.core import Core
from dml.exec.scheduler.messages import Arrive, Run, SliceDone
from dml.exec.scheduler.policy import LEAST_BYTES, RECENT, Demand, Peaks

linux = pytest.mark.skipif(sys.platform != "linux", reason="the mark is Linux's to set back")
MIB = 1 << 20
SEEN = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 30)), max_size=40)


@pytest.mark.law
@given(seen=SEEN, given_bytes=st.integers(0, 1 << 30))
def test_the_next_is_expected_to_take_what_the_largest_of_late_took(
    seen: list[tuple[int, int]], given_bytes: int
) -> None:
    peaks = Peaks()
    for each in seen:
        peaks.add(*each)
    late = [working for _, working in seen[-RECENT:]]
    assert peaks.expected() == max(late, default=0)
    assert peaks.expected(given_bytes) >= peaks.expected()
    assert peaks.expected(2 * given_bytes) <= 2 * peaks.expected(given_bytes) + 1


def test_larger_inputs_are_expected_to_take_more() -> None:
    peaks = Peaks()
    peaks.add(10 * MIB, 30 * MIB)
    assert peaks.expected(5 * MIB) == 30 * MIB
    assert peaks.expected(20 * MIB) == 60 * MIB
    few = Peaks()
    few.add(100, 30 * MIB)  # what a first call loads does not grow with its input
    assert few.expected(LEAST_BYTES) == 30 * MIB


def begun(working_bytes: int, slots: int = 8) -> int:
    """How many slices run side by side once one has ended that took so much."""
    stage = Demand(output_bytes=10, bounded=True)
    core = Core([stage], slots, 1000, settling=False)
    first = [each for each in core.step(Arrive(100), 0.0) if isinstance(each, Run)]
    done = first[0]
    core.step(SliceDone(done.seq, 10, 1.0, more=False, working_bytes=working_bytes), 1.0)
    for each in first[1:]:
        core.step(SliceDone(each.seq, 10, 1.0, more=False, working_bytes=0), 1.0)
    return len(list(core.running()))


@given(working=st.integers(0, 400), slots=st.integers(1, 8))
def test_those_begin_that_fit_with_what_was_learned(working: int, slots: int) -> None:
    assert begun(working, slots) * (10 + working) <= max(1000, 10 + working)


def test_more_begin_where_less_is_taken() -> None:
    assert begun(0) == 8
    assert begun(200) == 4


OWN = """
import numpy as np
from dml.exec.memory.slice_gauge import Gauge
gauge = Gauge()
gauge.own = True
kept = []
def work(temporary, stays):
    begun = gauge.begin()
    array = np.ones(temporary << 17)
    kept.append(np.ones(stays << 17))
    del array
    return gauge.end(begun) >> 20
print(work(200, 0), work(50, 0), work(0, 100), work(1, 1), work(80, 40))
"""


@pytest.mark.law
@linux
def test_what_a_slice_of_ours_has_taken_and_given_back() -> None:
    told = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, check=True)
    large, middle, stays, little, both = map(int, told.stdout.split())
    assert 190 <= large <= 230
    assert 45 <= middle <= 60  # less than before, which is not remembered
    assert stays <= 10  # what stays is no passing need
    assert little <= 10
    assert 70 <= both <= 90


SHARED = OWN.replace("gauge.own = True", "").replace(
    "print(work", "print(work(200, 0), work(50, 0), work(300, 0))\n#"
)


# A process begins with the mark of who started it: here a small one, not that of the tests.
RELAY = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"


@pytest.mark.law
@linux
def test_of_a_users_process_what_rises_above_its_mark_is_seen() -> None:
    command = [sys.executable, "-c", RELAY, SHARED]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    first, less, more = map(int, told.stdout.split())
    assert 190 <= first <= 230
    assert less == 0
    assert 290 <= more <= 330


def test_what_runs_side_by_side_is_divided() -> None:
    gauge = Gauge()
    one, two = gauge.begin(), gauge.begin()
    assert (one.slices, two.slices) == (1, 2)
    assert gauge.end(two) >= 0
    assert gauge.end(one) >= 0
    assert gauge.begin().slices == 1


@pytest.mark.law
@linux
def test_a_report_tells_what_functions_took_on_their_way() -> None:
    def summed(batch: dict[str, object]) -> dict[str, object]:
        import numpy as np

        ids = np.asarray(batch["id"])
        return {"n": np.ones((len(ids), 100)).sum(1)}

    ds = dml.range(4 * 65536).map_batches(summed, batch_size=65536)
    it = iter(ds.with_options(executor="processes", num_workers=1, memory_limit="256MiB"))
    assert sum(1 for _ in it) == 4 * 65536
    stage = max(it.memory_report().stages, key=lambda each: each.working_bytes)
    assert 40 * MIB <= stage.working_bytes <= 120 * MIB
    assert "while it ran" in str(it.memory_report())
