"""This file follows the cluster of a client while runs use it: who works there, what tasks tell.

There is one hub per client. It lives on the client's own event loop, in coroutines; what it hears
it hands to the crews of the runs under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import pickle
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import chain, count
from typing import Any, Protocol

import dask
import distributed

from dml.errors import DmlError, WorkerLostError
from dml.exec.cluster import ASKED, Member, _probe, member, unfit, versions_here, workers_of
from dml.exec.messages import Run
from dml.exec.places import nobody_has, unserved
from dml.exec.seat import Note
from dml.exec.silence import Silence
from dml.exec.slices import Loop

_log = logging.getLogger("dml")

WATCH_S = 1.0
PER_WORKER_S = 0.005  # asking takes the scheduler longer on large clusters
ANSWER_S = 30.0
LATE_S = 3.0  # after the first worker has answered
GROUPS = 64  # of workers that are asked together
DIRECT_S = 5.0
PAUSED = "paused"  # Dask's word for a worker whose memory is full
LISTEN_S = 5.0  # between two looks at who was heard of
# What Dask counts tasks by: groups are the first parts of keys, and all are of this span, of every
# run, since a scheduler never forgets a span.
SPAN = "dml"
DEAF = 3  # times that a scheduler may not answer in time


class Crew(Protocol):
    """What a run is told; all of it on the client's loop."""

    wait_s: float  # without any worker, until it is an error
    silent_s: float  # without a word of a worker, until its work goes to others
    loop: Loop
    queue: list[Run]  # that have no place yet

    def noted(self, note: Note) -> None:
        """A task has ended."""

    def joined(self, gone: set[str]) -> None:
        """The workers are others now; ``gone`` have left."""

    async def look(self) -> None:
        """See whether all tasks go on."""

    def fail(self, error: BaseException) -> None:
        """The cluster cannot be used any more."""


