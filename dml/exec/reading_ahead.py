"""This file reads the flows of pipelines inside of a run ahead, side by side, in a thread each."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from queue import Empty
from time import perf_counter, process_time, thread_time
from typing import Any

from dml.exec.backends.sync import LEFT, LeftError
from dml.exec.losses import Allowance
from dml.exec.making import Ahead, ChunkShelf
from dml.exec.nested import NestedFlow, Read
from dml.exec.pace import GROWTH, PATIENCE_S, Width
from dml.exec.single import single_threaded
from dml.expr.block import Block
from dml.expr.flow import Position

# Pulls of a flow that wait for the consumer, rows of one at most, and bytes of all of them.
DEPTH, MOST_ROWS, MOST_BYTES = 4, 256, 1 << 20
# Of what a flow may hold, its rows read ahead are one part in so many, and as many in the place
# that it takes before another one has left it.
PART = 4
# Flows that are read ahead at most: each has a thread. Where there are more, none is.
MOST_FLOWS = 256
# A pipeline takes some 15 ms to be begun and ended in worker processes, two or more at a time.
SHORT_S = 0.05
# Seconds between two looks of a thread that waits whether it is still wanted.
LOOK_S = 0.1
# Seconds after which one who waits for rows does what else there is to do.
AGAIN_S = 0.01


@dataclasses.dataclass(slots=True)
class _Spent:
    """What a pull took, as ``Width`` looks at it."""

    rows: int
    seconds: float
    cpu_s: float
    others_s: float
    beside: int
    share_s: float


class _Clock:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self.started = perf_counter(), thread_time(), process_time()

    def spent(self) -> tuple[float, float, float]:
        """Seconds since; of this thread on a processor; of others of the process."""
        now = perf_counter(), thread_time(), process_time()
        seconds, cpu_s, all_s = (a - b for a, b in zip(now, self.started, strict=True))
        return seconds, cpu_s, max(0.0, all_s - cpu_s)


class PullLimit:
    """How many of so many ``flows`` are pulled at once: ``most``.

    If these are fewer, one of them is that which the consumer waits for: it never waits for one
    whose turn comes later. Those that only compute in Python are pulled one at a time, when they
    are waited for: threads would fight for Python's lock.
    """

    def __init__(self, most: int, flows: int) -> None:
        self.most, self.flows, self.width = most, flows, Width(most)
        self.pipeline_s: float | None = None  # of a flow that was read to its end
        self.running = set[_Reader]()
        self.head: _Reader | None = None
        self.moved = threading.Condition()

    def enter(self, reader: _Reader) -> bool:
        """Wait until ``reader`` may pull; False if nobody wants its rows any more."""
        with self.moved:
            while not (reader.shelf.stopped or self.admits(reader)):
                self.moved.wait(LOOK_S)
            wanted = not reader.shelf.stopped
            if wanted:
                self.running.add(reader)
        return wanted

    def admits(self, reader: _Reader) -> bool:
        """True if ``reader`` may pull now."""
        others = self.most if self.most >= self.flows else self.most - 1
        return reader is self.head or len(self.running - {self.head}) < others

    def leave(self, reader: _Reader, rows: int, spent: tuple[float, float, float]) -> None:
        """``reader`` has pulled so many rows, in such times of a ``_Clock``."""
        with self.moved:
            beside = len(self.running)
            self.running.discard(reader)
            pull = _Spent(rows, *spent, beside, spent[0] / beside)
            self.most = self.width.measured(pull) or self.most
            self.moved.notify_all()

    def ended(self, seconds: float) -> None:
        """A flow was read to its end; its pulls took so long."""
        with self.moved:
            before = seconds if self.pipeline_s is None else self.pipeline_s
            self.pipeline_s = (before + seconds) / 2

    def awaits(self, reader: _Reader | None) -> None:
        """The consumer waits for rows of ``reader``, or for none any more."""
        with self.moved:
            self.head = reader
            self.moved.notify_all()


class _Reader:
    """Opens a flow and pulls its rows: few where they take long, or many bytes.

    It must not hold whoever has its rows, which is how it learns that they are not wanted.
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
        """What the next pull gives, once there is room for it."""
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
        """How many rows to pull next."""
        self.nbytes += block.nbytes
        each = max(1, block.nbytes // block.n)
        fitting = self.shelf.most_bytes // DEPTH // each
        patient = int(PATIENCE_S * block.n / max(seconds, 1e-9))
        self.rows = max(1, min(MOST_ROWS, GROWTH * self.rows, fitting, patient))
        self.next_bytes = self.rows * each

    def close(self) -> None:
        """Let go of the flow."""
        self.over = True
        if self.flow is not None:
            self.flow.close()


class ReadingFlow:
    """The rows of a flow that a thread reads ahead; positions are of rows that were handed on.

    The thread ends with the flow, when this is closed or forgotten, and at interpreter exit; a pull
    that is under way then ends first, and nobody waits for it.
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
        self.read: Read | None = None  # what came, and was not looked at
        self.rest: Block | None = None
        self.after: Position | None = None
        self.ended, self.taken_bytes = False, 0
        self.shelf = ChunkShelf(DEPTH, most_bytes)
        self.reader = _Reader(opener, gate, self.shelf)
        self.ahead = Ahead(self.reader, self.shelf)

    @property
    def over(self) -> bool:
        """True if all of it was read, and it holds nothing but rows that wait."""
        return self.reader.over

    @property
    def nbytes(self) -> int:
        """Bytes of rows that wait."""
        return self.reader.nbytes - self.taken_bytes

    def look(self, *, wait: bool) -> int:
        """Rows at hand; see ``dml.expr.nested``."""
        while self.rest is None and not self.ended:
            if self.read is None:
                if not wait and self.shelf.chunks.empty():
                    return 0
                self.read = self._next()
            if not wait and not self.read.plain:
                return 0
            self.rest = self.read.told(self.allowance).block
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
        """What comes next. Others may come to their end first, and make room for what follows."""
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
        """As of any flow."""
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
        """That of the flow in front of the rows at hand, and how many of those were given."""
        if not self.given:
            return self.base
        start = self.base or {"at": None, "schemas": {}}
        return {**start, "drop": start.get("drop", 0) + self.given}

    def close(self) -> None:
        """Stop reading."""
        self.ahead.stop()
        self.rest, self.ended = None, True


class SideBySide:
    """Opens flows that are read ahead, ``most`` of so many ``flows`` at once."""

    def __init__(self, most: int, flows: int, allowance: Allowance) -> None:
        self.gate, self.allowance = PullLimit(most, flows), allowance

    @property
    def short(self) -> bool:
        """True if pipelines take so little that worker processes are not worth their while."""
        return self.gate.pipeline_s is not None and self.gate.pipeline_s < SHORT_S

    def open(
        self,
        opener: Callable[[], NestedFlow],
        position: Position | None,
        most_bytes: int,
        meanwhile: Callable[[], Callable[[], None] | None],
    ) -> ReadingFlow:
        """The flow that ``opener`` gives, which is at ``position``."""
        where = (opener, position, self.gate, _ahead_bytes(most_bytes))
        return ReadingFlow(*where, allowance=self.allowance, meanwhile=meanwhile)

    @staticmethod
    def own_bytes(most_bytes: int) -> int:
        """What a flow itself may hold, of what it and its rows may."""
        return most_bytes - 2 * _ahead_bytes(most_bytes)


def _ahead_bytes(most_bytes: int) -> int:
    return min(MOST_BYTES, most_bytes // PART)


def side_by_side(
    flows: int, workers: int, at_once: int | None, allowance: Allowance
) -> SideBySide | None:
    """What reads so many flows ahead; None where that is done one after the other."""
    most = min(flows, workers, workers if at_once is None else at_once)
    return SideBySide(most, flows, allowance) if most > 1 and flows <= MOST_FLOWS else None
