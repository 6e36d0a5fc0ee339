"""Start, query and end a driver process, and iterate over the elements that it computes."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import pickle
import socket
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, suppress
from typing import Any

import xxhash

from dml.base.user_line import warn
from dml.data.schema import Schema
from dml.errors import PlanError, WorkerLostError, worded
from dml.events import Event
from dml.exec.delivery.iterator import Elements, Report
from dml.exec.delivery.prefetch import ElementChunk, Maker, Received
from dml.exec.memory.memory_meter import counted_bytes
from dml.exec.memory.memory_report import MemoryReport
from dml.exec.process.channel import Channel
from dml.exec.process.environment import Surroundings
from dml.exec.process.exception_codec import received, shipped
from dml.exec.process.references import dumped
from dml.exec.process.task_runner import unsendable
from dml.exec.process.worker_pool import END_S, ChildProcess, ProcessPool, end
from dml.expr.flow import Position
from dml.expr.node import Node
from dml.ranks.driver.driver_process import Ending, RunRequest, StateHeader
from dml.settings import Settings, address_of

ANSWER_S = 30.0  # a driver that keeps Python's lock for longer gets no more queries

EVERY: weakref.WeakSet[DriverProcess] = weakref.WeakSet()


class ShippedPipeline:
    """A snapshot of a pipeline, with all that its functions refer to, by value.

    ``name`` identifies the pipeline as long as it lives; ``digest`` changes if anything in it
    changes. Large arrays are not copied. Raise PlanError if it cannot be sent to another process.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.name: str = node.memo.setdefault("sent", uuid.uuid4().hex)
        self.buffers = list[pickle.PickleBuffer]()
        try:
            self.body = dumped(node, self.buffers.append)
        except Exception as error:
            raise unsendable(node.walk(), error) from error
        seen = xxhash.xxh3_128(self.body)
        for buffer in self.buffers:
            view = buffer.raw()
            seen.update(str(view.nbytes).encode())
            seen.update(view)
        self.digest = seen.digest()


class DriverProcess(ChildProcess):
    """A driver process: one run at a time. ``over`` is the ended run whose report is outstanding.

    If receiving a message was interrupted, its rest is never read. If the message was one of a run,
    ``whole`` is False and the process unusable; if it was an answer to a query, ``deaf`` is True
    and no more queries are sent.
    """

    def __init__(self) -> None:
        self.over: Aside | None = None
        self.kept, self.whole, self.deaf = False, True, False
        self.known: dict[str, tuple[weakref.ref[Node], bytes]] = {}
        self.untold = list[Any]()
        self.lock, self.asking, self.number = threading.Lock(), threading.Lock(), 0
        with ExitStack() as undone, ExitStack() as theirs:
            ours, control = (undone.enter_context(end) for end in socket.socketpair())
            theirs.callback(control.close)
            self.control = Channel(ours)
            super().__init__(
                "dml.ranks.driver.driver_process", (control.fileno(),), dict(os.environ)
            )
            undone.pop_all()
        self.channel.writable = True
        EVERY.add(self)

    def bring(self, pipeline: ShippedPipeline) -> None:
        """Send the pipeline to the driver, if it is new or has changed."""
        gone = [name for name, (ref, _) in self.known.items() if ref() is None]
        for each in gone:
            del self.known[each]
        if gone:
            self.channel.send(("drop", gone))
        if self.known.get(pipeline.name, (None, b""))[1] != pipeline.digest:
            self.channel.send(("pipeline", pipeline.name, pipeline.body, pipeline.buffers))
            self.known[pipeline.name] = weakref.ref(pipeline.node), pipeline.digest

    def ask(self, *question: Any, within: float = ANSWER_S) -> Any:
        """Query the driver, even during a run; return None without an answer ``within`` seconds."""
        until = time.monotonic() + within
        with self.asking:
            self.number += 1
            while not self.deaf:
                try:
                    found = self._answer(question, until)
                except (EOFError, OSError):
                    return None
                if found is None:
                    return None
                number, answer, told = found
                tell(told)
                if number == self.number:
                    return answer
                question = ()
        return None

    def _answer(self, question: tuple[Any, ...], until: float) -> Any:
        """Send ``question``, if any; return the next (query number, answer, log lines), or None."""
        self.deaf = True  # until both messages are complete, even if an error is raised
        if question:
            self.control.send((self.number, *question))
        found = None
        if self.control.heard(max(0.0, until - time.monotonic())):
            found = self.receive(self.control)
        self.deaf = False
        return found

    def settle(self, seconds: float) -> bool:
        """Wait ``seconds`` at most for the report of the ended run; return False if none comes.

        Other messages of the run are dropped; their log lines and warnings are added to ``untold``.
        """
        until = time.monotonic() + seconds
        if not self.lock.acquire(timeout=seconds):
            return self.over is None
        try:
            while self.over is not None:
                if not self.whole or not self.channel.heard(max(0.0, until - time.monotonic())):
                    return False
                self._heed(self.over)
        except Exception:  # noqa: BLE001 (unwanted elements are of the user's own classes)
            return False
        finally:
            self.lock.release()
        return True

    def _heed(self, over: Aside) -> None:
        self.whole = False
        kind, value, _, told = self.receive()
        self.whole = True
        self.untold += told
        if kind == "over":
            over.final, over.last, self.kept = value
            self.over = None

    def tell(self) -> None:
        """Emit the log lines and warnings in ``untold``, which arrived with dropped messages."""
        told, self.untold = self.untold, []
        tell(told)

    def ready(self) -> bool:
        """Return True if the process lives, its last run is reported, and it answers queries."""
        done = self.settle(END_S)
        with suppress(Warning):  # as an error, it would belong to another run
            self.tell()
        return done and self.whole and not self.deaf and super().ready()

    @property
    def ending(self) -> bool:
        """True while the report of the last run may still come."""
        return self.over is not None and self.whole and super().ready()

    @property
    def stays(self) -> bool:
        """True while the process caches elements for a pipeline that still exists."""
        wanted = any(ref() is not None for ref, _ in list(self.known.values()))
        return self.kept and wanted and self.whole and not self.deaf

    def look(self) -> None:
        """Receive the report of the last run, if it has arrived; do not wait."""
        self.settle(0.0)

    def failed(self, error: Exception) -> WorkerLostError:
        """End the process; return the error to raise after ``error`` in an exchange of messages."""
        hung_up = isinstance(error, EOFError | ConnectionError)
        alive = not hung_up and self.process.poll() is None
        code = self.ended(0.0 if alive else END_S)
        self.close()
        if alive:
            return WorkerLostError(
                "what the driver process has made cannot be taken in",
                at=f"process {os.getpid()}, which trains",
                why=worded(error),
                try_="fewer open files here or a higher limit (ulimit -n), more memory (ulimit -v);"
                " then iter(ds), and load_state_dict of the state that this iterator still gives",
            )
        why = f"killed by signal {-code}" if code < 0 else f"it ended with code {code}"
        return WorkerLostError(
            "the driver process died",
            at=f"process {self.process.pid}",
            why=f"{why} ({error})" if str(error) else why,
            try_="iter(ds), and load_state_dict of the state that this iterator still gives",
        )

    def abandon(self) -> None:
        """Detach in a forked child: the process and its runs belong to the parent."""
        self.over = None
        super().abandon()

    def let_go(self) -> None:
        """Close the connections; if the process failed, write the report of its last run here."""
        super().let_go()
        self.control.close()
        over, self.over = self.over, None
        if over is not None and self.process.returncode:  # else it has written its report itself
            over.bereft()


