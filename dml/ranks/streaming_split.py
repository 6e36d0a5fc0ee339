"""Splits are opened here: iterations shared by ranks of this process, or of several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from dml.errors import PlanError
from dml.exec.delivery.iterator import Elements
from dml.ranks.deal import DEALS
from dml.ranks.rank_client import FarSeat, RankConnection
from dml.ranks.rank_iterator import RankShare
from dml.ranks.rank_server import Server
from dml.ranks.rendezvous import place_of
from dml.ranks.shared_run import RankSplit


class RankDeclaration(NamedTuple):
    """The arguments of a process of a job; None is replaced from the environment."""

    n: int | None
    rank: int | None
    job_name: str
    address: str | None
    epoch: int | None


# Elements queued for slow ranks at most, all ranks together; their bytes are bounded as well.
LAG = 1024


def parts(
    n: Any,
    begin: Callable[[], Elements],
    equal: str | None,
    watchdog_s: float,
    *,
    rank: int | None = None,
    address: str | None = None,
) -> list[RankShare]:
    """Return one iterable per rank, over the iterations that ``begin`` opens."""
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
    asked: RankDeclaration, begin: Callable[[], Elements], equal: str | None, watchdog_s: float
) -> RankShare:
    """Return the iterable of this process: rank 0 runs the pipeline, others request from it."""
    place = place_of(asked.job_name, asked.n, asked.rank, asked.address)
    split = opened(place.n, begin, equal=equal, watchdog_s=watchdog_s)
    if place.rank:
        link = RankConnection(place, asked.epoch, watchdog_s)
        return RankShare(place.rank, place.n, partial(FarSeat, link), link.close)
    server = Server(split, place, asked.epoch)
    return RankShare(0, place.n, partial(split.join, 0), server.close)


def opened(
    n: Any, begin: Callable[[], Elements], *, equal: str | None, watchdog_s: float
) -> RankSplit:
    """Return a split into ``n`` ranks; PlanError for invalid arguments."""
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
    return RankSplit(n, begin, equal=equal, lag=max(LAG, n), watchdog_s=watchdog_s)
