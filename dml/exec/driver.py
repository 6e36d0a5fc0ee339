"""This file is a driver process: ``python -m dml.exec.driver`` runs pipelines for a training loop.

All that a run does beside its workers is done here: scheduling, the client of a cluster, fetching,
operators over the stream. The parent receives finished elements in nameless memory, as many ahead
as it has agreed to. Like a worker this process ends with its parent
(docs/decisions/031-driver-apart.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import itertools
import logging
import signal
import socket
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dml.exec.channel import Channel, Message
from dml.exec.deliver import Elements
from dml.exec.kept import STORE, anchors, forget_alike, handed_on
from dml.exec.making import Chunk, Figures, Maker, Received
from dml.exec.memory import give_back
from dml.exec.references import loaded
from dml.exec.shipping import received, shipped
from dml.exec.surroundings import Surroundings
from dml.exec.worker import IDLE_S, flush, live_with
from dml.expr.flow import Position
from dml.expr.schema import Schema

MOST_TOLD = 1000  # log lines and warnings that wait to be taken along


@dataclasses.dataclass(frozen=True)
class Begin:
    """A run of the pipeline ``name``: ``open`` makes its iterator of the pipeline and the epoch.

    ``depth`` is how many elements may be made before they are asked for, None as many as fit.
    ``level`` is what the parent logs.
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
    """How a run ended where its elements were handed out."""

    status: str
    error: bytes
    figures: Figures | None


@dataclasses.dataclass(frozen=True)
class Head:
    """What states need to know beside a position, told when it changes."""

    schemas: dict[str, Schema]
    same: dict[str, Any]


class Told(logging.Handler):
    """Log lines and warnings of this process, which are told by the parent."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Any] = deque(maxlen=MOST_TOLD)
        logger = logging.getLogger("dml")
        logger.handlers, logger.propagate = [self], False
        warnings.showwarning = self.warned  # type: ignore[assignment]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line, as text."""
        plain = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
        self.waiting.append({**plain, "msg": record.getMessage()})

    def warned(self, message: Warning | str, category: type[Warning], *_: Any) -> None:
        """Keep a warning; of a class of the user's, its text."""
        ours = category.__module__ == "builtins" or category.__module__.startswith("dml.")
        self.waiting.append((str(message), category if ours else UserWarning))

    def taken(self) -> list[Any]:
        """All that waits."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self.waiting.popleft())
        return found


class Run:
    """One run: its chunks are sent as far ahead as was agreed; ``elements`` once it is open."""

    def __init__(self, channel: Channel, begin: Begin, told: Told) -> None:
        self.channel, self.begin, self.told = channel, begin, told
        self.elements: Elements | None = None
        self.ending: Ending | None = None
        self.asked = self.sent = 0  # chunks
        self.ahead: deque[tuple[int, int]] = deque()  # elements and bytes that nobody asked for yet
        self.largest = 0
        self._head: tuple[int, int] | None = None

    def go(self, pipeline: Callable[[], Any]) -> None:
        """Run it until the parent has had enough, and give the account."""
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
        """Wait until another chunk may be made; False once nobody wants more."""
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
        """Take in what the parent says next."""
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

    def _give(self, chunk: Chunk) -> None:
        self.sent += 1
        if self.sent > self.asked:
            self.ahead.append((len(chunk.elements), chunk.nbytes))
        self.largest = max(self.largest, chunk.nbytes)
        self._send("chunk", chunk)

    def _send(self, kind: str, value: Any) -> None:
        flush()
        message = Message((kind, value, self._news(), self.told.taken()))
        try:
            self.channel.post(message)
        except ConnectionError:
            while self.ending is None:  # the parent may have said how it ended before it went
                self._hear()
        except OSError:
            self.ending = self.ending or Ending("stopped", b"", None)
        finally:
            message.close()

    def _news(self) -> Head | None:
        """What states need to know, unless the parent knows."""
        if self.elements is None:
            return None
        running = self.elements.running
        key = id(running), len(running.at.schemas)
        if key == self._head:
            return None
        self._head = key
        same = {} if running is self.first else self.elements.same()
        return Head(running.at.schemas.copy(), same)

    def _close(self, ending: Ending) -> None:
        """Tell the store of telemetry and the parent what came of it."""
        events, memory = list[Any](), None
        if self.elements is not None:
            report = self.elements.report
            if ending.figures is not None:
                report.received = Received.of(ending.figures)
            report.finished(ending.status, received(ending.error) if ending.error else None)
            events, memory = report.so_far(), self.elements.told_of_memory()
        let_go()
        self._send("over", (events, memory, STORE.nbytes > 0))

    def answer(self, kind: str, *given: Any) -> Any:
        """What the parent asks while the run goes on."""
        if self.elements is None:
            return None
        if kind == "memory":
            return self.elements.told_of_memory()
        self.elements.report.received = Received.of(given[0])
        return self.elements.report.so_far()


def let_go() -> None:
    """Leave the cluster: between two runs nobody has a client there."""
    if "dml.exec.cluster" in sys.modules:
        importlib.import_module("dml.exec.cluster").close_all()


class Service:
    """What a driver process does: one run after the other, of the pipelines that it was sent."""

    def __init__(self, channel: Channel, control: Channel) -> None:
        self.channel, self.control = channel, control
        self.pipelines: dict[str, Any] = {}
        self.sent: dict[str, tuple[bytes, Sequence[Any]]] = {}
        self.anchors: dict[str, list[Any]] = {}  # of pipelines that have changed
        self.told = Told()
        self.run: Run | None = None

    def serve(self) -> None:
        """Do what the parent says until it hangs up."""
        threading.Thread(target=self._answer, name="dml-control", daemon=True).start()
        with contextlib.suppress(EOFError, OSError):
            while True:
                if not self.channel.heard(IDLE_S):
                    give_back()
                self._heed(self.channel.receive())

    def _heed(self, said: Any) -> None:
        if isinstance(said, Begin):
            said.surroundings.enter()
            logging.getLogger("dml").setLevel(said.level)
            self.run = Run(self.channel, said, self.told)
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
        """The pipeline, as it was left by the run before; what is wrong with it is raised.

        One that has changed is another object. Its caches have what was kept for it, under names
        that say what their inputs do now (``kept_name``).
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
        """Answer questions, while the run goes on."""
        with contextlib.suppress(EOFError, OSError):
            for _ in itertools.count():
                number, kind, *given = self.control.receive()
                run, found = self.run, None
                if kind == "forget":
                    forget_alike(list(self.pipelines.values()), given[0])
                elif kind != "told" and run is not None:
                    try:
                        found = run.answer(kind, *given)
                    except Exception:  # noqa: BLE001 (it ended meanwhile: its account is coming)
                        found = None
                self.control.send((number, found, self.told.taken()))


def main() -> None:
    """Serve the descriptors that are the arguments: messages, lifeline, control."""
    messages, lifeline, control = map(int, sys.argv[1:4])
    live_with(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    ends = [socket.socket(fileno=file) for file in (messages, control)]
    for end in ends:
        end.set_inheritable(False)
    del sys.argv[1:]
    Service(Channel(ends[0]), Channel(ends[1])).serve()


if __name__ == "__main__":
    # under its own name: what is sent refers to it, and there would be two of everything
    importlib.import_module("dml.exec.driver").main()
