"""Read the input pipelines of an operator ahead, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty
from time import perf_counter, process_time
from typing import Any

from dml.base.single_thread import single_threaded
from dml.base.thread_seconds import thread_seconds
from dml.data.block import Block
from dml.exec.delivery.prefetch import Ahead, ChunkShelf
from dml.exec.drivers.sync import LEFT, LeftError
from dml.exec.scheduler.concurrency import MOST, Concurrency
from dml.exec.slicing.slice_sizes import GROWTH, PATIENCE_S, Spent, Width
from dml.exec.streams.nested_run import NestedFlow, Read
from dml.exec.tasks.skipped_rows import Allowance
from dml.expr.flow import Position

# Most pulls of a flow that wait for the consumer; most rows of one pull; most bytes of all pulls.
DEPTH, MOST_ROWS, MOST_BYTES = 4, 256, 1 << 20
# Rows read ahead may take 1/PART of the bytes of a flow, and as many bytes again while an earlier
# flow has not released its share.
PART = 4
# Most flows that are read ahead, since each has a thread; if there are more, none is read ahead.
MOST_FLOWS = 256
# A pipeline of fewer seconds is short: beginning and ending one in worker processes takes 15 ms.
SHORT_S = 0.05
# Seconds after which a waiting thread checks again whether it is still needed.
LOOK_S = 0.1
# Seconds after which a consumer that waits for rows does other work.
AGAIN_S = 0.01


class _Clock:
    """Measures time from its creation."""

    def __init__(self) -> None:
        self.started = perf_counter(), thread_seconds(), process_time()

    def spent(self) -> tuple[float, float, float]:
        """Return elapsed seconds, and processor seconds of this thread and of all other threads."""
        now = perf_counter(), thread_seconds(), process_time()
        seconds, cpu_s, all_s = (a - b for a, b in zip(now, self.started, strict=True))
        return seconds, cpu_s, max(0.0, all_s - cpu_s)


class PullLimit:
    """Limits the pulls of ``flows`` flows: at most ``most`` run at once.

    If ``most`` is smaller than ``flows``, one of the pulls is reserved for the flow that the
    consumer waits for. Flows that only compute in Python are pulled one at a time, when the
    consumer waits for them, since their threads would contend for the GIL. If flows wait, up to
    ``able`` of them are pulled at once.
    """

    def __init__(self, most: int, flows: int, able: int = 0) -> None:
        self.most, self.flows, self.width = most, flows, Width(most)
        self.tuned = Concurrency(most, max(most, able))
        self.pipeline_s: float | None = None  # mean time of a flow read to its end
        self.running = set[_Reader]()
        self.head: _Reader | None = None
        self.moved = threading.Condition()

    def enter(self, reader: _Reader) -> bool:
        """Wait until ``reader`` may pull; return False if its rows are no longer needed."""
        with self.moved:
            while not (reader.shelf.stopped or self.admits(reader)):
                self.moved.wait(LOOK_S)
            wanted = not reader.shelf.stopped
            if wanted:
                self.running.add(reader)
        return wanted

    def admits(self, reader: _Reader) -> bool:
        """Return whether ``reader`` may pull now, within the limit."""
        others = self.most if self.most >= self.flows else self.most - 1
        return reader is self.head or len(self.running - {self.head}) < others

    def leave(self, reader: _Reader, rows: int, spent: tuple[float, float, float]) -> None:
        """Record a pull of ``reader``: its number of rows, and its times from ``_Clock.spent``."""
        with self.moved:
            beside = len(self.running)
            self.running.discard(reader)
            self._tune(Spent(rows, *spent, beside, spent[0] / beside))
            self.moved.notify_all()

    def _tune(self, pull: Spent) -> None:
        """Choose how many flows may be pulled at once."""
        if not self.width.decided and self.tuned.parallel == self.tuned.least:
            self.most = self.width.measured(pull) or self.most
        if not (self.width.alone or self.width.trying):
            self.tuned.cleared |= self.width.decided
            times = pull.seconds, pull.cpu_s, pull.beside, pull.others_s
            change = self.tuned.measured(pull.rows, *times)
            self.most = self.most if change is None else change.parallel

    def ended(self, seconds: float) -> None:
        """Record that a flow was read to its end, with the ``seconds`` of all its pulls."""
        with self.moved:
            before = seconds if self.pipeline_s is None else self.pipeline_s
            self.pipeline_s = (before + seconds) / 2

    def awaits(self, reader: _Reader | None) -> None:
        """Set the reader that the consumer waits for, or None."""
        with self.moved:
            self.head = reader
            self.moved.notify_all()


class _Reader:
    """Opens a flow and pulls its rows: fewer at once if they take long, or many bytes.

    A reader must not refer to its ``ReadingFlow``, whose garbage collection ends the reader.
    """

    def __init__(
        self, opener: Callable[[], NestedFlow], gate: PullLimit, shelf: ChunkShelf
    ) -> None:
        self.opener, self.gate, self.shelf = opener, gate, shelf
        self.flow: NestedFlow | None = None
        self.rows, self.nbytes = 1, 0  # of the next pull; of all so far
        self.next_bytes = 0
        self.seconds = 0.0  # of all pulls
        self.over = False

    def make(self) -> Read | None:
        """Wait for room, and return the result of the next pull; None at the end or if stopped."""
        wanted = not self.over and self.shelf.wait(self.next_bytes)
        if not wanted or not self.gate.enter(self):
            return None
        clock, rows = _Clock(), 0
        try:
            with single_threaded():
                read = self._read()
            rows = 0 if read.block is None else read.block.n
        finally:
            spent = clock.spent()
            self.seconds += spent[0]
            self.gate.leave(self, rows, spent)
        if read.block is None:
            self.gate.ended(self.seconds)
            self.close()
        else:
            self._learn(read.block, spent[0])
        return read

    def _read(self) -> Read:
        if self.flow is None:
            self.flow = self.opener()
        return Read() if self.shelf.stopped else self.flow.read(self.rows)

    def _learn(self, block: Block, seconds: float) -> None:
        """Choose the number of rows of the next pull from a pulled block and its seconds."""
        self.nbytes += block.nbytes
        each = max(1, block.nbytes // block.n)
        fitting = self.shelf.most_bytes // DEPTH // each
        patient = int(PATIENCE_S * block.n / max(seconds, 1e-9))
        self.rows = max(1, min(MOST_ROWS, GROWTH * self.rows, fitting, patient))
        self.next_bytes = self.rows * each

    def close(self) -> None:
        """Close the flow."""
        self.over = True
        if self.flow is not None:
            self.flow.close()


class ReadingFlow:
    """The rows of a flow that a thread reads ahead; positions count the rows delivered from here.

    The thread ends when this object is closed or garbage-collected, or at interpreter exit. It
    completes a pull in progress first; closing this object does not wait for that.
    """

    def __init__(
        self,
        opener: Callable[[], NestedFlow],
        position: Position | None,
        gate: PullLimit,
        most_bytes: int,
        *,
        allowance: Allowance,
        meanwhile: Callable[[], Callable[[], None] | None],
    ) -> None:
        self.base, self.given, self.meanwhile = position, 0, meanwhile
        self.gate, self.allowance = gate, allowance
        self.read: Read | None = None  # the next result, not processed yet
        self.rest: Block | None = None
        self.after: Position | None = None
        self.ended, self.taken_bytes = False, 0
        self.shelf = ChunkShelf(DEPTH, most_bytes)
        self.reader = _Reader(opener, gate, self.shelf)
        self.ahead = Ahead(self.reader, self.shelf)

    @property
    def over(self) -> bool:
        """Whether the whole flow was read, and only waiting rows are left."""
        return self.reader.over

    @property
    def nbytes(self) -> int:
        """Bytes of waiting rows."""
        return self.reader.nbytes - self.taken_bytes

    def look(self, *, wait: bool) -> int:
        """Return the number of rows that are available at once, and count losses before them.

        With ``wait``, wait for rows: 0 then means the end. See ``dml.expr.nested_pipelines``.
        """
        while self.rest is None and not self.ended:
            if self.read is None:
                if not wait and self.shelf.chunks.empty():
                    return 0
                self.read = self._next()
            if not wait and not self.read.plain:
                return 0
            self.rest = self.read.count_losses(self.allowance).block
            self.ended = self.rest is None
            self.after, self.read = self.read.after, None
        return 0 if self.rest is None else self.rest.n

    def _next(self) -> Read:
        if not self.shelf.chunks.empty():
            got = self.shelf.get()
        else:
            self.gate.awaits(self.reader)
            try:
                got = self._awaited()
            finally:
                self.gate.awaits(None)
        found = Read(error=got) if isinstance(got, BaseException) else got or Read()
        self.taken_bytes += found.nbytes
        return found

    def _awaited(self) -> Any:
        """Return the next result; while waiting, do work of ``meanwhile`` that other flows need."""
        left = LEFT.get()
        while True:
            try:
                return self.shelf.get(AGAIN_S)
            except Empty:
                if left():
                    raise LeftError from None
                work = self.meanwhile()
                if work is not None:
                    work()

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows; None if exhausted."""
        self.look(wait=True)
        block = self.rest
        if block is None:
            return None
        self.given += min(most, block.n)
        self.rest = block.slice(most, block.n) if most < block.n else None
        if self.rest is None:
            self.base, self.given = self.after, 0
        return block.slice(0, most) if most < block.n else block

    def position(self) -> Position | None:
        """Return the position before the current rows; "drop" is the number of delivered ones."""
        if not self.given:
            return self.base
        start = self.base or {"at": None, "schemas": {}}
        return {**start, "drop": start.get("drop", 0) + self.given}

    def close(self) -> None:
        """Stop reading."""
        self.ahead.stop()
        self.rest, self.ended = None, True


