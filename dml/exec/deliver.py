"""This file hands elements to the training loop: in order, resumable, exactly once."""

from __future__ import annotations

import base64
import json
import queue
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa
import xxhash

from dml.errors import DmlError, FingerprintError, PlanError, ResumeMismatchError
from dml.events import Event
from dml.exec.stream import Streaming
from dml.exec.work import traced
from dml.expr.block import Block
from dml.expr.delivery import arrays_of
from dml.expr.flow import Flow, Position
from dml.expr.rows import to_rows
from dml.expr.schema import Schema, schema_of

VERSION = 1
# Rows that become dicts at once where rows are delivered one by one.
ROWS = 1024

# What must be equal where a state is restored, and the word for it.
SAME = {
    "version": "version of dml's states",
    "fingerprint": "pipeline",
    "seed": "seed",
    "data": "data",
    "process": "process",
}

Element = dict[str, Any]
Made = tuple["Element | None", Position]


class Report(Protocol):
    """Told what happened; keeps telemetry out of this room."""

    def delivered(self, rows: int, nbytes: int) -> None:
        """One element went out."""

    def finished(self, status: str, error: BaseException | None) -> None:
        """Nothing more will go out."""

    def so_far(self) -> list[Event]:
        """What there is to tell about the run."""


class Elements(Iterator[Element]):
    """Iterator over a run: dicts of arrays (batches) or dicts of scalars (rows).

    ``state_dict()`` at any moment is where the caller is; loaded into a new iterator of the same
    pipeline, in any process, it gives exactly the rest. Safe to call from several threads.
    """

    def __init__(
        self,
        streaming: Streaming,
        epoch: int,
        report: Report,
        *,
        ahead: int = 0,
        process: str = "",
        on_restore: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self._streaming, self.report, self._ahead = streaming, report, ahead
        self._process, self._on_restore = process, on_restore
        self.epoch = epoch
        self._position: Position | None = None
        self._made: Iterator[Made] | None = None
        self._lock = threading.Lock()
        self._over = self._ended = False

    def __iter__(self) -> Elements:
        return self

    def __next__(self) -> Element:
        with self._lock:
            return self._next()

    def _next(self) -> Element:
        if self._over:
            raise StopIteration
        if self._made is None:
            self._made = self._start()
        try:
            element, self._position = next(self._made)
        except BaseException as error:
            self._finish("failed", error)
            if isinstance(error, DmlError):
                self._place(error)
            raise
        if element is None:
            self._ended = True
            self._finish("finished", None)
            raise StopIteration
        return element

    def _place(self, error: DmlError) -> None:
        """Say which operator and which row of the source an error is about."""
        plan = self._streaming.plan
        error.under(plan.operators[-1].label())
        traced(error, plan.stage.source)

    def _start(self) -> Iterator[Made]:
        plan = self._streaming.plan
        make = _batches if plan.batched else _rows
        made = make(self._streaming, self.epoch, self._position, self.report)
        return _Ahead(made, self._ahead) if self._ahead else made

    def _finish(self, status: str, error: BaseException | None) -> None:
        self._over = True
        if isinstance(self._made, _Ahead):
            self._made.close()
        self._made = None
        self.report.finished(status, error)

    def close(self) -> None:
        """Stop; the state stays what it is."""
        with self._lock:
            if not self._over and self._made is not None:
                self._made.close()  # type: ignore[attr-defined]
                self._finish("stopped", None)
            self._over = True

    def __enter__(self) -> Elements:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def events(self) -> list[Event]:
        """What this run did so far, as events."""
        return self.report.so_far()

    def state_dict(self) -> dict[str, Any]:
        """Where the caller is: plain JSON data, at most 4 kB for operators with bounded state."""
        at = self._streaming.at
        schemas = {key: _stored(schema) for key, schema in at.schemas.items()}
        return _sealed({
            "version": VERSION,
            "fingerprint": self._streaming.plan.name,
            "seed": at.seed,
            "data": _data_of(self._streaming),
            "process": self._process,
            "epoch": self.epoch,
            "schemas": schemas,
            "position": self._position,
            "over": self._ended,
        })

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; only before the first element.

        ResumeMismatchError if it belongs to another pipeline, data or version; FingerprintError if
        the pipeline has a function that only the saving process can name.
        """
        with self._lock:
            if self._made is not None or self._over:
                raise PlanError(
                    "load_state_dict on an iterator that has started",
                    at=self._streaming.plan.operators[-1].label(),
                    why="a run begins with its first element",
                    try_="it = iter(ds); it.load_state_dict(state)",
                )
            self._check(state)
            self.epoch, self._position = state["epoch"], state["position"]
            self._over = self._ended = state["over"]
            loaded = {k: _loaded(v) for k, v in state["schemas"].items()}
            self._streaming.at.schemas.update(loaded)
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
        if state["check"] != _sealed(state)["check"]:
            raise ResumeMismatchError(
                "the saved state is damaged",
                at=at,
                why="its contents do not give the check sum that was saved with them",
                try_="restore an older state; states are not meant to be edited",
            )


def _stored(schema: Schema) -> str:
    """A settled schema as text: Arrow's own serialized form, packed."""
    packed = zlib.compress(schema.to_arrow().serialize().to_pybytes(), 9)
    return base64.b64encode(packed).decode()


def _loaded(stored: str) -> Schema:
    whole = zlib.decompress(base64.b64decode(stored))
    return schema_of(pa.ipc.read_schema(pa.py_buffer(whole)))


def _sealed(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a check sum over everything else in it."""
    rest = {key: value for key, value in state.items() if key != "check"}
    text = json.dumps(rest, sort_keys=True, default=repr)
    return {**rest, "check": xxhash.xxh3_64_hexdigest(text.encode())}


def _data_of(streaming: Streaming) -> list[int | str | None]:
    """What tells data apart without reading it: rows, units, atoms, and what footers say."""
    source = streaming.plan.stage.source
    counts = (source.row_count, source.unit_count, source.atom_count)
    return [*counts, source.likeness().hex()]


def _batches(
    streaming: Streaming, epoch: int, position: Position | None, report: Report
) -> Iterator[Made]:
    """Each batch with the position after it; None at the end."""
    flow = streaming.flow(epoch, position)
    try:
        while (block := flow.pull(1)) is not None:
            arrays = arrays_of(block)
            report.delivered(block.n, block.nbytes)
            yield arrays, flow.position()
        yield None, flow.position()
    finally:
        flow.close()


def _rows(
    streaming: Streaming, epoch: int, position: Position | None, report: Report
) -> Iterator[Made]:
    """Each row as a dict; positions count into the block that the rows came from."""
    start = position or {"in": None, "row": 0}
    flow: Flow = streaming.flow(epoch, start["in"])
    skip: int = start["row"]
    try:
        while True:
            before = flow.position()
            block: Block | None = flow.pull(ROWS)
            if block is None:
                break
            report.delivered(block.n, block.nbytes)
            cut = min(skip, block.n)
            skip -= cut
            for number, row in enumerate(to_rows(block.slice(cut, block.n)), start=cut + 1):
                yield row, {"in": before, "row": number}
        yield None, {"in": before, "row": 0}
    finally:
        flow.close()


class _Ahead:
    """Makes elements in a thread of its own, ``depth`` ahead of the caller."""

    def __init__(self, made: Iterator[Made], depth: int) -> None:
        self.queue: queue.Queue[Made | BaseException] = queue.Queue(depth)
        self.stop = threading.Event()
        self.thread = threading.Thread(
            target=_produce, args=(made, self.queue, self.stop), name="dml-ahead", daemon=True
        )
        self.thread.start()
        self._finalizer = weakref.finalize(self, self.stop.set)

    def __iter__(self) -> _Ahead:
        return self

    def __next__(self) -> Made:
        got = self.queue.get()
        if isinstance(got, BaseException):
            raise got
        return got

    def close(self) -> None:
        """Stop making elements; returns when the thread has let go of the run."""
        self.stop.set()
        while self.thread.is_alive():
            _emptied(self.queue)
            self.thread.join(0.01)


def _emptied(full: queue.Queue[Any]) -> None:
    try:
        while True:
            full.get_nowait()
    except queue.Empty:
        return


def _produce(made: Iterator[Made], out: queue.Queue[Any], stop: threading.Event) -> None:
    try:
        for element in made:
            _offer(out, element, stop)
            if stop.is_set() or element[0] is None:
                break
    except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
        _offer(out, error, stop)
    finally:
        made.close()  # type: ignore[attr-defined]


def _offer(out: queue.Queue[Any], item: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            out.put(item, timeout=0.5)
        except queue.Full:
            continue
        return
