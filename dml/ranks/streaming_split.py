"""Open splits: iterations shared by ranks of this process, or of several.

The share of one rank is presented to its training loop as an iterable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from sys import is_finalizing
from typing import Any

from dml.errors import PlanError
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.prefetch import Element
from dml.ranks.deal import DEALS
from dml.ranks.rank_client import FarSeat, RankConnection
from dml.ranks.rank_server import Server
from dml.ranks.rendezvous import place_of
from dml.ranks.shared_run import RankSeat, RankSplit

Seat = RankSeat | FarSeat
"""A rank's seat in one run, here or in another process."""


class RankElements(Iterator[Element]):
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

    def __enter__(self) -> RankElements:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        if "_seat" in self.__dict__ and not ends():  # as in ``dml.exec.delivery.iterator``
            self._seat.leave()


class RankShare:
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

    def __enter__(self) -> RankShare:
        return self

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
