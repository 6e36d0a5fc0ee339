"""Define the counters of a run: tallies for workers, a meter for stream operators and waits."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from time import perf_counter

from dml.base.thread_seconds import thread_seconds
from dml.data.block import Block
from dml.events import Tally
from dml.exec.memory.memory_meter import anonymous_bytes, give_back
from dml.expr.batch_run import BatchRun, Between, Fits, ScatteredBatch
from dml.expr.flow import UNBOUNDED, Flow, GatherQuota, Position

# Seconds of wall time for which a thread's CPU time is estimated before it is measured again.
ASKED_S = 1e-4
# The bytes of the first blocks of a stream operator are measured, and then those of one in so many,
# which stands for the others.
WEIGHED = 32
# Seconds between two measurements of the process's memory, which take some 10 microseconds each.
LOOK_S = 0.01
# Seconds between two requests to the allocators, which then search all their memory.
GIVE_BACK_S = 0.1


class Tallies:
    """One tally per thread, so that counting takes no lock.

    The key is the thread's number; a later thread with the same number continues the tally. Why
    this is not a threading.local: see ``Bench`` in dml/exec/process/task_runner.py.
    """

    def __init__(self) -> None:
        self._by_thread: dict[int, Tally] = {}

    def mine(self) -> Tally:
        """Return the tally of this thread."""
        thread = threading.get_ident()
        found = self._by_thread.get(thread)
        if found is None:
            found = self._by_thread[thread] = Tally()
        return found

    def total(self) -> Tally:
        """Return the sums of all threads."""
        return Tally().merge(*self._by_thread.copy().values())


class Processor:
    """CPU seconds of the calling thread; mostly estimated from the wall clock, which is cheaper."""

    __slots__ = ("_asked_at", "_seconds", "_thread")

    def __init__(self) -> None:
        self._asked_at, self._seconds, self._thread = -math.inf, 0.0, -1

    def at(self, now: float) -> float:
        """Return the CPU seconds of this thread at time ``now``, exact to 0.1 milliseconds."""
        thread, past = threading.get_ident(), now - self._asked_at
        if past <= ASKED_S and thread == self._thread:
            return self._seconds + past
        self._asked_at, self._thread = now, thread
        self._seconds = thread_seconds()
        return self._seconds


class Cell:
    """The sums at one place in the stream: rows that passed, and seconds spent to make them."""

    __slots__ = ("blocks", "cpu_s", "first_bytes", "first_rows", "rows", "seconds",
                 "weighed_bytes", "weighed_rows")  # fmt: skip

    def __init__(self) -> None:
        self.blocks = self.rows = self.weighed_rows = self.weighed_bytes = 0
        self.first_rows = self.first_bytes = 0
        self.seconds = self.cpu_s = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes that passed: of the first 32 blocks, then estimated from every 32nd."""
        rest = self.rows - self.first_rows
        if not self.weighed_rows:
            return self.first_bytes + self.first_bytes * rest // max(1, self.first_rows)
        return self.first_bytes + self.weighed_bytes * rest // self.weighed_rows


class Meter:
    """Counts rows and time: ``cells[0]`` is the stages' output, ``cells[n + 1]`` stream operator n.

    ``most_bytes`` is the process memory above which allocators give unused memory back.
    """

    def __init__(self, operators: int, most_bytes: int = UNBOUNDED) -> None:
        self.cells, self.processor = [Cell() for _ in range(operators + 1)], Processor()
        self.peak_bytes, self.most_bytes = 0, most_bytes
        self._look_at = self._give_back_at = 0.0

    def waited(self, started: float, cpu_s: float) -> float:
        """Add the time since ``started`` that this thread waited, or worked, for a stage.

        ``cpu_s`` is the thread's CPU time in seconds at ``started``. Return the time now.
        """
        cell, now = self.cells[0], perf_counter()
        cell.seconds += now - started
        cell.cpu_s += self.processor.at(now) - cpu_s
        return now

    def partition(self, rows: int, nbytes: int, now: float) -> None:
        """Add a partition of ``rows`` rows and ``nbytes`` bytes that the stage delivered."""
        cell = self.cells[0]
        cell.blocks += 1
        cell.rows += rows
        cell.weighed_rows += rows
        cell.weighed_bytes += nbytes
        self.seen(now)

    def seen(self, now: float) -> None:
        """Measure the memory of the process if the next measurement is due at ``now``."""
        if now >= self._look_at:
            self.look(now)

    def look(self, now: float) -> None:
        """Measure the memory of the process; above ``most_bytes``, free unused allocator memory."""
        self._look_at = now + LOOK_S
        found = anonymous_bytes() or 0
        self.peak_bytes = max(self.peak_bytes, found)
        if found > self.most_bytes and now >= self._give_back_at:
            self._give_back_at = now + GIVE_BACK_S
            give_back()