class SideBySide:
    """Opens ``flows`` flows that threads read ahead; at most ``most`` are pulled at once.

    If flows wait for data rather than compute, at most ``able`` are pulled at once.
    """

    def __init__(self, most: int, flows: int, allowance: Allowance, able: int = 0) -> None:
        self.gate, self.allowance = PullLimit(most, flows, able), allowance

    @property
    def short(self) -> bool:
        """Whether the pipelines end so soon that worker processes are not worthwhile for them."""
        return self.gate.pipeline_s is not None and self.gate.pipeline_s < SHORT_S

    def open(
        self,
        opener: Callable[[], NestedFlow],
        position: Position | None,
        most_bytes: int,
        meanwhile: Callable[[], Callable[[], None] | None],
    ) -> ReadingFlow:
        """Return the flow of ``opener`` at ``position``, read ahead in a thread."""
        where = (opener, position, self.gate, _ahead_bytes(most_bytes))
        return ReadingFlow(*where, allowance=self.allowance, meanwhile=meanwhile)

    @staticmethod
    def own_bytes(most_bytes: int) -> int:
        """Return how much of ``most_bytes`` the flow itself may use; the rest is for its rows."""
        return most_bytes - 2 * _ahead_bytes(most_bytes)


def _ahead_bytes(most_bytes: int) -> int:
    return min(MOST_BYTES, most_bytes // PART)


def side_by_side(
    flows: int, workers: int, at_once: int | None, allowance: Allowance, *, tunes: bool = False
) -> SideBySide | None:
    """Return a reader of ``flows`` flows in parallel; None if they are read one after the other.

    At most ``at_once`` flows are read at once, and at most ``workers``, or more if the run
    ``tunes`` its concurrency.
    """
    asked = flows if at_once is None else min(flows, at_once)
    most, able = min(asked, workers), min(asked, MOST) if tunes else 0
    if max(most, able) < 2 or flows > MOST_FLOWS:
        return None
    return SideBySide(most, flows, allowance, able)
