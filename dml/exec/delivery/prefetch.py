"""Make elements for the training loop in chunks, in the loop's thread or in advance in another."""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from operator import length_hint
from queue import SimpleQueue
from typing import Any, Protocol

from dml.base.fork_guard import ForkGuard
from dml.data.batch_trays import Expected
from dml.data.block import Block
from dml.data.object_values import delivered_bytes, dict_bytes
from dml.data.row_slicing import row_bytes
from dml.data.schema import Schema
from dml.exec.delivery.checkpoint import unreached
from dml.exec.delivery.prefetch_depth import DEPTH, NEW_BYTE_S, PrefetchDepth, Variation
from dml.exec.drivers.sync import LEFT
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.error_row import started
from dml.exec.tasks.skipped_rows import discard
from dml.expr.batch_run import Between, Fits
from dml.expr.facts import Rows as Fact
from dml.expr.flow import Position
from dml.expr.node import Node
from dml.physical.lanes import all_stay
from dml.udfs.calling.batch_arrays import (
    BatchConversion,
    arrays_of,
    batch_of,
    batches_of,
    gathered_arrays,
    own_arrays_of,
    separable,
)
from dml.udfs.calling.python_rows import own_rows

# Rows per chunk where rows are delivered one by one.
ROWS = 1024
# Used unless settings decide. An element that takes less than SLOW_S is made on request, since
# passing it between threads costs much of that time (benchmarks/results/prefetch.md). After
# SLOW_CHUNKS more slow chunks than quick ones, chunks are made ahead, within a limit.
SLOW_S, SLOW_CHUNKS = 1e-4, 3
# Elements are made on request if the loop takes less than this for each: no time would be saved.
LOOP_S = 5e-5
# Seconds that an ending process, or the close of a run, waits for elements still being made.
ENDING_S = 5.0
# Kinds of operators that deliver rows unchanged.
MOVING = (Fact.PERMUTED, Fact.GROUPED, Fact.REPEATED, Fact.SLICE)
# Kinds in ``MOVING`` that deliver no row twice.
ONCE = (Fact.PERMUTED, Fact.GROUPED, Fact.SLICE)
ALIKE = (Fact.SAME, Fact.FEWER)  # steps that deliver no row twice, if they call no function
# Memory of batches that nobody has any more is kept for later ones, up to this part of the bytes
# that an operator may hold.
SPARE_SHARE = 4

Element = dict[str, Any]
Figures = tuple[int, int, int, float, float, float | None]
"""Rows, batches and bytes delivered; seconds waited; start; seconds until the first element."""


class ElementChunk:
    """Batches or rows that were made together, with the positions between them.

    For batches, ``skipped`` is -1 and ``base`` is the flow's position after the chunk. For rows,
    ``base`` is the position before the pulled block, of which the first ``skipped`` rows were
    dropped. ``between``, if not None, returns the position after a number of rows of the chunk; for
    rows in free order it is set, and ``base`` is then the position after the chunk. The elements
    take ``held_bytes`` of memory; these are the ``nbytes`` that are delivered if not given.
    """

    __slots__ = ("base", "between", "each", "elements", "held_bytes", "nbytes", "rows", "skipped")

    def __init__(
        self,
        elements: list[Element],
        *,
        rows: int,
        nbytes: int,
        base: Position,
        skipped: int = -1,
        between: Between | None = None,
        held_bytes: int | None = None,
    ) -> None:
        self.elements, self.rows, self.nbytes = elements, rows, nbytes
        self.held_bytes = nbytes if held_bytes is None else held_bytes
        self.base, self.skipped, self.between = base, skipped, between
        self.each = rows // len(elements)

    def position(self, given: int) -> Position:
        """Return the position of a caller that has received ``given`` elements of this chunk."""
        if self.between is None:
            return self.base if self.skipped < 0 else {"in": self.base, "row": self.skipped + given}
        inside = given < len(self.elements)
        position = self.between(given * self.each) if inside else self.base
        return position if self.skipped < 0 else {"in": position, "row": 0}


