"""Open splits: iterations shared by ranks of this process, or of several.

The share of one rank is presented to its training loop as an iterable. A rank in another process
requests one element ahead from rank 0, so that rank 0 makes it while the training step runs. Each
element is sent with the state after it, so that a rank can save a checkpoint even when rank 0 is
gone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from sys import is_finalizing
from typing import Any

from dml.errors import InternalError, PlanError, ResumeMismatchError, WorkerLostError
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.prefetch import Element
from dml.exec.process.exception_codec import received
from dml.ranks.connection import LOST, REFUSED, RankPlace, Wire, called, met, place_of
from dml.ranks.rank_server import Server
from dml.ranks.shared_run import DEALS, RankSeat, RankSplit

RETRY_S = 0.05

_log = logging.getLogger("dml")


class RankConnection:
    """The connection of a rank to rank 0; one request at a time."""

    def __init__(self, place: RankPlace, pinned: int | None, patience_s: float) -> None:
        self.place, self.pinned, self.patience_s = place, pinned, patience_s
        self.lock = threading.RLock()
        self.wire: Wire | None = None
        self.lost: WorkerLostError | None = None
        self.owed = 0  # replies outstanding
        self.seat: FarSeat | None = None  # the seat that the replies belong to

    def post(self, *message: Any) -> None:
        """Send a request; ``fetch`` returns its reply later."""
        with self.lock:
            try:
                self._wire().send(message)
            except LOST as error:
                raise self._gone() from error
            self.owed += 1

    def fetch(self) -> Any:
        """Return the next reply; raise the error that it contains, if any."""
        with self.lock:
            try:
                self._await()
                reply = self._wire().receive()
            except LOST as error:
                raise self._gone() from error
            except BaseException:
                self._gone()  # a reply may have been read in part
                raise
            self.owed -= 1
        if reply[0] == "error":
            raise received(reply[1])
        return reply

    def _await(self) -> None:
        """Wait for a reply; log a warning after every ``patience_s`` seconds."""
        while not self._wire().ready(self.patience_s):
            text = "Stalled: rank %d waits for rank 0 since %.0f s"
            _log.warning(text, self.place.rank, self.patience_s)

    def ask(self, *message: Any) -> Any:
        """Discard the replies to earlier requests, then send a request and return its reply."""
        with self.lock:
            while self.owed:
                self._dropped()
            self.post(*message)
            return self.fetch()

    def tell(self, *message: Any) -> None:
        """Send a message that has no reply."""
        self.post(*message)
        self.owed -= 1

    def _dropped(self) -> None:
        try:
            self.fetch()
        except WorkerLostError:
            if self.lost is not None:
                raise
        except Exception:  # noqa: BLE001, S110 - it belongs to a share that was given up
            pass

    def _wire(self) -> Wire:
        if self.lost is not None:
            raise self.lost
        if self.wire is None:
            self.wire = self._welcomed()
        return self.wire

    def _welcomed(self) -> Wire:
        """Connect to rank 0; try for ``patience_s`` seconds, since it may not have started yet."""
        deadline = time.monotonic() + self.patience_s
        while True:
            where = met(self.place)
            wire = None if where is None else self._tried(where)
            if wire is not None:
                return wire
            if time.monotonic() > deadline:
                raise self._absent()
            time.sleep(RETRY_S)

    def _tried(self, where: RankPlace) -> Wire | None:
        try:
            wire = called(where.host, where.port, where.secret, self.patience_s)
        except REFUSED:
            return None
        reply: Any = ("lost",)
        with contextlib.suppress(*LOST):
            wire.send(("hello", self.place.rank, self.place.n, self.pinned))
            reply = wire.receive()
        if reply[0] == "welcome":
            return wire
        wire.close()
        if reply[0] == "error":
            raise received(reply[1])
        return None

    def _absent(self) -> WorkerLostError:
        where = self.place.file or f"{self.place.host}:{self.place.port}"
        return WorkerLostError(
            f"rank {self.place.rank} does not find rank 0 of job {self.place.name!r}",
            why=f"nobody answered with the job's secret for {self.patience_s:.0f} s; {where} tells"
            " where rank 0 would be",
            try_="start rank 0, with the same job_name= (and address=)",
        )

    def _gone(self) -> WorkerLostError:
        self.lost = WorkerLostError(
            f"rank 0 of job {self.place.name!r} is gone",
            why="its connection ended, and it runs the pipeline for all ranks",
            try_="restart all ranks; state_dict() still has the step that was reached here",
        )
        return self.lost

    def close(self) -> None:
        """Close the connection."""
        if self.wire is not None:
            self.wire.hang_up()
        with self.lock:
            if self.wire is not None:
                self.wire.close()
                self.wire = None
            self.lost = self.lost or WorkerLostError(
                f"rank {self.place.rank} has left the split",
                why="it was closed here",
                try_="ds.streaming_split(...) again",
            )


class FarSeat:
    """The share of a rank (its *seat*) in one run, where the run is in another process."""

    def __init__(self, link: RankConnection) -> None:
        self.link = link
        self.epoch, self.step, self._state = _seat(link.ask("iter", link.place.rank))
        self._asked = self._done = False
        link.seat = self

    def draw(self) -> Element:
        """Return the next element and request the following one; raise StopIteration at the end."""
        with self.link.lock:
            if self._done or self.link.seat is not self:
                raise StopIteration
            if not self._asked:
                self.link.post("get", self.step + 1, self.step)
            self._asked = False
            try:
                reply = self.link.fetch()
            except BaseException:
                self._done = True
                raise
            return self._receive_element(reply)

    def _receive_element(self, reply: Any) -> Element:
        if reply[0] == "end":
            self._done = True
            _, self._state, self.step = reply
            with contextlib.suppress(WorkerLostError):  # the share is complete without rank 0
                self.link.tell("done")
            raise StopIteration
        if reply[0] != "batch":
            raise InternalError("rank 0 sent what nobody asked for", why=repr(reply[0]))
        before, self.step = self.step, self.step + 1
        element: Element
        _, self._state, element = reply
        # ``step`` counts this element: it is delivered even if rank 0 is lost now
        with contextlib.suppress(WorkerLostError):
            self.link.post("get", self.step + 1, before)
            self._asked = True
        return element

    def state_dict(self) -> dict[str, Any]:
        """Return the state that was sent with the last element."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state that some rank of a split has saved; every rank must load one."""
        if self._asked or self._done:
            raise PlanError(
                "load_state_dict on an iterator that has started",
                why="a share begins with its first element",
                try_="it = iter(part); it.load_state_dict(state)",
            )
        if not isinstance(state, dict):
            raise ResumeMismatchError("this is not the state of a rank", why=repr(type(state)))
        self.epoch, self.step, self._state = _seat(self.link.ask("load", state))

    def leave(self) -> None:
        """Do nothing when the iterator is dropped: a new process may continue the rank's share."""

    def close(self) -> None:
        """Give up the rest of the rank's share, and tell rank 0."""
        if not self._done and self.link.lost is None and self.link.seat is self:
            self._done = True
            with contextlib.suppress(WorkerLostError):
                self.link.ask("close")


