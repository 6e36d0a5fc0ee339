"""This file is the near side of a run whose elements a driver process makes."""

from __future__ import annotations

import atexit
import dataclasses
import importlib
import logging
import os
import socket
import sys
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack
from typing import Any

from dml.errors import PlanError, WorkerLostError
from dml.events import Event
from dml.exec.channel import Channel
from dml.exec.deliver import Elements, Report
from dml.exec.desk import unsendable
from dml.exec.driver import Begin, Ending, Head
from dml.exec.holding import MemoryReport
from dml.exec.making import Chunk, Maker, Received
from dml.exec.memory import counted_bytes
from dml.exec.pool import END_S, Child, Pool
from dml.exec.references import dumped
from dml.exec.shipping import received, shipped
from dml.exec.surroundings import Surroundings
from dml.expr.flow import Position
from dml.expr.node import Node
from dml.expr.schema import Schema
from dml.settings import Settings, address_of

LOOK_S = 1.0  # how often one who waits asks for warnings
ANSWER_S = 30.0  # a driver that keeps Python's lock for longer is not asked
CLOSE_S = 1.0  # for the account of a run that was closed; it comes later else

EVERY: weakref.WeakSet[Driver] = weakref.WeakSet()


class Driver(Child):
    """A driver process: one run at a time. ``over`` is the run whose account is still to come."""

    def __init__(self) -> None:
        self.over: Aside | None = None
        self.kept, self.whole = False, True  # a message that was half received is never made whole
        self.known: dict[str, weakref.ref[Node]] = {}
        self.lock, self.asking, self.number = threading.Lock(), threading.Lock(), 0
        with ExitStack() as undone, ExitStack() as theirs:
            ours, control = (undone.enter_context(end) for end in socket.socketpair())
            theirs.callback(control.close)
            self.control = Channel(ours)
            super().__init__("dml.exec.driver", (control.fileno(),), dict(os.environ))
            undone.pop_all()
        self.channel.writable = True
        EVERY.add(self)

    def send(self, node: Node, version: Any) -> str:
        """Bring a pipeline there, once for each ``version`` of it; its name."""
        name: str
        known, name = node.__dict__.get("_sent", (None, ""))
        if known is not version:
            name = uuid.uuid4().hex
            node.__dict__["_sent"] = version, name  # the node's own: it may hold it in turn
        if name in self.known:
            return name
        gone = [each for each, ref in self.known.items() if ref() is None or ref() is node]
        for each in gone:
            del self.known[each]
        self.channel.send(("drop", gone))
        buffers = list[Any]()
        try:
            sent = dumped(node, buffers.append)
        except Exception as error:
            raise unsendable(node.walk(), error) from error
        self.channel.send(("pipeline", name, sent, buffers))
        self.known[name] = weakref.ref(node)
        return name

    def ask(self, *question: Any) -> Any:
        """An answer, while a run goes on; None if there is none."""
        with self.asking:
            self.number += 1
            try:
                self.control.send((self.number, *question))
                until = time.monotonic() + ANSWER_S
                while self.control.heard(max(0.0, until - time.monotonic())):
                    number, answer, told = self.control.receive()
                    tell(told)
                    if number == self.number:
                        return answer
            except (EOFError, OSError):
                return None
        return None

    def settle(self, seconds: float) -> bool:
        """Wait for the account of the run that is over; False if it does not come in time."""
        until = time.monotonic() + seconds
        with self.lock:
            while self.over is not None:
                try:
                    if not self.channel.heard(max(0.0, until - time.monotonic())):
                        return False
                    kind, value, _, told = self.channel.receive()
                except (EOFError, OSError):
                    return False
                if kind == "over":
                    tell(told)
                    self.over.final, self.over.last, self.kept = value
                    self.over = None
            return True

    def ready(self) -> bool:
        """True if it lives and its last run is over."""
        return self.settle(END_S) and super().ready()

    @property
    def stays(self) -> bool:
        """True while it keeps elements for a pipeline that is still there."""
        return self.kept and any(ref() is not None for ref in list(self.known.values()))

    def lost(self, error: Exception) -> WorkerLostError:
        """The error for a process that has died."""
        code = self.ended(END_S)
        self.close()
        why = f"killed by signal {-code}" if code < 0 else f"it ended with code {code}"
        return WorkerLostError(
            "the driver process died",
            at=f"process {self.process.pid}",
            why=f"{why} ({error})" if str(error) else why,
            try_="iter(ds), and load_state_dict of the state that this iterator still gives",
        )

    def let_go(self) -> None:
        """Close what is open here."""
        super().let_go()
        self.control.close()


DRIVERS = Pool(Driver, EVERY)


def _end_all() -> None:
    """Let runs that are left open write down what they did."""
    DRIVERS.close()
    for driver in list(EVERY):
        driver.hang_up()
    until = time.monotonic() + END_S
    for driver in list(EVERY):
        driver.close(max(0.0, until - time.monotonic()))


atexit.register(_end_all)
os.register_at_fork(after_in_child=DRIVERS.forked)


