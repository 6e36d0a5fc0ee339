"""Iterate over the elements that a driver process computes."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from dml.data.schema import Schema
from dml.errors import PlanError
from dml.events import Event
from dml.exec.delivery.iterator import Elements, Report
from dml.exec.delivery.prefetch import ElementChunk, Maker, Received
from dml.exec.memory.memory_meter import counted_bytes
from dml.exec.memory.memory_report import MemoryReport
from dml.exec.process.environment import Surroundings
from dml.exec.process.exception_codec import received, shipped
from dml.expr.flow import Position
from dml.expr.node import Node
from dml.ranks.driver.driver_handle import ANSWER_S, DRIVERS, DriverProcess, ShippedPipeline, tell
from dml.ranks.driver.driver_process import Ending, RunRequest, StateHeader
from dml.settings import Settings, address_of

LOOK_S = 1.0  # how often a waiting caller asks for warnings
CLOSE_S = 1.0  # wait for the report of a closed run; else it comes later


class Aside:
    """A run in a driver process, from which chunks of elements and the report are received.

    ``account`` and ``memory`` are the reports of an equal run in this process: they stand in before
    the run has begun and when the driver process is gone.
    """

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
            kind, value, head, told = driver.channel.receive()
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