class Hub:
    """The cluster as one client sees it."""

    def __init__(self, client: distributed.Client) -> None:
        self.client = client
        self.topic = f"dml-{client.id}"
        self.members: dict[str, Member] = {}
        self.known: set[str] = set()  # those that the crews were told of
        self.full: set[str] = set()  # those that take no task, since their memory is full
        self.idle: set[str] = set()  # of those, the ones that have none in hand either
        self.silent: set[str] = set()  # those that nothing was heard of for too long
        self.strangers: set[str] = set()  # those whose memory cannot be opened here
        self.leaving: set[str] = set()  # those that end what they have begun, and then go
        self.misfits: dict[str, DmlError] = {}
        self.direct: bool | None = None
        self.tickets = count()
        self.crews: set[Crew] = set()
        self._lacking: dict[Crew, float] = {}  # since when no worker has what a run waits for
        self.staff: object = None  # who scales the cluster, once a run asks for that
        self.asked: set[asyncio.Future[Any]] = set()  # nobody else may hold them
        self._probed: set[str] = set()
        self._silence, self._listened = Silence(), -LISTEN_S
        self._watching: asyncio.Task[None] | None = None

    @staticmethod
    def of(client: distributed.Client) -> Hub:
        """The client's hub; it goes with the client."""
        hub: Hub = client.extensions.setdefault("dml", Hub(client))
        return hub

    def call(self, work: Callable[..., Any], *args: Any) -> None:
        """Do ``work`` on the client's loop, soon; from any thread, also when all ends."""
        with contextlib.suppress(RuntimeError, AttributeError):
            self.client.loop.add_callback(work, *args)

    def wait(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Do ``work`` on the client's loop, now; from any other thread."""
        sync: Callable[..., Any] = self.client.sync
        sync(work, *args)

    def submit(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The future of one task."""
        with dask.annotate(span={"name": (SPAN,), "ids": (SPAN,)}):
            return self.client.submit(work, *args, **options)

    def asking(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """``work`` under way, which ends by itself though nobody may wait for it; on the loop."""
        task = asyncio.ensure_future(work)
        self.asked.add(task)
        task.add_done_callback(self._told)
        return task

    def _told(self, task: asyncio.Future[Any]) -> None:
        self.asked.discard(task)
        if not task.cancelled():
            task.exception()  # seen, or asyncio would print it

    @property
    def closed(self) -> bool:
        """True if nothing will be heard of the cluster again."""
        return self.client.status in ("closed", "closing")

    def ask_all(self, work: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """What ``work`` gives on each worker there is, or the error; from any other thread."""
        found: dict[str, Any] = {}
        self.wait(self._ask_all, found, sorted(workers_of(self.client)), work, *args)
        return found

    async def _ask_all(
        self, found: dict[str, Any], workers: Iterable[str], work: Callable[..., Any], *args: Any
    ) -> None:
        found |= dict.fromkeys(workers, TimeoutError(f"no answer within {ANSWER_S:g} s"))
        run: Callable[..., Any] = self.client.run
        asked = [self.asking(run(work, *args, workers=[w], on_error="return")) for w in found]
        for each in (await asyncio.wait(asked, timeout=ANSWER_S))[0] if asked else ():
            found |= each.result()

    # ------------------------------------------------------------------------------------ workers

    def there(self, places: Iterable[str]) -> bool:
        """True if one of these workers can be asked for what it holds."""
        return any(place in self.members or place in self.full for place in places)

    def stuck(self, places: Iterable[str]) -> bool:
        """True if what these workers hold must be made again: they live, and do not answer."""
        return any(place in self.silent for place in places) and not self.there(places)

    def begin(self, wait_s: float) -> dict[str, Member]:
        """The workers, once there are some; PlanError for one that cannot take part."""
        try:
            self.wait(self._begin, wait_s)
        except (OSError, TimeoutError, AttributeError) as error:  # the last of a closed client
            raise lost(self.client, error) from error
        for misfit in self.misfits.values():
            raise misfit
        if not self.members:
            raise self._nobody(wait_s)
        return self.members

    def _nobody(self, wait_s: float) -> WorkerLostError:
        if self.full:
            return WorkerLostError(
                "all workers of the cluster stand still",
                at=", ".join(sorted(self.full)[:20]),
                why=f"their memory is full, and was for {wait_s:g} s",
                try_="a larger --memory-limit of the workers, or functions that keep less",
            )
        if self.silent:
            return WorkerLostError(
                "nothing is heard of the workers of the cluster",
                at=", ".join(sorted(self.silent)[:20]),
                why=f"they are there, but have been silent for more than {wait_s:g} s",
                try_="a larger worker_silent_s= if a function keeps Python's lock for so long",
            )
        return WorkerLostError(
            "the cluster has no workers",
            at=repr(self.client),
            why=f"none came within {wait_s:g} s",
            try_="`dask worker ADDRESS`, or cluster.scale(n)",
        )

    def _empty(self, seconds: float) -> None:
        for crew in list(self.crews):
            if seconds > crew.wait_s:
                crew.fail(self._nobody(crew.wait_s))

    def _unserved(self) -> None:
        """Give up runs of which a stage waits for what no worker has had for so long."""
        now, before, self._lacking = time.monotonic(), self._lacking, {}
        for crew in list(self.crews) if self.members else ():
            demand = unserved(crew.loop.core, list(crew.queue), self.members)
            if demand is not None:
                since = self._lacking[crew] = before.get(crew, now)
                if now - since > crew.wait_s:
                    crew.fail(nobody_has(demand, self.members, crew.wait_s))

    async def _begin(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            await self._refresh()
            if self.members or self.misfits or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        if self.direct is None and self.members:
            self.direct = await self._reachable(next(iter(self.members)))
        self.client.subscribe_topic(
            self.topic, self._heard
        )  # again: the scheduler may be a new one

    async def _refresh(self) -> None:
        """Ask who works there, and probe those who are new."""
        asked = self.client.scheduler.identity(n_workers=-1)
        every = (await asyncio.wait_for(asked, ANSWER_S))["workers"]
        found = {address: member(address, info) for address, info in every.items()}
        self._listen(every)
        new = [a for a in found if a not in self._probed and a not in self.silent]
        if new:
            await self._probe(found, new)
        self.misfits = {address: e for address, e in self.misfits.items() if address in found}
        self.full = {address for address, info in every.items() if info["status"] == PAUSED}
        self.idle = {address for address in self.full if not _in_hand(every[address])}
        fit = self._probed - set(self.misfits) - self.full - self.silent
        self.members = {address: each for address, each in found.items() if address in fit}

    def _listen(self, every: Mapping[str, Any]) -> None:
        self._listened = time.monotonic()
        self._silence.look({a: info["last_seen"] for a, info in every.items()}, self._listened)
        patience_s = min((crew.silent_s for crew in self.crews), default=math.inf)
        # between runs nobody becomes silent, and who was is heard again, or is not
        still = self.silent & self._silence.longer_than(LISTEN_S)
        silent = self._silence.longer_than(patience_s) if self.crews else still
        for address in silent - self.silent:
            _log.warning("nothing was heard of worker %s for %g s", address, patience_s)
        self.silent = silent

    async def _asked(self, new: list[str]) -> dict[str, Any]:
        """What is installed on workers; of some only, where others take long to answer."""
        groups = [new[i::GROUPS] for i in range(min(GROUPS, len(new)))]
        run: Callable[..., Any] = self.client.run
        asked = {self.asking(run(_probe, ASKED, workers=g, on_error="return")) for g in groups}
        done, late = await asyncio.wait(asked, timeout=ANSWER_S, return_when=FIRST_COMPLETED)
        if not done:
            raise TimeoutError("no worker answers")
        if late:
            done |= (await asyncio.wait(late, timeout=LATE_S))[0]
        return {address: there for each in done for address, there in each.result().items()}

    async def _probe(self, found: Mapping[str, Member], new: list[str]) -> None:
        there, here = await self._asked(new), versions_here()
        for address in new:
            # a connection that broke says nothing: the worker is asked again if it still lives
            if address in there and not isinstance(there[address], OSError):
                self._probed.add(address)
                error = unfit(found[address], there[address], here)
                if error is not None:
                    self.misfits[address] = error

    async def _reachable(self, address: str) -> bool:
        """True if this process can talk to workers without the scheduler in between."""
        try:
            await asyncio.wait_for(self.client.rpc(address).identity(), DIRECT_S)
        except (OSError, TimeoutError):
            return False
        return True

    async def _watch(self) -> None:
        deaf, empty_since = 0, time.monotonic()
        while self.crews and not self.closed:
            await asyncio.sleep(max(WATCH_S, PER_WORKER_S * len(self.members)))
            before = set(self.known)
            try:
                await self._look()
                await self._tell(before)
                deaf = 0
            except Exception as error:  # noqa: BLE001 (workers go while they are asked)
                deaf += 1
                _log.debug("the cluster could not be looked at", exc_info=True)
                if deaf == DEAF or self.client.status != "running":
                    self._fail(error)
            if self.members or self.full - self.idle:
                empty_since = time.monotonic()
            self._empty(time.monotonic() - empty_since)
            self._unserved()

    async def _tell(self, before: set[str]) -> None:
        """Tell the crews who is there, and let them look after their tasks."""
        self.known = set(self.members)
        for crew in list(self.crews):
            if before != self.known:
                crew.joined(before - self.known)
            if self.known:
                await crew.look()

    def died(self, address: str) -> None:
        """Dask says that a worker has gone, before anybody here has looked; on the loop."""
        if self.members.pop(address, None) is not None:
            self.known.discard(address)
            for crew in list(self.crews):
                crew.joined({address})

    async def _look(self) -> None:
        threads = await asyncio.wait_for(self.client.scheduler.ncores_running(), ANSWER_S)
        known = {address: each.threads for address, each in self.members.items()}
        late = time.monotonic() - self._listened > max(LISTEN_S, 20 * PER_WORKER_S * len(threads))
        if (
            self.full
            or late
            or {a: n for a, n in threads.items() if a not in self.misfits} != known
        ):
            await self._refresh()
            self.members = {a: each for a, each in self.members.items() if a in threads}

    async def states(self, keys: Iterable[Any]) -> dict[Any, str | None]:
        """What Dask does about tasks; ``PAUSED`` for those on workers that will not do them.

        Dask leaves a task where it has sent it, also on a worker whose memory is full for good.
        """
        found: dict[Any, str | None] = await self.client.scheduler.get_task_status(keys=list(keys))
        if self.idle:
            sent = await self.client.scheduler.processing(workers=list(self.idle))
            found.update(dict.fromkeys(found.keys() & {*chain(*sent.values())}, PAUSED))
        return found

    async def at_silent(self) -> tuple[set[Any], set[Any]]:
        """The keys of what silent workers should do, and of what lies there."""
        there, scheduler = list(self.silent), self.client.scheduler
        doing, having = await asyncio.gather(
            scheduler.processing(workers=there), scheduler.has_what(workers=there)
        )
        return {*chain(*doing.values())}, {*chain(*having.values())}

    # -------------------------------------------------------------------------------------- crews

    def add(self, crew: Crew) -> None:
        """Tell ``crew`` what is heard from now on; on the loop."""
        self.crews.add(crew)
        gone, self.known = self.known - set(self.members), set(self.members)
        for each in self.crews:
            each.joined(gone)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    def remove(self, crew: Crew) -> None:
        """Tell ``crew`` nothing any more; on the loop."""
        self.crews.discard(crew)
        if not self.crews and self._watching is not None:
            self._watching.cancel()
            self._watching = None
            if not self.closed:
                self.asking(self.client.run_on_scheduler(_newest_groups))

    def _heard(self, event: tuple[float, bytes]) -> None:
        note = pickle.loads(event[1])  # noqa: S301 (from a worker of one of our runs)
        for crew in list(self.crews):
            crew.noted(note)

    def _fail(self, cause: BaseException) -> None:
        for crew in list(self.crews):
            crew.fail(lost(self.client, cause))


def _newest_groups(dask_scheduler: Any) -> None:
    """Have the span of all runs forget the groups of earlier ones, which the scheduler did."""
    spans = dask_scheduler.extensions.get("spans")
    for span in () if spans is None else spans.find_by_tags(SPAN):
        groups = sorted(span.groups, key=lambda each: each.start)
        span.groups.intersection_update({each.name: each for each in groups}.values())


_newest_groups.__module__ = "__main__"  # sent by value: a scheduler may not have dml


def _in_hand(info: Mapping[str, Any]) -> int:
    """Tasks that a worker is at, by its own last word."""
    counts: Mapping[str, int] = info["metrics"].get("task_counts", {})
    return counts.get("executing", 0)


def lost(client: distributed.Client, cause: BaseException | None = None) -> WorkerLostError:
    """The connection to the scheduler is gone."""
    closed = client.status in ("closed", "closing")
    error = WorkerLostError(
        "the run lost its cluster",
        at=repr(client),
        why="its client was closed" if closed else str(cause or "the scheduler does not answer"),
        try_="iterate again, or go on from state_dict(): what was delivered is known there",
    )
    error.__cause__ = cause
    return error
