"""A driver process runs pipelines for a training loop in another process.

The process is started as ``python -m dml.ranks.driver.driver_process``.

It does all work of a run that workers do not do: scheduling, the client of a cluster, fetching,
operators over the stream. The parent receives finished elements in anonymous memory; the number
made ahead of its requests is limited. Like a worker, the process ends when its parent ends
(docs/decisions/031-driver-apart.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import itertools
import logging
import socket
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dml.cache.elements.element_cache import STORE, anchors, forget_alike, handed_on
from dml.data.schema import Schema
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.prefetch import ElementChunk, Figures, Maker, Received
from dml.exec.memory.memory_meter import give_back
from dml.exec.process.channel import Channel, Message
from dml.exec.process.environment import Surroundings
from dml.exec.process.exception_codec import received, shipped
from dml.exec.process.references import loaded
from dml.exec.process.worker import IDLE_S, begun, flush
from dml.expr.flow import Position

MOST_TOLD = 1000  # log lines and warnings that wait for the next message


@dataclasses.dataclass(frozen=True)
class RunRequest:
    """A request to run the pipeline ``name``: ``open`` returns the iterator of an epoch.

    ``position`` is where to begin, None for the start. ``depth`` is the number of elements to make
    ahead of requests, None for as many as fit. ``level`` is the log level of the parent.
    """

    name: str
    open: Callable[[Any, int], Elements]
    epoch: int
    position: Position | None
    schemas: Mapping[str, Schema]
    resumed: bool
    depth: int | None
    level: int
    surroundings: Surroundings


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of a run: its status, encoded exception (or b"") and counts of delivered elements."""

    status: str
    error: bytes
    figures: Figures | None


@dataclasses.dataclass(frozen=True)
class StateHeader:
    """Data that saved states contain besides a position; sent to the parent when it changes."""

    schemas: dict[str, Schema]
    same: dict[str, Any]


class LogForwarder(logging.Handler):
    """A log handler that collects log lines and warnings, which the parent emits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Any] = deque(maxlen=MOST_TOLD)
        logger = logging.getLogger("dml")
        logger.handlers, logger.propagate = [self], False
        warnings.showwarning = self.warned  # type: ignore[assignment]

    def emit(self, record: logging.LogRecord) -> None:
        """Store a log line, as text."""
        plain = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
        self.waiting.append({**plain, "msg": record.getMessage()})

    def warned(self, message: Warning | str, category: type[Warning], *_: Any) -> None:
        """Store a warning, as a UserWarning if its class is neither built in nor of dml."""
        ours = category.__module__ == "builtins" or category.__module__.startswith("dml.")
        self.waiting.append((str(message), category if ours else UserWarning))

    def drain(self) -> list[Any]:
        """Return and remove all stored lines and warnings."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self.waiting.popleft())
        return found


class DriverRun:
    """One run: sends chunks of elements, a limited number ahead of the parent's requests."""

    def __init__(self, channel: Channel, begin: RunRequest, told: LogForwarder) -> None:
        self.channel, self.begin, self.told = channel, begin, told
        self.elements: Elements | None = None
        self.ending: Ending | None = None
        self.asked = self.sent = 0  # chunks
        self.ahead: deque[tuple[int, int]] = deque()  # elements and bytes of unrequested chunks
        self.largest = 0
        self._head: tuple[int, int] | None = None

    def go(self, pipeline: Callable[[], Any]) -> None:
        """Run until the parent ends the run, then send the report."""
        maker: Maker | None = None
        try:
            maker = self._opened(pipeline())
            while self._wanted():
                chunk = maker.make()
                self._send("end", None) if chunk is None else self._give(chunk)
                if chunk is None:
                    break
        except BaseException as raised:  # noqa: BLE001 (the parent raises it in its place)
            if self.ending is None:
                found = raised if self.elements is None else self.elements.placed(raised)
                self._send("error", shipped(found))
        while self.ending is None:
            self._hear()
        if maker is not None:
            maker.close()
        self._close(self.ending)

    def _opened(self, pipeline: Any) -> Maker:
        begin = self.begin
        elements = begin.open(pipeline, begin.epoch)
        elements.begin_at(begin.epoch, begin.position, begin.schemas)
        if begin.resumed:
            elements.report.resumed()
        self.elements = elements
        self.first = elements.running
        return elements.maker()

    def _wanted(self) -> bool:
        """Wait until another chunk may be made; return False once the run is ended."""
        while True:
            while self.ending is None and self.channel.heard(0):
                self._hear()
            if self.ending is not None:
                return False
            if self.asked > self.sent or self._room():
                return True
            self._hear()

    def _room(self) -> bool:
        assert self.elements is not None  # noqa: S101 - it is open
        depth, nbytes = self.begin.depth, sum(size for _, size in self.ahead)
        if depth is not None and sum(count for count, _ in self.ahead) >= depth:
            return False
        return not self.ahead or nbytes + self.largest <= self.elements.ahead_bytes

    def _hear(self) -> None:
        """Receive the next message of the parent."""
        try:
            said: Any = self.channel.receive()
        except (EOFError, OSError):
            said = Ending("stopped", b"", None)
        if isinstance(said, Ending):
            self.ending = said
            return
        self.asked += 1
        if self.ahead:
            self.ahead.popleft()

    def _give(self, chunk: ElementChunk) -> None:
        self.sent += 1
        if self.sent > self.asked:
            self.ahead.append((len(chunk.elements), chunk.nbytes))
        self.largest = max(self.largest, chunk.nbytes)
        self._send("chunk", chunk)

    def _send(self, kind: str, value: Any) -> None:
        flush()
        message = Message((kind, value, self._news(), self.told.drain()))
        try:
            self.channel.post(message)
        except ConnectionError:
            while self.ending is None:  # the parent may have sent the end before it closed
                self._hear()
        except OSError:
            self.ending = self.ending or Ending("stopped", b"", None)
        finally:
            message.close()

    def _news(self) -> StateHeader | None:
        """Return the data that saved states contain, or None if the parent has it already."""
        if self.elements is None:
            return None
        running = self.elements.running
        key = id(running), len(running.at.schemas)
        if key == self._head:
            return None
        self._head = key
        same = {} if running is self.first else self.elements.same()
        return StateHeader(running.at.schemas.copy(), same)

    def _close(self, ending: Ending) -> None:
        """Report the outcome to the telemetry store and the parent."""
        events, memory = list[Any](), None
        if self.elements is not None:
            report = self.elements.report
            if ending.figures is not None:
                report.received = Received.of(ending.figures)
            report.finished(ending.status, received(ending.error) if ending.error else None)
            events, memory = report.so_far(), self.elements.told_of_memory()
        if "dml.cluster.cluster" in sys.modules:  # between two runs there is no client
            from dml.cluster import cluster  # noqa: PLC0415

            cluster.close_all()
        self._send("over", (events, memory, STORE.nbytes > 0))

    def answer(self, kind: str, *given: Any) -> Any:
        """Return the memory report for kind "memory", else the events; None before the start."""
        if self.elements is None:
            return None
        if kind == "memory":
            return self.elements.told_of_memory()
        self.elements.report.received = Received.of(given[0])
        return self.elements.report.so_far()


