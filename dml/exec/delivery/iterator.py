"""Deliver elements to the training loop, each exactly once, by an iterator that can be resumed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import length_hint
from sys import is_finalizing
from time import perf_counter
from typing import Any, NamedTuple, Protocol, Self

from dml.base.user_line import concise
from dml.data.schema import Schema
from dml.data.schema_text import schema_of, schema_text
from dml.errors import DmlError, PlanError, WorkerLostError
from dml.events import Event
from dml.exec.delivery.checkpoint import blamed, check, mismatch, sealed
from dml.exec.delivery.prefetch import (
    SLOW_S,
    Ahead,
    BatchMaker,
    ChunkShelf,
    Element,
    ElementChunk,
    Maker,
    PrefetchPace,
    Received,
    RowMaker,
    TunedShelf,
)
from dml.exec.delivery.prefetch_depth import DEPTH, PrefetchDepth
from dml.exec.memory.memory_report import MemoryReport, memory_report
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.error_row import exhausted, traced
from dml.expr.flow import UNBOUNDED, Position

VERSION = 1


class StreamMark(NamedTuple):
    """A position in the stream, whether it is the end, and the mean bytes of recent elements."""

    position: Position | None
    over: bool
    nbytes: int


class Report(Protocol):
    """The interface by which the iterator reports its run, so that exec imports no telemetry."""

    received: Received
    recorded: bool
    """Whether the events of the run are stored somewhere."""

    def opened(self) -> None:
        """Note that elements are made from now on, in this process."""

    def resumed(self) -> None:
        """Note that the run continues from a saved state."""

    def finished(self, status: str, error: BaseException | None) -> None:
        """Note the end of the run: no more elements are delivered."""

    def so_far(self) -> list[Event]:
        """Return the events of the run so far."""


class Far(Protocol):
    """A run in another process, whose elements this process delivers."""

    @property
    def report(self) -> Report:
        """The account of the run."""

    def begin(self, epoch: int, position: Position | None) -> Maker:
        """Return a maker that fetches the chunks of ``epoch`` from ``position`` on."""

    def same(self) -> dict[str, Any]:
        """Return the values that a resuming run must match; {} if they are those of a local run."""

    def told_of_memory(self) -> MemoryReport:
        """Return the memory report of the run in the other process."""


class Elements(Iterator[Element]):
    """Iterator over a run: dicts of arrays (batches) or dicts of scalars (rows).

    ``state_dict()`` returns the caller's position at any moment. A new iterator of the same
    pipeline, in any process, that loads the state delivers exactly the remaining elements. Several
    threads may call the iterator. A thread makes ``ahead`` chunks before they are requested; if
    ``ahead`` is None, it does so only once chunks prove slow, and ``depth``, if not None, tunes
    their number.
    """

    def __init__(
        self,
        streaming: Streaming,
        epoch: int,
        report: Report,
        *,
        ahead: int | None = 0,
        depth: PrefetchDepth | None = None,
        ahead_bytes: int = UNBOUNDED,
        limit_bytes: int = UNBOUNDED,
        table: Callable[[list[Event]], Any] = list,
        process: str = "",
        on_restore: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._streaming, self.report = streaming, report
        self._ahead, self._depth, self._ahead_bytes = ahead, depth, ahead_bytes
        report.received.on_request = not ahead
        self._process, self._on_restore, self._table = process, on_restore, table
        self.epoch = epoch
        self._begin: Position | None = None
        self._maker: Maker | None = None
        self._far: Far | None = None
        # One value, so that a state taken at any moment never sees a chunk with another's elements.
        self._now: tuple[ElementChunk | None, Iterator[Element]] = (None, iter(()))
        self._lock = threading.Lock()
        self._over = self._ended = False
        self._resumed = False  # from a state, with no element delivered since
        self._pace = PrefetchPace(SLOW_S if ahead is None else math.inf)

    def __iter__(self) -> Elements:
        return self

    def __repr__(self) -> str:
        title = self._streaming.running.plan.operators[-1].title()
        return f"Elements of epoch {self.epoch} of {title}; .stats() and .state_dict() tell more"

    def __next__(self) -> Element:
        with self._lock:
            for element in self._now[1]:
                return element
            if self._over:
                raise StopIteration
            started = perf_counter()
            try:
                if self._maker is None or self._pace.pays():
                    self._maker = self._goes_on()
                chunk = self._maker.make()
            except BaseException as raised:  # noqa: BLE001 - it is raised again
                error = self._failed(raised)
                if isinstance(error, DmlError):
                    concise(error)
                raise error from (error.__cause__ if error is raised else raised)
            return self._first_of(chunk, started)

    def _failed(self, raised: BaseException) -> BaseException:
        """End the iteration after an error or an interrupt; return the error to raise."""
        error = self.placed(blamed(raised) if self._resumed else raised)
        self._finish("failed" if isinstance(error, Exception) else "interrupted", error)
        return error

    def _first_of(self, chunk: ElementChunk | None, started: float) -> Element:
        """Return the first element of ``chunk``, for which the caller waited since ``started``."""
        if chunk is None:
            self._ended = True
            self._finish("finished", None)
            raise StopIteration
        ready, pace = iter(chunk.elements), self._pace
        self._now, self._resumed = (chunk, ready), False
        now = perf_counter()
        self.report.received.chunk(chunk, ready, now - started)
        if pace.from_s < math.inf:  # unless it is already decided whether chunks are made ahead
            pace.gave(len(chunk.elements), chunk.held_bytes, started, now)
        return next(ready)

    def handed_over(self, far: Far) -> Self:
        """Let ``far`` make the elements; return the iterator. Call it before the first element."""
        self._far, self.report = far, far.report
        return self.when_asked()

    def when_asked(self) -> Self:
        """Make elements only on request, unless ``ahead`` is positive; return the iterator."""
        self._pace.stop()
        return self

    def _goes_on(self) -> Maker:
        """Return the maker of the next chunk: a new one, or the current one (moved to a thread)."""
        # After an interruption here the maker belongs to the thread, if that has started.
        maker, self._maker = self._maker, None
        if maker is None:
            return self.maker()
        self._pace.stop()
        if self._streaming.running.at.keep.fills_disk:
            return maker
        try:
            made = Ahead(maker, self._shelf())
        except WorkerLostError:  # no more threads can be started
            return maker
        self.report.received.on_request = False
        if self._depth is not None:
            self._streaming.running.holding.changes.append(self._depth.changes)
        return made

    def _shelf(self) -> ChunkShelf:
        """Return the queue of chunks that are made ahead from now on."""
        depth, received = self._depth, self.report.received
        if depth is None:
            return ChunkShelf(DEPTH, self._ahead_bytes)
        batched = self._streaming.plan.batched
        waited = received.wait_s / max(perf_counter() - received.started, 1e-9)
        elements = received.batches if batched else received.rows
        depth.seconds = received.makes
        depth.begin(elements, min(1.0, waited), self._pace.nbytes, self._ahead_bytes)
        return TunedShelf(depth, self._ahead_bytes)

    def placed(self, raised: BaseException) -> BaseException:
        """Return the error to raise, with the operator and the source row at fault added to it."""
        error = exhausted("") if isinstance(raised, MemoryError) else raised
        if isinstance(error, DmlError):
            plan = self._streaming.running.plan
            error.under(plan.operators[-1].label())
            traced(error, plan)
        return error

    def maker(self) -> Maker:
        """Return a maker of the elements from the position on at which this iterator begins."""
        if self._far is not None:
            return self._far.begin(self.epoch, self._begin)
        maker, ahead = self._made_here(), self._ahead
        return Ahead(maker, ChunkShelf(ahead, self._ahead_bytes)) if ahead else maker

    def _made_here(self) -> Maker:
        """Return a maker that makes chunks in the caller's thread."""
        streaming, epoch, begin = self._streaming, self.epoch, self._begin
        if self.report.recorded:
            self.report.opened()
        if streaming.plan.batched:
            return BatchMaker(streaming, epoch, begin, runs=not self._ahead)
        return RowMaker(streaming, epoch, begin)

    def _where(self) -> Position | None:
        """Return the position after the last element that the caller received."""
        chunk, ready = self._now
        if chunk is None:
            return self._begin
        return chunk.position(len(chunk.elements) - length_hint(ready))

    def _finish(self, status: str, error: BaseException | None) -> None:
        """End the iteration and report it; counts of delivered elements and position stay valid."""
        self._over = True
        maker, self._maker = self._maker, None
        self._begin = self._where()
        self._now = None, iter(())
        self.report.finished(status, error)
        if maker is not None:
            maker.close()

    def close(self) -> None:
        """Stop the run; the position of the iterator does not change."""
        with self._lock:
            if not self._over and self._maker is not None:
                self._finish("stopped", None)
            self._over = True

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        # An abandoned loop: only this object knows that no more elements are needed. When Python
        # exits, the report has no use, and modules that it needs may be gone, also the globals of
        # this one: so the function that checks for the exit is a default argument.
        if not getattr(self, "_over", True) and self._maker is not None and not ends():
            self._over = True
            self.report.finished("stopped", None)

    def __enter__(self) -> Elements:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def events(self) -> list[Event]:
        """Return the work of this run so far, as events."""
        return self.report.so_far()

    def memory_report(self) -> MemoryReport:
        """Return the memory that this run uses, or has used: see ``Dataset.memory_report``."""
        return self.told_of_memory()

    @property
    def told_of_memory(self) -> Callable[[], MemoryReport]:
        """A function that reports the memory of this run; it does not refer to this iterator."""
        if self._far is not None:
            return self._far.told_of_memory
        return partial(memory_report, self._streaming, self._limit_bytes)

    def stats(self) -> Any:
        """Return the rows, bytes and seconds of each operator so far, as ``Dataset.stats`` does."""
        return self._table(self.events())

    @property
    def ahead_bytes(self) -> int:
        """Upper bound on the bytes of elements that wait for their consumer."""
        return self._ahead_bytes

    def mark(self) -> StreamMark:
        """Return the caller's position now, to pass to ``state_dict`` later."""
        chunk = self._now[0]
        nbytes = 0 if chunk is None else chunk.held_bytes // max(1, len(chunk.elements))
        return StreamMark(self._where(), self._ended, nbytes)

    def state_dict(self, mark: StreamMark | None = None) -> dict[str, Any]:
        """Return a state with the caller's position, now or at ``mark``, as plain JSON data.

        The state has at most 4 kB if operators have bounded state. This call never waits: it may be
        made while another thread is in ``next``, or by a user's function.
        """
        at, mark = self._streaming.running.at, mark or self.mark()
        schemas = {key: schema_text(schema) for key, schema in at.schemas.copy().items()}
        return sealed(
            {
                **((self._far and self._far.same()) or self.same()),
                "process": self._process,
                "epoch": self.epoch,
                "schemas": schemas,
                "position": mark.position,
                "over": mark.over,
            }
        )

    def same(self) -> dict[str, Any]:
        """Return the values that a saved state must share with the run that continues from it."""
        running = self._streaming.running
        return {
            "version": VERSION,
            "fingerprint": running.plan.name,
            "seed": running.at.seed,
            "data": _data_of(running),
        }

    def begin_at(
        self, epoch: int, position: Position | None, schemas: Mapping[str, Schema]
    ) -> None:
        """Begin at ``position`` of another iterator of the pipeline, with its settled ``schemas``.

        Call this before the first element.
        """
        self.epoch, self._begin = epoch, position
        self._streaming.at.schemas.update(schemas)

    @property
    def running(self) -> Streaming:
        """The run, or the run that has replaced it."""
        return self._streaming.running

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; raise PlanError after the first element.

        Raise ResumeMismatchError if ``state`` belongs to another pipeline, data or version. Raise
        FingerprintError if another process saved it and the pipeline has a function without a name
        that is valid in other processes.
        """
        with self._lock:
            if self._maker is not None or self._over:
                raise PlanError(
                    "load_state_dict on an iterator that has started",
                    at=self._streaming.plan.operators[-1].label(),
                    why="a run begins with its first element",
                    try_="it = iter(ds); it.load_state_dict(state)",
                )
            label = self._streaming.plan.operators[-1].label()
            check(state, self.state_dict(), self._process, label)
            try:
                loaded = {k: schema_of(v) for k, v in state["schemas"].items()}
            except Exception as error:
                raise mismatch("a type in the saved state cannot be read", str(error)) from error
            self.begin_at(state["epoch"], state["position"], loaded)
            self._over = self._ended = state["over"]
            self._resumed = True
            self.report.resumed()
            self._on_restore(self.epoch)


def _data_of(streaming: Streaming) -> list[int | str | None]:
    """Return counts and a digest of each source, which identify the data without reading rows."""
    found: list[int | str | None] = []
    for plan in streaming.plan.all:
        source = plan.stage.source
        counts = (source.row_count, source.unit_count, source.atom_count)
        found += [*counts, source.likeness().hex()]
    return found
