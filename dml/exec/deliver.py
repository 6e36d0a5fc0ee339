"""This file hands elements to the training loop: in order, resumable, exactly once."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import length_hint
from sys import is_finalizing
from time import perf_counter
from typing import Any, NamedTuple, Protocol, Self

import xxhash

from dml.errors import (
    DmlError,
    FingerprintError,
    PlanError,
    ResumeMismatchError,
    WorkerLostError,
)
from dml.events import Event
from dml.exec.blame import exhausted, traced
from dml.exec.holding import MemoryReport, memory_report
from dml.exec.kept import Keeping
from dml.exec.making import (
    DEPTH,
    SLOW_S,
    Ahead,
    Batches,
    Chunk,
    ChunkShelf,
    Element,
    Maker,
    Pace,
    Received,
    Rows,
)
from dml.exec.restored import blamed, mismatch, refuse
from dml.exec.schema_text import schema_of, schema_text
from dml.exec.stream import Streaming
from dml.expr.flow import UNBOUNDED, Position
from dml.expr.schema import Schema

VERSION = 1
# What must be equal where a state is restored, and the word for it.
SAME = {
    "version": "version of dml's states",
    "fingerprint": "pipeline",
    "seed": "seed",
    "data": "data",
    "process": "process",
}


class Mark(NamedTuple):
    """A place in the stream: where, whether it is the end, bytes of the element before it."""

    position: Position | None
    over: bool
    nbytes: int


class Report(Protocol):
    """Told what happened; keeps telemetry out of this room."""

    received: Received

    def resumed(self) -> None:
        """The run goes on from a saved state."""

    def finished(self, status: str, error: BaseException | None) -> None:
        """Nothing more will go out."""

    def so_far(self) -> list[Event]:
        """What there is to tell about the run."""


class Far(Protocol):
    """A run that another process makes, where this one hands it out."""

    @property
    def report(self) -> Report:
        """What tells about the run."""

    def begin(self, epoch: int, position: Position | None) -> Maker:
        """What brings the chunks from ``position`` on."""

    def same(self) -> dict[str, Any]:
        """What its states must have in common with those that go on from them; {} if as here."""

    def told_of_memory(self) -> MemoryReport:
        """What the run holds there."""


class Elements(Iterator[Element]):
    """Iterator over a run: dicts of arrays (batches) or dicts of scalars (rows).

    ``state_dict()`` at any moment is where the caller is; loaded into a new iterator of the same
    pipeline, in any process, it gives exactly the rest. Safe to call from several threads.

    ``ahead`` chunks are made before they are asked for; None goes over to that where they are slow.
    """

    def __init__(
        self,
        streaming: Streaming,
        epoch: int,
        report: Report,
        *,
        ahead: int | None = 0,
        ahead_bytes: int = UNBOUNDED,
        limit_bytes: int = UNBOUNDED,
        table: Callable[[list[Event]], Any] = list,
        process: str = "",
        on_restore: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._streaming, self.report = streaming, report
        self._ahead, self._ahead_bytes = ahead, ahead_bytes
        self._process, self._on_restore, self._table = process, on_restore, table
        self.epoch = epoch
        self._begin: Position | None = None
        self._maker: Maker | None = None
        self._far: Far | None = None
        # One value, so that a state taken at any moment never sees a chunk with another's elements.
        self._now: tuple[Chunk | None, Iterator[Element]] = (None, iter(()))
        self._lock = threading.Lock()
        self._over = self._ended = False
        self._resumed = False  # from a state, and nothing was given since
        self._pace = Pace(SLOW_S if ahead is None else math.inf)

    def __iter__(self) -> Elements:
        return self

    def __repr__(self) -> str:
        title = self._streaming.running.plan.operators[-1].title()
        return f"Elements of epoch {self.epoch} of {title}; .stats() and .state_dict() tell more"

    def __next__(self) -> Element:
        with self._lock:
            for element in self._now[1]:
                return element
            return self._refill()

    def handed_over(self, far: Far) -> Self:
        """Have ``far`` make what goes out here; before the first element."""
        self._far, self.report = far, far.report
        return self.when_asked()

    def when_asked(self) -> Self:
        """Make nothing before it is asked for, unless settings say how much."""
        self._pace.stop()
        return self

    def _refill(self) -> Element:
        """The first element of the next chunk."""
        if self._over:
            raise StopIteration
        started, pace = perf_counter(), self._pace
        try:
            if self._maker is None or pace.pays():
                self._maker = self._goes_on()
            chunk = self._maker.make()
        except BaseException as raised:
            error = self.placed(blamed(raised) if self._resumed else raised)
            self._finish("failed" if isinstance(error, Exception) else "interrupted", error)
            if error is raised:
                raise
            raise error from raised
        if chunk is None:
            self._ended = True
            self._finish("finished", None)
            raise StopIteration
        ready = iter(chunk.elements)
        self._now, self._resumed = (chunk, ready), False
        now = perf_counter()
        self.report.received.chunk(chunk, ready, now - started)
        if pace.from_s < math.inf:  # or it is decided
            pace.gave(len(chunk.elements), chunk.nbytes, started, now)
        return next(ready)

    def _goes_on(self) -> Maker:
        """What makes the next chunk: what begins, or what went on so far, ahead from now on."""
        # Whoever is interrupted in here leaves it to the thread, if that has begun.
        maker, self._maker = self._maker, None
        if maker is None:
            return self.maker()
        self._pace.stop()
        keep = self._streaming.running.at.keep
        if isinstance(keep, Keeping) and keep.fills_disk:
            return maker
        try:
            return Ahead(maker, ChunkShelf(DEPTH, self._ahead_bytes))
        except WorkerLostError:  # there are no more threads to be had
            return maker

    def placed(self, raised: BaseException) -> BaseException:
        """The error that says which operator and which row of the source it is about."""
        error = exhausted("") if isinstance(raised, MemoryError) else raised
        if isinstance(error, DmlError):
            plan = self._streaming.running.plan
            error.under(plan.operators[-1].label())
            traced(error, plan)
        return error

    def maker(self) -> Maker:
        """What makes the elements from where the caller is on; for who hands them out himself."""
        far = self._far
        return self._start() if far is None else far.begin(self.epoch, self._begin)

    def _start(self) -> Maker:
        streaming, epoch, begin = self._streaming, self.epoch, self._begin
        maker: Maker = (
            Batches(streaming, epoch, begin, runs=not self._ahead)
            if streaming.plan.batched
            else Rows(streaming, epoch, begin)
        )
        ahead = self._ahead
        return Ahead(maker, ChunkShelf(ahead, self._ahead_bytes)) if ahead else maker

    def _where(self) -> Position | None:
        """Where the caller is: after the last element that it got."""
        chunk, ready = self._now
        if chunk is None:
            return self._begin
        return chunk.position(len(chunk.elements) - length_hint(ready))

    def _finish(self, status: str, error: BaseException | None) -> None:
        """Nothing more comes; what was given, and the position, stay what they are."""
        self._over = True
        maker, self._maker = self._maker, None
        self._begin = self._where()
        self._now = None, iter(())
        self.report.finished(status, error)
        if maker is not None:
            maker.close()

    def close(self) -> None:
        """Stop; the state stays what it is."""
        with self._lock:
            if not self._over and self._maker is not None:
                self._finish("stopped", None)
            self._over = True

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        # A loop that was left: only this object knows that nobody will ask for more. When Python
        # ends there is nobody left to tell, and half of what would count is gone, the names of
        # this file too: what asks whether it ends must not be one of them.
        if not getattr(self, "_over", True) and self._maker is not None and not ends():
            self._over = True
            self.report.finished("stopped", None)

    def __enter__(self) -> Elements:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def events(self) -> list[Event]:
        """What this run did so far, as events."""
        return self.report.so_far()

    def memory_report(self) -> MemoryReport:
        """What this run holds, or has held: see ``Dataset.memory_report``."""
        return self.told_of_memory()

    @property
    def told_of_memory(self) -> Callable[[], MemoryReport]:
        """What tells about the memory of this run, without keeping its iterator."""
        if self._far is not None:
            return self._far.told_of_memory
        return partial(memory_report, self._streaming, self._limit_bytes)

    def stats(self) -> Any:
        """What each operator did so far: rows, bytes, seconds; as ``Dataset.stats``."""
        return self._table(self.events())

    @property
    def ahead_bytes(self) -> int:
        """Bytes of elements that may wait for whoever takes them."""
        return self._ahead_bytes

    def mark(self) -> Mark:
        """Where the caller is, in little: ``state_dict`` makes a state of it at any later time."""
        chunk = self._now[0]
        nbytes = 0 if chunk is None else chunk.nbytes // max(1, len(chunk.elements))
        return Mark(self._where(), self._ended, nbytes)

    def state_dict(self, mark: Mark | None = None) -> dict[str, Any]:
        """Where the caller is, or was at ``mark``: plain JSON data.

        At most 4 kB for operators with bounded state. Never waits: it may be called while
        another thread is in ``next``, or by a user's function.
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
        """What a state must have in common with the run that goes on from it."""
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
        """Begin where another iterator of the same pipeline is; before the first element."""
        self.epoch, self._begin = epoch, position
        self._streaming.at.schemas.update(schemas)

    @property
    def running(self) -> Streaming:
        """The run, or what it has become."""
        return self._streaming.running

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; only before the first element.

        ResumeMismatchError if it belongs to another pipeline, data or version; FingerprintError if
        the pipeline has a function that only the saving process can name.
        """
        with self._lock:
            if self._maker is not None or self._over:
                raise PlanError(
                    "load_state_dict on an iterator that has started",
                    at=self._streaming.plan.operators[-1].label(),
                    why="a run begins with its first element",
                    try_="it = iter(ds); it.load_state_dict(state)",
                )
            self._check(state)
            try:
                loaded = {k: schema_of(v) for k, v in state["schemas"].items()}
            except Exception as error:
                raise mismatch("a type in the saved state cannot be read", str(error)) from error
            self.begin_at(state["epoch"], state["position"], loaded)
            self._over = self._ended = state["over"]
            self._resumed = True
            self.report.resumed()
            self._on_restore(self.epoch)

    def _check(self, state: Any) -> None:
        mine = self.state_dict()
        at = self._streaming.plan.operators[-1].label()
        if not isinstance(state, dict) or set(mine) - set(state):
            raise ResumeMismatchError(
                "this is not a saved state",
                at=at,
                why=f"it is a {type(state).__name__} without the keys of one",
                try_="pass what it.state_dict() returned",
            )
        if state["process"] != self._process and self._process:
            raise FingerprintError(
                "a function of this pipeline has no name that another process could check",
                at=at,
                why="the state was saved in another process",
                try_='give the function a name: fingerprint="..."',
            )
        for key, what in SAME.items():
            if state[key] != mine[key]:
                raise ResumeMismatchError(
                    f"the saved state belongs to another {what}",
                    at=at,
                    why=f"saved with {state[key]!r}, this is {mine[key]!r}",
                    try_="restore into the pipeline that was saved, or start anew",
                )
        if state["check"] != sealed(state)["check"]:
            why = "its contents do not give the check sum that was saved with them"
            raise mismatch("the saved state is damaged", why).under(at)
        refuse(state)


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a check sum over everything else in it."""
    rest = {key: value for key, value in state.items() if key != "check"}
    text = json.dumps(rest, sort_keys=True, default=repr)
    return {**rest, "check": xxhash.xxh3_64_hexdigest(text.encode())}


def _data_of(streaming: Streaming) -> list[int | str | None]:
    """What tells data apart without reading it: rows, units, atoms, and what footers say."""
    found: list[int | str | None] = []
    for plan in streaming.plan.all:
        source = plan.stage.source
        counts = (source.row_count, source.unit_count, source.atom_count)
        found += [*counts, source.likeness().hex()]
    return found
