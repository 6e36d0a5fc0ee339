"""Test the separation of processor time from waiting, with simulated clocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dml.data.block import Block
from dml.data.schema import Schema
from dml.exec.delivery import meter
from dml.exec.delivery.meter import ASKED_S, Processor
from dml.exec.tasks import steps
from dml.exec.tasks.steps import ASKED, LONG_S, Stopwatch
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec


class Clocks:
    """A wall and a processor, moved by hand; ``asked`` counts questions to the processor."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.asked = 0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        self.asked += 1
        return self.cpu

    def work(self, seconds: float, waits: float = 0.0) -> None:
        self.wall += seconds + waits
        self.cpu += seconds


class Endless:
    """A flow of nothing."""

    def pull(self, _most: int) -> None:
        return None

    def position(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(meter, "thread_seconds", made.thread_time)
    monkeypatch.setattr(steps, "time", made)
    monkeypatch.setattr(steps, "thread_seconds", made.thread_time)
    return made


def test_a_thread_is_asked_for_its_time_only_now_and_then(clocks: Clocks) -> None:
    processor = Processor()
    for _ in range(100):
        clocks.work(ASKED_S / 50)
        assert processor.at(clocks.wall) == pytest.approx(clocks.cpu)
    assert clocks.asked == 2
    clocks.work(ASKED_S, waits=1.0)
    assert processor.at(clocks.wall) == pytest.approx(clocks.cpu)


def test_another_thread_has_another_time(clocks: Clocks) -> None:
    processor, found = Processor(), list[float]()
    processor.at(clocks.wall)
    clocks.cpu = 7.0
    other = threading.Thread(target=lambda: found.append(processor.at(clocks.wall)))
    other.start()
    other.join()
    assert found == [7.0]


def timed(clocks: Clocks, blocks: int, seconds: float, waits: float) -> tuple[float, float]:
    """Wall and processor seconds of so many blocks, as a stopwatch sums them up."""

    def made() -> Iterator[object]:
        for _ in range(blocks):
            clocks.work(seconds, waits)
            yield object()

    watch, flow = Stopwatch(), made()
    found = [watch.time(flow, None)[1:] for _ in range(blocks)]
    return sum(wall for wall, _ in found), sum(cpu for _, cpu in found)


def test_long_blocks_are_all_asked_and_short_ones_judged_by_some(clocks: Clocks) -> None:
    assert timed(clocks, 200, LONG_S, LONG_S) == pytest.approx((400 * LONG_S, 200 * LONG_S))
    assert clocks.asked == 400
    clocks.asked = 0
    short = LONG_S / 10
    assert timed(clocks, 200, short, short) == pytest.approx((400 * short, 200 * short))
    assert clocks.asked == 2 * -(-200 // ASKED)


def test_memory_is_looked_at_also_where_only_a_flow_gives_rows(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, given_back = [70, 90, 50], list[int]()
    monkeypatch.setattr(meter, "perf_counter", clocks.perf_counter)
    monkeypatch.setattr(meter, "anonymous_bytes", lambda: taken[0])
    monkeypatch.setattr(meter, "give_back", lambda: given_back.append(taken[0]))
    found = meter.Meter(1, most_bytes=80)
    flow = meter.Metered(Endless(), found, 1)
    while taken:
        clocks.work(meter.GIVE_BACK_S + meter.LOOK_S)
        flow.pull(1)
        taken.pop(0)
        flow.pull(1)  # too soon for another look
    assert (found.peak_bytes, given_back) == (90, [90])


def test_units_that_are_pulled_whole_count_as_blocks_do(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "perf_counter", clocks.perf_counter)
    block = Block(Schema({"x": pa.int64()}.items()), (Vec(np.arange(10)),), RowIds.run(1, 0, 10))

    class Units(Endless):
        def pull_piece(self, _room: object) -> list[Block]:
            clocks.work(1.0, waits=2.0)
            return [block, block]

    found = meter.Meter(1)
    flow: Any = meter.Metered(Units(), found, 1)
    flow.pull_piece(None)
    cell = found.cells[1]
    assert (cell.seconds, cell.cpu_s, cell.blocks, cell.rows) == (3.0, 1.0, 2, 20)
    assert cell.nbytes == 2 * block.nbytes


@pytest.mark.parametrize("scatters", [False, True])
def test_a_metered_flow_scatters_if_the_flow_below_it_does(*, scatters: bool) -> None:
    """An operator may return the metered flow of its input as its own."""

    class Scattered(Endless):
        def pull_scattered(self) -> None:
            return None

    found = meter.Meter(1)
    below = meter.Metered(Scattered() if scatters else Endless(), found, 0)
    assert meter.Metered(below, found, 1).scatters is scatters