class Aside:
    """A run that a driver process makes: what brings its chunks, and what tells of it.

    ``version`` is another object whenever the pipeline has come to mean something else.
    ``account`` and ``memory`` are those of the run as it would be here, which tell what is known
    of it before it has begun, and when the process is gone.
    """

    def __init__(
        self,
        node: Node,
        version: Any,
        open_: Callable[[Any, int], Elements],
        depth: int | None,
        here: Elements,
    ) -> None:
        self.node, self.version, self.open, self.depth = node, version, open_, depth
        self.account: Report = here.report
        self.memory = here.told_of_memory
        self.schemas: MutableMapping[str, Schema] = here.running.at.schemas
        self.driver: Driver | None = None
        self.final: list[Event] | None = None
        self.went_on = False
        self._same: dict[str, Any] = {}
        self.last: MemoryReport | None = None
        self._ended: tuple[str, BaseException | None] | None = None

    @property
    def report(self) -> Aside:
        """It tells of itself."""
        return self

    @property
    def received(self) -> Received:
        """What the caller got: that is known here."""
        return self.account.received

    @received.setter
    def received(self, value: Received) -> None:
        self.account.received = value

    # ------------------------------------------------------------------------------------- the run

    def begin(self, epoch: int, position: Position | None) -> Maker:
        """Begin it in a driver process; PlanError if the pipeline cannot be sent there."""
        driver = DRIVERS.take()
        try:
            name = driver.send(self.node, self.version)
            level = logging.getLogger("dml").getEffectiveLevel()
            where = dataclasses.replace(Surroundings.now(), environment=dict(os.environ))
            said = (epoch, position, dict(self.schemas), self.went_on)
            begin = Begin(name, self.open, *said, self.depth, level, where)
            driver.channel.send(begin)
        except OSError as error:
            raise driver.lost(error) from error
        except BaseException:
            driver.close()
            raise
        self.driver = driver
        return self

    def make(self) -> Chunk | None:
        """The next chunk; None at the end. WorkerLostError if the process dies."""
        driver = self.driver
        assert driver is not None  # noqa: S101 - it has begun
        driver.whole = False
        try:
            driver.channel.send("more")
            while not driver.channel.heard(LOOK_S):
                driver.ask("told")
            kind, value, head, told = driver.channel.receive()
        except (EOFError, OSError) as error:
            raise driver.lost(error) from error
        driver.whole = True
        tell(told)
        if head is not None:
            self._learn(head)
        if kind == "error":
            raise received(value)
        return value if kind == "chunk" else None

    def _learn(self, head: Head) -> None:
        self.schemas.update(head.schemas)
        for key in self.schemas.keys() - head.schemas.keys():
            del self.schemas[key]
        self._same = head.same or self._same

    def close(self) -> None:
        """The run is over; its account is waited for, but not for long."""
        if self.driver is not None:
            self.driver.settle(CLOSE_S)

    def same(self) -> dict[str, Any]:
        """What its states must have in common with those that go on; {} if as here."""
        return self._same

    # ------------------------------------------------------------------------------- what it tells

    def resumed(self) -> None:
        """It goes on from a saved state."""
        self.went_on = True
        self.account.resumed()

    def finished(self, status: str, error: BaseException | None) -> None:
        """Nothing more is handed out: the process may end the run; nobody waits for it here."""
        driver, self._ended = self.driver, (status, error)
        if driver is None or not driver.whole:
            self._gone(driver)
            return
        sent = b"" if error is None else shipped(error)
        driver.over = self
        try:
            driver.channel.send(Ending(status, sent, self.received.figures()))
        except OSError:
            self._gone(driver)
            return
        DRIVERS.give_back(driver)

    def _gone(self, driver: Driver | None) -> None:
        """Nobody else keeps the account."""
        if driver is not None:
            driver.close()
        if self._ended is not None:
            self.account.finished(*self._ended)

    def so_far(self) -> list[Event]:
        """The events of the run, as the process tells them."""
        driver = self.driver
        if self.final is None and driver is not None:
            if self._ended is None:
                return driver.ask("events", self.received.figures()) or self.account.so_far()
            if driver.over is self:
                driver.settle(ANSWER_S)
        if self.final:
            return list(self.final)
        self._gone(None)
        return self.account.so_far()

    def told_of_memory(self) -> MemoryReport:
        """What the driver process holds for the run; what is counted is over all processes."""
        driver = self.driver
        if driver is not None and self._ended is None:
            self.last = driver.ask("memory") or self.last
        elif driver is not None and driver.over is self:
            driver.settle(ANSWER_S)
        if self.last is None:
            return self.memory()
        return dataclasses.replace(self.last, counted_bytes=counted_bytes())


def tell(told: list[Any]) -> None:
    """Log and warn here of what the process has told."""
    for each in told:
        if isinstance(each, dict):
            logging.getLogger(each["name"]).handle(logging.makeLogRecord(each))
        else:
            text, category = each
            warnings.warn(text, category, stacklevel=2)


def reached(settings: Settings) -> tuple[str | None, dict[str, Any]]:
    """The scheduler as another process can reach it, and what that needs of Dask's configuration.

    PlanError if it lives in this process.
    """
    scheduler, config = settings.scheduler, dict[str, Any]()
    if settings.executor != "distributed":
        return None, config
    if "distributed" in sys.modules:  # else there is no client, and no cluster object
        clusters = importlib.import_module("dml.exec.cluster")
        scheduler = clusters.met_before(None) if scheduler is None else scheduler
        config = clusters.certificates(scheduler)
    address = address_of(scheduler)
    if scheduler is not None and address is None:
        raise PlanError(
            "driver='process' cannot reach the cluster",
            at=repr(scheduler),
            why="its scheduler lives inside this process",
            try_="LocalCluster(processes=True), `dask scheduler`, or driver='here'",
        )
    return address, config


def forget(node: Node) -> None:
    """Let go of what the caches of a pipeline keep in driver processes."""
    caches = {each.digest for each in node.walk()}
    for driver in list(EVERY):
        if driver.kept or driver.over is None:
            driver.ask("forget", caches)


def living() -> Iterator[Driver]:
    """Driver processes of this process, idle or not."""
    return (driver for driver in list(EVERY) if driver.process.poll() is None)