DRIVERS = ProcessPool(DriverProcess, EVERY)


def _end_all() -> None:
    """End all drivers at exit, after open runs have written their reports."""
    DRIVERS.close()
    end(list(EVERY))


atexit.register(_end_all)
os.register_at_fork(after_in_child=DRIVERS.forked)


def tell(told: list[Any]) -> None:
    """Emit the log records and warnings of a driver process in this process."""
    for each in told:
        if isinstance(each, dict):
            logging.getLogger(each["name"]).handle(logging.makeLogRecord(each))
        else:
            text, category = each
            warn(text, category)


def forget(node: Node) -> None:
    """Drop the elements that the caches of a pipeline hold in driver processes."""
    caches = {each.digest for each in node.walk()}
    for driver in list(EVERY):
        if driver.kept or driver.over is None:
            driver.ask("forget", caches)


def living() -> Iterator[DriverProcess]:
    """Return the living driver processes of this process, idle or not."""
    return (driver for driver in list(EVERY) if driver.process.poll() is None)


LOOK_S = 1.0  # how often a waiting caller asks for warnings
CLOSE_S = 1.0  # wait for the report of a closed run; else it comes later


class Aside:
    """A run in a driver process, from which chunks of elements and the report are received.

    ``account`` and ``memory`` are the reports of an equal run in this process: they stand in before
    the run has begun and when the driver process is gone.
    """

    recorded = False  # here: the driver process records the run

    def __init__(
        self,
        node: Node,
        open_: Callable[[Any, int], Elements],
        depth: int | None,
        here: Elements,
    ) -> None:
        self.node, self.open, self.depth = node, open_, depth
        self.account: Report = here.report
        self.memory = here.told_of_memory
        self.schemas: MutableMapping[str, Schema] = here.running.at.schemas
        self.driver: DriverProcess | None = None
        self.final: list[Event] | None = None
        self.went_on = False
        self._same: dict[str, Any] = {}
        self.last: MemoryReport | None = None
        self._ended: tuple[str, BaseException | None] | None = None

    @property
    def report(self) -> Aside:
        """The report of the run, which this object implements itself."""
        return self

    @property
    def received(self) -> Received:
        """The counts of the elements that the caller received, made in this process."""
        return self.account.received

    @received.setter
    def received(self, value: Received) -> None:
        self.account.received = value

    # ------------------------------------------------------------------------------------- the run

    def begin(self, epoch: int, position: Position | None) -> Maker:
        """Begin the run in a driver process, and return this object, which makes its chunks.

        Raise PlanError if the pipeline cannot be sent to another process.
        """
        pipeline = ShippedPipeline(self.node)
        # one that knows the pipeline may cache its elements
        driver = DRIVERS.take(liked=lambda driver: pipeline.name in driver.known)
        try:
            driver.bring(pipeline)
            level = logging.getLogger("dml").getEffectiveLevel()
            where = dataclasses.replace(Surroundings.now(), environment=dict(os.environ))
            said = (epoch, position, dict(self.schemas), self.went_on)
            begin = RunRequest(pipeline.name, self.open, *said, self.depth, level, where)
            driver.channel.send(begin)
        except OSError as error:
            raise driver.failed(error) from error
        except BaseException:
            driver.close()
            raise
        self.driver = driver
        return self

    def make(self) -> ElementChunk | None:
        """Return the next chunk, None at the end. Raise WorkerLostError if the process is lost."""
        driver = self.driver
        assert driver is not None  # noqa: S101 - it has begun
        driver.whole, driver.stood_s = False, 0.0
        try:
            driver.channel.send("more")
            while not driver.channel.heard(LOOK_S):
                if not driver.halted(LOOK_S):
                    driver.ask("told", within=LOOK_S)
            kind, value, head, told = driver.receive()
        except (EOFError, OSError) as error:
            raise driver.failed(error) from error
        driver.whole = True
        tell(told)
        if head is not None:
            self._learn(head)
        if kind == "error":
            raise received(value)
        return value if kind == "chunk" else None

    def _learn(self, head: StateHeader) -> None:
        self.schemas.update(head.schemas)
        for key in self.schemas.keys() - head.schemas.keys():
            del self.schemas[key]
        self._same = head.same or self._same

    def close(self) -> None:
        """Wait up to ``CLOSE_S`` seconds for the report of the ended run; emit its log lines."""
        if self.driver is not None:
            self.driver.settle(CLOSE_S)
            self.driver.tell()

    def same(self) -> dict[str, Any]:
        """Return the values that a resuming run must match, as the driver process sent them."""
        return self._same

    # ------------------------------------------------------------------------------------ reporting

    def opened(self) -> None:
        """Do nothing: the driver process makes the elements, and reports them."""

    def resumed(self) -> None:
        """Record that the run resumes from a saved state."""
        self.went_on = True
        self.account.resumed()

    def finished(self, status: str, error: BaseException | None) -> None:
        """Tell the driver process that the delivery ended, without waiting for its report."""
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

    def _gone(self, driver: DriverProcess | None) -> None:
        """Close the driver process, and write the run's report in this process."""
        if driver is not None:
            driver.close()
        self.bereft()

    def bereft(self) -> None:
        """Write the report of the ended run in this process, since the driver process is gone."""
        if self._ended is not None:
            self.account.finished(*self._ended)

    def _settled(self, driver: DriverProcess) -> None:
        """Wait for the report of the run, if it is outstanding."""
        if driver.over is self:
            driver.settle(ANSWER_S)
            driver.tell()

    def so_far(self) -> list[Event]:
        """Return the events of the run, from the driver process if it answers."""
        driver = self.driver
        if self.final is None and driver is not None:
            if self._ended is None:
                return driver.ask("events", self.received.figures()) or self.account.so_far()
            self._settled(driver)
        if self.final:
            return list(self.final)
        self._gone(None)
        return self.account.so_far()

    def told_of_memory(self) -> MemoryReport:
        """Return the memory report of the driver process, with bytes counted over all processes."""
        driver = self.driver
        if driver is not None and self._ended is None:
            self.last = driver.ask("memory") or self.last
        elif driver is not None:
            self._settled(driver)
        if self.last is None:
            return self.memory()
        return dataclasses.replace(self.last, counted_bytes=counted_bytes())


def scheduler_address(settings: Settings) -> tuple[str | None, dict[str, Any]]:
    """Return the address of the Dask scheduler, None without one, and Dask's configuration for it.

    Raise PlanError if the scheduler lives in this process, where others cannot reach it.
    """
    scheduler, config = settings.scheduler, dict[str, Any]()
    if settings.executor != "distributed":
        return None, config
    if "distributed" in sys.modules:  # else no client or cluster object exists
        from dml.cluster import cluster  # noqa: PLC0415

        scheduler = cluster.met_before(None) if scheduler is None else scheduler
        config = cluster.certificates(scheduler)
    address = address_of(scheduler)
    if scheduler is not None and address is None:
        raise PlanError(
            "driver='process' cannot reach the cluster",
            at=repr(scheduler),
            why="its scheduler lives inside this process",
            try_="LocalCluster(processes=True), `dask scheduler`, or driver='here'",
        )
    return address, config
