"""This file is the near side of a run whose elements a driver process makes."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from dml.errors import PlanError
from dml.events import Event
from dml.exec.deliver import Elements, Report
from dml.exec.driver import Begin, Ending, Head
from dml.exec.drivers import ANSWER_S, DRIVERS, Driver, Written, tell
from dml.exec.holding import MemoryReport
from dml.exec.making import Chunk, Maker, Received
from dml.exec.memory import counted_bytes
from dml.exec.shipping import received, shipped
from dml.exec.surroundings import Surroundings
from dml.expr.flow import Position
from dml.expr.node import Node
from dml.expr.schema import Schema
from dml.settings import Settings, address_of

LOOK_S = 1.0  # how often one who waits asks for warnings
CLOSE_S = 1.0  # for the account of a run that was closed; it comes later else


class Aside:
    """A run that a driver process makes: what brings its chunks, and what tells of it.

    ``account`` and ``memory`` are those of the run as it would be here, which tell what is known
    of it before it has begun, and when the process is gone.
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
        pipeline = Written(self.node)
        driver = DRIVERS.take(liked=pipeline.known_by)
        try:
            driver.bring(pipeline)
            level = logging.getLogger("dml").getEffectiveLevel()
            where = dataclasses.replace(Surroundings.now(), environment=dict(os.environ))
            said = (epoch, position, dict(self.schemas), self.went_on)
            begin = Begin(pipeline.name, self.open, *said, self.depth, level, where)
            driver.channel.send(begin)
        except OSError as error:
            raise driver.failed(error) from error
        except BaseException:
            driver.close()
            raise
        self.driver = driver
        return self

    def make(self) -> Chunk | None:
        """The next chunk; None at the end. WorkerLostError if the process dies, or stands still."""
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

    def _learn(self, head: Head) -> None:
        self.schemas.update(head.schemas)
        for key in self.schemas.keys() - head.schemas.keys():
            del self.schemas[key]
        self._same = head.same or self._same

    def close(self) -> None:
        """The run is over; its account is waited for, but not for long."""
        if self.driver is not None:
            self.driver.settle(CLOSE_S)
            self.driver.tell()

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
        self.bereft()

    def bereft(self) -> None:
        """The process is gone, and has not given the account of the run."""
        if self._ended is not None:
            self.account.finished(*self._ended)

    def _settled(self, driver: Driver) -> None:
        """Wait for the account, if it is still to come."""
        if driver.over is self:
            driver.settle(ANSWER_S)
            driver.tell()

    def so_far(self) -> list[Event]:
        """The events of the run, as the process tells them."""
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
        """What the driver process holds for the run; what is counted is over all processes."""
        driver = self.driver
        if driver is not None and self._ended is None:
            self.last = driver.ask("memory") or self.last
        elif driver is not None:
            self._settled(driver)
        if self.last is None:
            return self.memory()
        return dataclasses.replace(self.last, counted_bytes=counted_bytes())


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