class Received:
    """The caller's elements and seconds of waiting, counted exactly even within a chunk.

    ``makes`` are the seconds that chunks took to make: the waits for them, while each was made
    ``on_request``, except for the first one, which waits for workers to start.
    """

    __slots__ = ("_chunk", "_made", "first_s", "makes", "on_request", "started", "wait_s")

    def __init__(self) -> None:
        self._made = (0, 0, 0)  # rows, batches and bytes, with all of the current chunk
        self.wait_s, self.started = 0.0, time.perf_counter()
        self.first_s: float | None = None
        self.makes, self.on_request = Variation(), True
        self._chunk: tuple[Any, int, int, int] = (iter(()), 0, 0, 0)  # elements; figures of one

    @property
    def rows(self) -> int:
        """Rows delivered so far."""
        return self._left(0)

    @property
    def batches(self) -> int:
        """Batches delivered so far."""
        return self._left(1)

    @property
    def nbytes(self) -> int:
        """Bytes delivered so far."""
        return self._left(2)

    def figures(self) -> Figures:
        """Return all counts at this moment as a tuple, to send to another process."""
        return self.rows, self.batches, self.nbytes, self.wait_s, self.started, self.first_s

    @staticmethod
    def of(figures: Figures) -> Received:
        """Return the counts in ``figures``, which another process sent."""
        made = Received()
        made._made = figures[:3]
        made.wait_s, made.started, made.first_s = figures[3:]
        return made

    def _left(self, what: int) -> int:
        ready, *each = self._chunk
        return self._made[what] - length_hint(ready) * each[what]

    def chunk(self, chunk: ElementChunk, ready: Any, waited_s: float) -> None:
        """Add ``chunk``; each element counts once the caller has taken it from ``ready``."""
        number = len(chunk.elements)
        rows, batches, nbytes = self._made
        one = int(chunk.skipped < 0)
        self._made = rows + chunk.rows, batches + number * one, nbytes + chunk.nbytes
        self._chunk = ready, chunk.each, one, chunk.nbytes // number
        self.wait_s += waited_s
        if self.first_s is None:
            self.first_s = time.perf_counter() - self.started
        elif self.on_request:
            self.makes.add(waited_s)


class Working(Protocol):
    """Makes objects, one after the other; each object has the attribute ``nbytes``."""

    def make(self) -> Any:
        """Return the next object; None if exhausted."""

    def close(self) -> None:
        """Stop; a second call does nothing."""


class Maker(Working, Protocol):
    """Makes chunks, one after the other."""

    def make(self) -> ElementChunk | None:
        """Return the next chunk; None if exhausted."""


class BatchMaker:
    """Makes batches as dicts of arrays; with ``runs``, a chunk may have all batches of a block."""

    def __init__(
        self, streaming: Streaming, epoch: int, position: Position | None, *, runs: bool = True
    ) -> None:
        # If stream operators only move rows and none reads them, workers convert the columns to
        # the form in which they are delivered; otherwise the caller's thread does this at the end.
        stream = streaming.plan.stream
        finishing = all(node.rows in MOVING and node.looks_at is None for node in stream)
        free = streaming.choices.free
        self.flow = streaming.flow(epoch, position, finishing=finishing, free=free)
        self.pull_run = getattr(self.flow, "pull_run", None) if finishing and runs else None
        self.scatters: bool = getattr(self.flow, "scatters", False)
        made: BatchConversion = batch_of if finishing else arrays_of
        self.arrays_of: Callable[[Block], Element] = made
        self.fits: Fits = separable
        expected, self.trays = _batches(streaming), streaming.at.trays
        if expected is not None:
            self.trays.expected = expected
            # a loop that is left without being closed
            weakref.finalize(self, self.trays.close).atexit = False
        if expected is not None or once(streaming):
            self.arrays_of = partial(own_arrays_of, made=made)
            self.fits = partial(separable, once=True)
        self.schema: Schema | None = None
        self.row_bytes: int | None = None

    def make(self) -> ElementChunk | None:
        """Return a chunk with the next batch or batches; None if exhausted."""
        if self.scatters:
            return self._gathered()
        with ForkGuard():
            run = None if self.pull_run is None else self.pull_run(self.fits)
            block = self.flow.pull(1) if run is None else None
        if run is not None:
            rows, nbytes = run.block.ids.count, run.block.value_bytes
            batches = batches_of(run.block, run.n)
            base = self.flow.position()
            return ElementChunk(batches, rows=rows, nbytes=nbytes, base=base, between=run.between)
        if block is None:
            return None
        arrays, rows = self.arrays_of(block), block.ids.count
        if block.schema is not self.schema:
            self.schema, self.row_bytes = block.schema, row_bytes(block.schema)
        nbytes = delivered_bytes(block) if self.row_bytes is None else rows * self.row_bytes
        return ElementChunk([arrays], rows=rows, nbytes=nbytes, base=self.flow.position())

    def _gathered(self) -> ElementChunk | None:
        """Return a chunk with the next batch, whose lists are copied once, into its arrays.

        The flow must have batches that are still scattered over blocks.
        """
        with ForkGuard():
            batch = self.flow.pull_scattered()  # type: ignore[attr-defined]
        if batch is None:
            return None
        arrays, nbytes = gathered_arrays(batch, self.arrays_of)
        return ElementChunk([arrays], rows=batch.n, nbytes=nbytes, base=self.flow.position())

    def close(self) -> None:
        """Close the flow, and give memory for later batches back."""
        self.flow.close()
        self.trays.close()