def _seat(reply: Any) -> tuple[int, int, dict[str, Any]]:
    _, epoch, step, state = reply
    return epoch, step, state


Seat = RankSeat | FarSeat
"""A rank's seat in one run, here or in another process."""


class RankElements(Iterator[Element], AbstractContextManager["RankElements"]):
    """Iterates over one rank's elements of one epoch, resumable like the iterator of a dataset."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def __next__(self) -> Element:
        return self._seat.draw()

    @property
    def epoch(self) -> int:
        """The epoch of this iteration, which is the same for all ranks."""
        return self._seat.epoch

    @property
    def step(self) -> int:
        """The number of elements that this rank has received."""
        return self._seat.step

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after this rank's number of steps, as JSON data."""
        return self._seat.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state that any rank saved, of a split into any number of ranks.

        Every rank must load one. Raise ResumeMismatchError if these are of different steps.
        """
        self._seat.load_state_dict(state)

    def close(self) -> None:
        """Give up the rest of this rank's share of the epoch; the other ranks continue."""
        self._seat.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        if "_seat" in self.__dict__ and not ends():  # as in ``dml.exec.delivery.iterator``
            self._seat.leave()


class RankShare(AbstractContextManager["RankShare"]):
    """The share of one rank: each iteration over it is the rank's part of the next epoch.

    ``state_dict`` applies to the last iteration that has begun, or else begins the first;
    ``load_state_dict`` applies to the next iteration.
    """

    def __init__(
        self,
        rank: int,
        n: int,
        take: Callable[[], Seat],
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.n = rank, n
        self._take, self._finish = take, finish
        self._seat: Seat | None = None
        self._next: RankElements | None = None

    def __iter__(self) -> RankElements:
        share, self._next = self._next or self._begun(), None
        return share

    def _begun(self) -> RankElements:
        self._seat = self._take()
        return RankElements(self._seat)

    def _here(self) -> Seat:
        if self._seat is None:
            self._next = self._begun()
        assert self._seat is not None  # noqa: S101 - it has just been taken
        return self._seat

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after this rank's number of steps, as JSON data."""
        return self._here().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume the next iteration from ``state``; every rank must load one."""
        if self._next is None:
            self._next = self._begun()
        self._next.load_state_dict(state)

    def close(self) -> None:
        """Give up the rest of the current iteration, and leave the split."""
        if self._seat is not None:
            self._seat.close()
        self._finish()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise PlanError(
            "a rank of a split cannot be sent to another process",
            why="all ranks of this split draw on one run, which lives here",
            try_='ds.streaming_split(n, job_name="train") in every process',
        )

    def __repr__(self) -> str:
        return f"Part(rank={self.rank}, n={self.n})"


def parts(
    n: Any,
    begin: Callable[[], Elements],
    equal: str | None,
    watchdog_s: float,
    *,
    rank: int | None = None,
    address: str | None = None,
) -> list[RankShare]:
    """Return one iterable for each of ``n`` ranks; ``begin`` opens an iteration of the pipeline."""
    if rank is not None or address is not None:
        raise PlanError(
            f"rank={rank!r} without job_name="
            if rank is not None
            else "address= without job_name=",
            why="ranks of one process come as a list; only processes are one rank each",
            try_='streaming_split(n)[rank], or job_name="train" in every process',
        )
    split = opened(n, begin, equal=equal, watchdog_s=watchdog_s)
    return [RankShare(rank, split.n, partial(split.join, rank)) for rank in range(split.n)]


def member(
    job_name: str,
    begin: Callable[[], Elements],
    equal: str | None,
    watchdog_s: float,
    *,
    n: int | None,
    rank: int | None,
    address: str | None,
    epoch: int | None,
) -> RankShare:
    """Return the iterable of this process: rank 0 runs the pipeline, others request elements.

    ``n`` and ``rank`` are read from the environment if None; ``address`` is rank 0's "host:port",
    or None if all ranks are on this host.
    """
    place = place_of(job_name, n, rank, address)
    split = opened(place.n, begin, equal=equal, watchdog_s=watchdog_s)
    if place.rank:
        link = RankConnection(place, epoch, watchdog_s)
        return RankShare(place.rank, place.n, partial(FarSeat, link), link.close)
    server = Server(split, place, epoch)
    return RankShare(0, place.n, partial(split.join, 0), server.close)


def opened(
    n: Any, begin: Callable[[], Elements], *, equal: str | None, watchdog_s: float
) -> RankSplit:
    """Return a split into ``n`` ranks; raise PlanError for an invalid ``n`` or ``equal``."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise PlanError(
            f"streaming_split needs a number of ranks, got {n!r}",
            why="each rank gets every n-th element, so there is at least one",
            try_=".streaming_split(2)",
        )
    if equal not in DEALS:
        raise PlanError(
            f"equal={equal!r} has no meaning",
            why='None loses nothing, "drop" cuts all ranks to the shortest, "pad" repeats the last',
            try_='equal="drop"',
        )
    return RankSplit(n, begin, equal=equal, watchdog_s=watchdog_s)