class DriverService:
    """The service of a driver process: runs the pipelines that it was sent, one after another."""

    def __init__(self, channel: Channel, control: Channel) -> None:
        self.channel, self.control = channel, control
        self.pipelines: dict[str, Any] = {}
        self.sent: dict[str, tuple[bytes, Sequence[Any]]] = {}
        self.anchors: dict[str, list[Any]] = {}  # caches of pipelines that have changed
        self.told = LogForwarder()
        self.run: DriverRun | None = None

    def serve(self) -> None:
        """Handle the parent's messages until it hangs up."""
        threading.Thread(target=self._answer, name="dml-control", daemon=True).start()
        with contextlib.suppress(EOFError, OSError):
            while True:
                if not self.channel.heard(IDLE_S):
                    give_back()
                self._heed(self.channel.receive())

    def _heed(self, said: Any) -> None:
        if isinstance(said, RunRequest):
            said.surroundings.enter()
            logging.getLogger("dml").setLevel(said.level)
            self.run = DriverRun(self.channel, said, self.told)
            self.run.go(lambda: self._pipeline(said.name))
            self.run = None
            gc.collect()
        elif said[0] == "pipeline":
            self.sent[said[1]] = said[2], said[3]
        elif said[0] == "drop":
            for name in said[1]:
                self.pipelines.pop(name, None)
                self.sent.pop(name, None)
                self.anchors.pop(name, None)

    def _pipeline(self, name: str) -> Any:
        """Return pipeline ``name``; decode it if it was sent since the last run.

        A changed pipeline is a new object. Its caches take over the elements that the old object's
        caches hold, under names that depend on how the rows are computed now (``kept_name``).
        """
        if name in self.sent:
            before = self.pipelines.pop(name, None)
            if before is not None:
                self.anchors[name] = anchors(before)
            del before
            found = loaded(*self.sent[name])
            handed_on(self.anchors.pop(name, []), found)
            self.pipelines[name] = found
            del self.sent[name]
        return self.pipelines[name]

    def _answer(self) -> None:
        """Answer the parent's queries, also during a run; runs in a thread of its own."""
        with contextlib.suppress(EOFError, OSError):
            for _ in itertools.count():
                number, kind, *given = self.control.receive()
                run, found = self.run, None
                if kind == "forget":
                    forget_alike(list(self.pipelines.values()), given[0])
                elif kind != "told" and run is not None:
                    try:
                        found = run.answer(kind, *given)
                    except Exception:  # noqa: BLE001 (it ended meanwhile: its report is coming)
                        found = None
                self.control.send((number, found, self.told.drain()))


def main() -> None:
    """Serve the parent over three file descriptors in ``sys.argv``: messages, lifeline, control."""
    messages, _lifeline, control = begun()
    ends = [Channel(socket.socket(fileno=file)) for file in (messages, control)]
    DriverService(*ends).serve()


if __name__ == "__main__":
    # under its own name: messages refer to it, and ``__main__`` would be a second copy
    importlib.import_module("dml.ranks.driver.driver_process").main()