def _batches(streaming: Streaming) -> Expected | None:
    """Return digest and batch size of the last function if its results can be written to trays.

    That is so if each of its rows goes into one batch, and no other code sees the results: later
    steps call no function, and no stored rows are read. Else return None.
    """
    plan = streaming.plan
    nodes = plan.operators[1:]
    batch = next((at for at, node in enumerate(nodes) if node.regroups), len(nodes))
    last = max(
        (at for at, node in enumerate(nodes[:batch]) if node.places or node.slow), default=batch
    )
    if not last < batch < len(nodes):
        return None
    one_by_one = all(all_stay(node) for node in nodes[last:batch])
    behind = [node for node in nodes[batch:] if node.rows in ONCE]
    called = any(node.calls is not None for node in nodes[last + 1 :])
    alone = streaming.tap is None and streaming.watching is None and not any(plan.beside)
    if (
        called
        or not (one_by_one and alone)
        or len(behind) < len(nodes) - batch
        or _over_stored(streaming) is not None
    ):
        return None
    size: int = behind[0].n  # type: ignore[attr-defined]
    return Expected(nodes[last].digest, size, streaming.at.hold_bytes // SPARE_SHARE)


def once(streaming: Streaming) -> bool:
    """Return whether rows from a cache are delivered only once, and nothing else uses their memory.

    Then the arrays of batches may use the memory of these rows.
    """
    plan, over = streaming.plan, _over_stored(streaming)
    kept = [node for node in plan.stream if node.rows is Fact.KEPT]
    return (
        (over is not None or len(kept) > 0)
        and streaming.tap is None
        and streaming.watching is None
        and not any(step.calls or step.rows not in ALIKE for step in over or ())
        and all(node.rows in ONCE or node in kept for node in plan.stream)
        and not any(node.keeps_in_memory for node in kept)
    )


def _over_stored(streaming: Streaming) -> list[Node] | None:
    """Return the workers' steps that may run on stored rows; None if no stored rows are read."""
    plan, looks = streaming.plan, streaming.at.store.looks
    steps = [*plan.stage.steps, *(step for link in plan.links for step in link.steps)]
    stored = [step.rows is Fact.STORED for step in steps]
    if not looks and not any(stored):
        return None
    lowest = 0 if looks else stored.index(True)  # a store may have the rows of any step
    return [step for step, own in list(zip(steps, stored, strict=True))[lowest:] if not own]


class RowMaker:
    """Makes rows as dicts, up to 1024 in a chunk; positions also count rows within a block."""

    def __init__(self, streaming: Streaming, epoch: int, position: Position | None) -> None:
        start = position or {"in": None, "row": 0}
        # ``skip`` counts rows in order, so rows may come in any order only without it
        free = streaming.choices.free and not start["row"]
        self.flow = streaming.flow(epoch, start["in"], free=free)
        self.inside: Callable[[Position, int], Between] | None = getattr(self.flow, "inside", None)
        self.skip: int = start["row"]
        self.allowance = streaming.allowance

    def make(self) -> ElementChunk | None:
        """Return the next rows that no earlier run delivered; None if exhausted."""
        while True:
            before = self.flow.position()
            pull = partial(self.flow.pull, ROWS)
            with ForkGuard():  # an earlier run counted the losses before the saved position
                block: Block | None = self.allowance.heard(discard, pull) if self.skip else pull()
            if block is None:
                if self.skip:
                    raise unreached(self.skip)
                return None
            between = None
            if self.inside is not None:
                before, between = self.flow.position(), self.inside(before, block.n)
            cut = min(self.skip, block.n)
            self.skip -= cut
            if cut < block.n:
                block = block.slice(cut, block.n)
                made, size = own_rows(block), {"rows": block.n, "nbytes": block.value_bytes}
                size["held_bytes"] = dict_bytes(block)
                return ElementChunk(made, **size, base=before, skipped=cut, between=between)

    def close(self) -> None:
        """Close the flow."""
        self.flow.close()


class PrefetchPace:
    """Decides whether elements are so slow that they should be made ahead.

    ``slow`` is the number of slow chunks minus that of quick ones, at least 0. A chunk is slow if
    the caller waited more than ``from_s`` seconds for each of its elements, and the loop itself
    takes some time. ``missed_s`` are the seconds that could have been saved. Making chunks ahead
    pays once these seconds exceed the cost of their memory, which is high if chunks are large.
    """

    __slots__ = ("elements", "from_s", "loop_s", "missed_s", "nbytes", "slow", "until")

    def __init__(self, from_s: float) -> None:
        self.from_s, self.slow = from_s, 0
        self.until = math.inf  # time at which the first element of the current chunk was delivered
        # seconds that the loop took for ``elements``, with more weight for newer ones
        self.loop_s = self.elements = self.missed_s = 0.0
        self.nbytes = 0  # of the largest chunk

    def pays(self) -> bool:
        """Return whether the following chunks should be made ahead."""
        costs_s = NEW_BYTE_S * (DEPTH + 1) * self.nbytes
        return self.slow >= SLOW_CHUNKS and self.missed_s >= costs_s

    def gave(self, elements: int, nbytes: int, started: float, until: float) -> None:
        """Record a chunk for which the caller waited from ``started`` to ``until``, in seconds."""
        loop_s = max(0.0, started - self.until)
        self.loop_s = self.loop_s / 2 + loop_s
        self.missed_s += min(loop_s, until - started)
        self.nbytes = max(self.nbytes, nbytes)
        if until - started > self.from_s:
            self._waited(elements, until - started)
        elif self.slow:  # a batch that is ready takes microseconds
            self.slow -= 1
        self.elements, self.until = self.elements / 2 + elements, until

    def _waited(self, elements: int, wait_s: float) -> None:
        busy = self.loop_s >= LOOP_S * self.elements
        if busy and wait_s > self.from_s * elements:
            self.slow += 1
        elif self.slow:
            self.slow -= 1

    def stop(self) -> None:
        """Count no chunk as slow from now on, so that ``pays`` returns False."""
        self.from_s, self.slow = math.inf, 0


class ChunkShelf:
    """A queue of chunks from a maker's thread to the caller, limited in chunks and bytes.

    Only the maker's thread changes the counts: a caller that takes a chunk sends the chunk's size
    to that thread.
    """

    def __init__(self, depth: int, most_bytes: int) -> None:
        self.depth, self.most_bytes = depth, most_bytes
        self.chunks: SimpleQueue[Any] = SimpleQueue()
        self.taken: SimpleQueue[int] = SimpleQueue()  # the bytes of each taken chunk
        self.held = self.nbytes = 0
        self.stopped = False

    def put(self, chunk: Any) -> bool:
        """Add a chunk or error when there is room, or None, the end; return False if stopped."""
        size = _size(chunk)
        if chunk is not None:
            self.wait(size)
        self.held += 1
        self.nbytes += size
        self.chunks.put(chunk)
        return not self.stopped

    def wait(self, size: int) -> bool:
        """Wait until there is room for a chunk of ``size`` bytes; return False once stopped."""
        while not self.stopped and self._full(size):
            self.nbytes -= self.taken.get()
            self.held -= 1
        return not self.stopped

    def _full(self, size: int) -> bool:
        return self.held >= self.depth or (self.held > 0 and self.nbytes + size > self.most_bytes)

    def get(self, timeout_s: float | None = None) -> Any:
        """Return the next chunk; raise ``queue.Empty`` if there is none within ``timeout_s``."""
        chunk = self.chunks.get(timeout=timeout_s)
        self.taken.put(_size(chunk))
        return chunk

    def stop(self) -> None:
        """Tell the maker's thread to end; this may be called during garbage collection."""
        self.stopped = True
        self.taken.put(0)


class TunedShelf(ChunkShelf):
    """A queue of chunks whose depth is tuned from the seconds of the maker and of the loop."""

    def __init__(self, tuned: PrefetchDepth, most_bytes: int) -> None:
        super().__init__(tuned.depth, most_bytes)
        self.tuned = tuned
        self.begun = self.until = time.perf_counter()  # the chunk being made; the last one taken
        # seconds, elements and bytes of chunks made; seconds of the loop and of its wait for them
        self.made = deque[tuple[float, int, int]]()
        self.given = deque[tuple[float, float]]()

    def put(self, chunk: Any) -> bool:
        """Add a chunk when there is room, after the depth is chosen; see ``ChunkShelf``."""
        if isinstance(chunk, ElementChunk):
            seconds = time.perf_counter() - self.begun
            self.made.append((seconds, len(chunk.elements), chunk.held_bytes))
        while self.given:
            make_s, elements, nbytes = self.made.popleft()
            self.depth = self.tuned.measured(make_s, *self.given.popleft(), elements, nbytes)
        going_on = super().put(chunk)
        self.begun = time.perf_counter()
        return going_on

    def get(self, timeout_s: float | None = None) -> Any:
        """Return the next chunk; see ``ChunkShelf``."""
        asked = time.perf_counter()
        chunk = super().get(timeout_s)
        now = time.perf_counter()
        if isinstance(chunk, ElementChunk):
            self.given.append((asked - self.until, now - asked))
        self.until = now
        return chunk


def _size(chunk: Any) -> int:
    if chunk is None or isinstance(chunk, BaseException):
        return 0
    return int(chunk.held_bytes if isinstance(chunk, ElementChunk) else chunk.nbytes)


class Ahead:
    """Makes chunks in a separate thread, ahead of requests as long as ``shelf`` has room."""

    def __init__(self, maker: Working, shelf: ChunkShelf) -> None:
        self.shelf = shelf
        # the caller's context variables (such as a decimal context) are set in the thread, too
        work = partial(copy_context().run, _work, maker, shelf)
        self.thread = threading.Thread(target=work, name="dml-ahead", daemon=True)
        self.stop = weakref.finalize(self, shelf.stop)
        _WORKING[self.thread] = shelf
        try:
            started(self.thread)
        except BaseException:  # after an interrupt, the thread may have begun
            shelf.stop()
            raise

    def make(self) -> Any:
        """Return the next chunk, None at the end, or raise the error that ended the thread."""
        got = self.shelf.get()
        if isinstance(got, BaseException):
            raise got
        return got

    def close(self) -> None:
        """Stop the thread; wait at most ``ENDING_S`` seconds for a user's function to return."""
        self.stop()
        if self.thread is not threading.current_thread():
            self.thread.join(ENDING_S)


def _work(maker: Working, shelf: ChunkShelf) -> None:
    outer = LEFT.get()  # the check of the thread that waits for this one
    LEFT.set(lambda: shelf.stopped or outer())
    try:
        while not shelf.stopped:
            chunk = maker.make()
            if not shelf.put(chunk) or chunk is None:
                return
    except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
        shelf.put(error)
    finally:
        maker.close()


_WORKING: weakref.WeakKeyDictionary[threading.Thread, ChunkShelf] = weakref.WeakKeyDictionary()


def _end_all() -> None:
    """Stop the makers of open runs at interpreter exit, before the libraries they use are gone."""
    working, deadline = list(_WORKING.items()), time.perf_counter() + ENDING_S
    for _, shelf in working:
        shelf.stop()
    for thread, _ in working:
        thread.join(max(0.0, deadline - time.perf_counter()))


atexit.register(_end_all)