class Metered:
    """A flow whose rows, and seconds including those below it, count in ``meter.cells[number]``.

    Measuring takes a microsecond per pull.
    """

    def __init__(self, flow: Flow, meter: Meter, number: int) -> None:
        self.flow, self.meter, self.cell = flow, meter, meter.cells[number]
        self.processor = meter.processor
        self._pull_run: Callable[[Fits], BatchRun | None] | None = getattr(flow, "pull_run", None)
        self.inside: Callable[[Position, int], Between] | None = getattr(
            flow, "inside", None
        )  # positions inside the last block
        # a metered flow has the method whether or not the flow below it does
        self.scatters: bool = getattr(flow, "scatters", hasattr(flow, "pull_scattered"))

    def pull(self, most: int) -> Block | None:
        """Return what ``pull`` of the flow returns, and count it."""
        started = perf_counter()
        cpu_s = self.processor.at(started)
        block = self.flow.pull(most)
        self._spent(started, cpu_s)
        if block is not None:
            self._passed(block)
        return block

    def pull_run(self, fits: Fits) -> BatchRun | None:
        """Return batches that are adjacent in memory; None if the flow has none."""
        if self._pull_run is None:
            return None
        started = perf_counter()
        cpu_s = self.processor.at(started)
        run = self._pull_run(fits)
        self._spent(started, cpu_s)
        if run is not None:
            rows, cell = run.block.ids.count, self.cell
            cell.weighed_bytes += run.block.value_bytes
            cell.weighed_rows += rows
            cell.blocks += rows // run.n
            cell.rows += rows
        return run

    def pull_scattered(self) -> ScatteredBatch | None:
        """Return the next batch as its rows lie; None if exhausted. The flow must ``scatter``."""
        started = perf_counter()
        cpu_s = self.processor.at(started)
        found: ScatteredBatch | None = self.flow.pull_scattered()  # type: ignore[attr-defined]
        self._spent(started, cpu_s)
        if found is not None:
            self._passed(found, first=1)  # its rows are copied to be measured
        return found

    def pull_piece(self, room: GatherQuota) -> list[Block] | None:
        """Return the blocks of the next unit; None if exhausted. The flow must have this method."""
        started = perf_counter()
        cpu_s = self.processor.at(started)
        blocks: list[Block] | None = self.flow.pull_piece(room)  # type: ignore[attr-defined]
        self._spent(started, cpu_s)
        for block in blocks or ():
            self._passed(block)
        return blocks

    def _spent(self, started: float, cpu_s: float) -> None:
        """Count the time since ``started``, when the thread had used ``cpu_s`` seconds of CPU."""
        now = perf_counter()
        self.cell.seconds += now - started
        self.cell.cpu_s += self.processor.at(now) - cpu_s
        self.meter.seen(now)

    def _passed(self, found: Block | ScatteredBatch, first: int = WEIGHED) -> None:
        """Count a block, and the bytes of the first ones and of every 32nd."""
        cell, rows = self.cell, found.n
        if cell.blocks < first:
            cell.first_bytes += found.value_bytes
            cell.first_rows += rows
        elif not cell.blocks % WEIGHED:
            cell.weighed_bytes += found.value_bytes
            cell.weighed_rows += rows
        cell.blocks += 1
        cell.rows += rows

    def position(self) -> Position:
        """Return the position of the flow."""
        return self.flow.position()

    def close(self) -> None:
        """Close the flow."""
        self.flow.close()
