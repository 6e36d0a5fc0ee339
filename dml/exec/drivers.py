"""This file is a driver process as the trainer's process has it: started, asked, ended."""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, Protocol

import xxhash

from dml.errors import WorkerLostError, worded
from dml.events import Event
from dml.exec.channel import Channel
from dml.exec.desk import unsendable
from dml.exec.holding import MemoryReport
from dml.exec.pool import END_S, Child, Pool
from dml.exec.references import dumped
from dml.expr.doors import warn
from dml.expr.node import Node

ANSWER_S = 30.0  # a driver that keeps Python's lock for longer is not asked

EVERY: weakref.WeakSet[Driver] = weakref.WeakSet()


class Written:
    """A pipeline as it is at this moment, with all that its functions refer to, by value.

    It has one ``name`` for as long as it lives; ``digest`` is another if anything in it is. Large
    arrays are not copied. PlanError if it cannot be sent to another process.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.name: str = node.__dict__.setdefault("_sent", uuid.uuid4().hex)
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

    def known_by(self, driver: Driver) -> bool:
        """Whether ``driver`` has it, or has had it as it was: it may keep elements of it."""
        return self.name in driver.known


class Over(Protocol):
    """A run that nobody takes more of."""

    final: list[Event] | None
    last: MemoryReport | None

    def bereft(self) -> None:
        """Its account will not come."""


class Driver(Child):
    """A driver process: one run at a time. ``over`` is the run whose account is still to come.

    What was half received is never made whole: the process is of no more use if that was a message
    of a run (``whole``), and is not asked any more if it was an answer (``deaf``).
    """

    def __init__(self) -> None:
        self.over: Over | None = None
        self.kept, self.whole, self.deaf = False, True, False
        self.known: dict[str, tuple[weakref.ref[Node], bytes]] = {}
        self.untold = list[Any]()
        self.lock, self.asking, self.number = threading.Lock(), threading.Lock(), 0
        with ExitStack() as undone, ExitStack() as theirs:
            ours, control = (undone.enter_context(end) for end in socket.socketpair())
            theirs.callback(control.close)
            self.control = Channel(ours)
            super().__init__("dml.exec.driver", (control.fileno(),), dict(os.environ))
            undone.pop_all()
        self.channel.writable = True
        EVERY.add(self)

    def bring(self, pipeline: Written) -> None:
        """Have the pipeline there as it is here: it is sent if it is new or has changed."""
        gone = [name for name, (ref, _) in self.known.items() if ref() is None]
        for each in gone:
            del self.known[each]
        if gone:
            self.channel.send(("drop", gone))
        if self.known.get(pipeline.name, (None, b""))[1] != pipeline.digest:
            self.channel.send(("pipeline", pipeline.name, pipeline.body, pipeline.buffers))
            self.known[pipeline.name] = weakref.ref(pipeline.node), pipeline.digest

    def ask(self, *question: Any, within: float = ANSWER_S) -> Any:
        """An answer, while a run goes on; None if there is none."""
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
        """The next answer, to this or to an older question; None if it does not come in time."""
        self.deaf = True  # unless both messages cross as a whole, whatever is raised here
        if question:
            self.control.send((self.number, *question))
        found = None
        if self.control.heard(max(0.0, until - time.monotonic())):
            found = self.control.receive()
        self.deaf = False
        return found

    def settle(self, seconds: float) -> bool:
        """Wait for the account of the run that is over; False if it does not come in time.

        What else is said meanwhile waits in ``untold``.
        """
        until = time.monotonic() + seconds
        if not self.lock.acquire(timeout=seconds):
            return self.over is None
        try:
            while self.over is not None:
                if not self.whole or not self.channel.heard(max(0.0, until - time.monotonic())):
                    return False
                self._heed(self.over)
        except Exception:  # noqa: BLE001 (elements that nobody wants are of the user's own classes)
            return False
        finally:
            self.lock.release()
        return True

    def _heed(self, over: Over) -> None:
        self.whole = False
        kind, value, _, told = self.channel.receive()
        self.whole = True
        self.untold += told
        if kind == "over":
            over.final, over.last, self.kept = value
            self.over = None

    def tell(self) -> None:
        """Log and warn here of what was said with what nobody has taken."""
        told, self.untold = self.untold, []
        tell(told)

    def ready(self) -> bool:
        """True if it lives, its last run is over, and it can be talked to."""
        done = self.settle(END_S)
        with suppress(Warning):  # made an error, it would be one of another run
            self.tell()
        return done and self.whole and not self.deaf and super().ready()

    @property
    def ending(self) -> bool:
        """True while the account of its last run may still come."""
        return self.over is not None and self.whole and super().ready()

    @property
    def stays(self) -> bool:
        """True while it keeps elements for a pipeline that is still there."""
        wanted = any(ref() is not None for ref, _ in list(self.known.values()))
        return self.kept and wanted and self.whole and not self.deaf

    def look(self) -> None:
        """Take in the account of its last run, if it has come."""
        self.settle(0.0)

    def failed(self, error: Exception) -> WorkerLostError:
        """The error where no message came or went; the process is ended."""
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
        """In a forked child: the process is the parent's, and so are its runs."""
        self.over = None
        super().abandon()

    def let_go(self) -> None:
        """Close what is open here."""
        super().let_go()
        self.control.close()
        over, self.over = self.over, None
        if over is not None and self.process.returncode:  # else it has written it down itself
            over.bereft()


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


def tell(told: list[Any]) -> None:
    """Log and warn here of what the process has told."""
    for each in told:
        if isinstance(each, dict):
            logging.getLogger(each["name"]).handle(logging.makeLogRecord(each))
        else:
            text, category = each
            warn(text, category)


def forget(node: Node) -> None:
    """Let go of what the caches of a pipeline keep in driver processes."""
    caches = {each.digest for each in node.walk()}
    for driver in list(EVERY):
        if driver.kept or driver.over is None:
            driver.ask("forget", caches)


def living() -> Iterator[Driver]:
    """Driver processes of this process, idle or not."""
    return (driver for driver in list(EVERY) if driver.process.poll() is None)
