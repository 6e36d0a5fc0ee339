"""Monitor the cluster of a client while runs use it: its workers, and messages of tasks.

There is one ``Hub`` for each client. It runs in coroutines on the client's event loop, and passes
events to the crews of the active runs.
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

from dml.cluster.cluster import (
    ASKED,
    ClusterWorker,
    _probe,
    member,
    unfit,
)
from dml.cluster.placement import nobody_has, unserved
from dml.cluster.worker_state import TaskNote
from dml.errors import DmlError, WorkerLostError
from dml.exec.scheduler.messages import Run
from dml.exec.tasks.slices import DriverLoop

STEP_S = 10.0  # most seconds counted between two looks: this process may have paused itself


class Silence:
    """Measures how long each worker has been silent, by the heartbeats that the scheduler got.

    Two clocks are used, and never compared. By the scheduler's clock, a worker was silent while
    others were heard later. By the local clock, it was silent while its last heartbeat did not
    change; the time between two calls of ``look`` counts as at most ``STEP_S`` seconds.
    """

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._quiet_s: dict[str, float] = {}
        self._looked = 0.0

    def look(self, heard: Mapping[str, float], now: float) -> None:
        """Record the last heartbeat of each worker, ``heard`` by the scheduler's clock.

        ``now`` is the time of this record by the local clock.
        """
        passed = min(STEP_S, now - self._looked)
        newest = max(heard.values(), default=0.0)
        still = {worker for worker, at in heard.items() if self._heard.get(worker) == at}
        self._quiet_s = {
            worker: max(newest - at, self._quiet_s[worker] + passed if worker in still else 0.0)
            for worker, at in heard.items()
        }
        self._heard, self._looked = dict(heard), now

    def longer_than(self, seconds: float) -> set[str]:
        """Return the workers that have been silent for more than ``seconds``."""
        return {worker for worker, quiet_s in self._quiet_s.items() if quiet_s > seconds}


_log = logging.getLogger("dml")

WATCH_S = 1.0
PER_WORKER_S = 0.005  # requests take the scheduler longer on large clusters
ANSWER_S = 30.0
LATE_S = 3.0  # seconds to wait for others after the first worker has answered
GROUPS = 64  # most groups of workers that are queried together
DIRECT_S = 5.0
PAUSED = "paused"  # Dask's status of a worker whose memory is full
LISTEN_S = 5.0  # seconds between two checks of heartbeats
# Dask counts tasks by groups (first parts of keys) and spans: all tasks of every run are of this
# span, since a scheduler never forgets a span.
SPAN = "dml"
DEAF = 3  # failed queries of the scheduler that end a run


class MonitoredRun(Protocol):
    """The interface of a run for the hub, which calls the methods on the client's event loop."""

    wait_s: float  # seconds without any worker after which the run fails
    silent_s: float  # seconds of silence after which a worker's tasks go to other workers
    loop: DriverLoop
    queue: list[Run]  # slices without a worker yet

    def noted(self, note: TaskNote) -> None:
        """Handle the message from a worker that a task has ended."""

    def joined(self, gone: set[str]) -> None:
        """Handle a change of the workers; ``gone`` are the addresses of workers that left."""

    async def look(self) -> None:
        """Check that all tasks make progress, and resubmit those that do not."""

    def fail(self, error: BaseException) -> None:
        """End the run with ``error``, since the cluster cannot be used any more."""


class Hub:
    """The cluster as one client sees it: the workers by address, and the runs that use them."""

    def __init__(self, client: distributed.Client) -> None:
        self.client = client
        self.topic = f"dml-{client.id}"
        self.members: dict[str, ClusterWorker] = {}
        self.known: set[str] = set()  # workers that were reported to the crews
        self.full: set[str] = set()  # workers that take no task, since their memory is full
        self.idle: set[str] = set()  # workers of ``full`` that run no task either
        self.silent: set[str] = set()  # workers without a heartbeat for too long
        self.strangers: set[str] = set()  # workers whose shared memory cannot be opened here
        self.leaving: set[str] = set()  # workers that finish their tasks, and then leave
        self.misfits: dict[str, DmlError] = {}
        self.direct: bool | None = None
        self.tickets = count()
        self.crews: set[MonitoredRun] = set()
        # time since which no worker has had the resources for a run
        self._lacking: dict[MonitoredRun, float] = {}
        self.staff: object = None  # the Staff that scales the cluster, if a run requests that
        self.asked: set[asyncio.Future[Any]] = set()  # keeps references to running requests
        self._probed: set[str] = set()
        self._silence, self._listened = Silence(), -LISTEN_S
        self._watching: asyncio.Task[None] | None = None

    @staticmethod
    def of(client: distributed.Client) -> Hub:
        """Return the hub of ``client``, which is created once and lives as long as the client."""
        hub: Hub = client.extensions.setdefault("dml", Hub(client))
        return hub

    def call(self, work: Callable[..., Any], *args: Any) -> None:
        """Schedule ``work`` on the client's event loop; for any thread, also during shutdown."""
        with contextlib.suppress(RuntimeError, AttributeError):
            self.client.loop.add_callback(work, *args)

    def wait(self, work: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Run ``work`` on the event loop and return its result; for any thread but the loop's."""
        sync: Callable[..., Any] = self.client.sync
        return sync(work, *args)

    def submit(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Submit one task, and return its Dask future."""
        with dask.annotate(span={"name": (SPAN,), "ids": (SPAN,)}):
            return self.client.submit(work, *args, **options)

    def asking(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Start ``work`` on the event loop; return its task, which the caller need not await."""
        task = asyncio.ensure_future(work)
        self.asked.add(task)
        task.add_done_callback(self._request_done)
        return task

    def _request_done(self, task: asyncio.Future[Any]) -> None:
        self.asked.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio would print it

    @property
    def closed(self) -> bool:
        """True if the client is closed or closing."""
        return self.client.status in ("closed", "closing")

    def ask(
        self,
        workers: Iterable[str],
        work: Callable[..., Any],
        *args: Any,
        within_s: float = ANSWER_S,
    ) -> dict[str, Any]:
        """Run ``work`` on ``workers``; return results or errors by address. Not on the loop."""
        found: dict[str, Any] = self.wait(self._ask, sorted(workers), work, args, within_s)
        return found

    async def _ask(
        self, workers: list[str], work: Callable[..., Any], args: Iterable[Any], within_s: float
    ) -> dict[str, Any]:
        run: Callable[..., Any] = self.client.run
        asked = {
            self.asking(run(work, *args, workers=[address], on_error="return")): address
            for address in workers
        }
        late = TimeoutError(f"no answer within {within_s:g} s")
        found: dict[str, Any] = dict.fromkeys(workers, late)
        for each in (await asyncio.wait(asked, timeout=within_s))[0] if asked else ():
            found[asked[each]] = each.exception() or each.result().get(asked[each], late)
        return found

    # ------------------------------------------------------------------------------------ workers

    def there(self, places: Iterable[str]) -> bool:
        """Return True if one of the workers ``places`` can answer requests for results."""
        return any(place in self.members or place in self.full for place in places)

    def stuck(self, places: Iterable[str]) -> bool:
        """Return True if none of the workers ``places`` can answer, and one of them is silent.

        Then the results there must be recomputed elsewhere.
        """
        return any(place in self.silent for place in places) and not self.there(places)

    def begin(self, wait_s: float) -> dict[str, ClusterWorker]:
        """Wait for usable workers, and return them by address.

        Raise the error of an unfit worker, or WorkerLostError if none is usable in ``wait_s``.
        """
        try:
            self.wait(self._begin, wait_s)
        except (OSError, TimeoutError, AttributeError) as error:  # AttributeError: a closed client
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
        """Fail the runs with a waiting stage whose resources no worker has had for too long."""
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
        # subscribe again: the scheduler may be a new one
        self.client.subscribe_topic(self.topic, self._heard)

    async def _refresh(self) -> None:
        """Request the list of workers from the scheduler, and check the versions of new workers."""
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
        # between runs no worker becomes silent, and silent ones may recover
        still = self.silent & self._silence.longer_than(LISTEN_S)
        silent = self._silence.longer_than(patience_s) if self.crews else still
        for address in silent - self.silent:
            _log.warning("nothing was heard of worker %s for %g s", address, patience_s)
        self.silent = silent

    async def _query_versions(self, new: list[str]) -> dict[str, Any]:
        """Return the versions of packages on ``new`` workers, without those that answer late."""
        groups = [new[i::GROUPS] for i in range(min(GROUPS, len(new)))]
        run: Callable[..., Any] = self.client.run
        asked = {self.asking(run(_probe, ASKED, workers=g, on_error="return")) for g in groups}
        done, late = await asyncio.wait(asked, timeout=ANSWER_S, return_when=FIRST_COMPLETED)
        if not done:
            raise TimeoutError("no worker answers")
        if late:
            done |= (await asyncio.wait(late, timeout=LATE_S))[0]
        return {address: there for each in done for address, there in each.result().items()}

    async def _probe(self, found: Mapping[str, ClusterWorker], new: list[str]) -> None:
        there, here = await self._query_versions(new), _probe(ASKED)
        for address in new:
            # a broken connection is no answer: the worker is probed again if it is still listed
            if address in there and not isinstance(there[address], OSError):
                self._probed.add(address)
                error = unfit(found[address], there[address], here)
                if error is not None:
                    self.misfits[address] = error

    async def _reachable(self, address: str) -> bool:
        """Return True if this process can connect to workers directly."""
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
                    for crew in list(self.crews):
                        crew.fail(lost(self.client, error))
            if self.members or self.full - self.idle:
                empty_since = time.monotonic()
            self._empty(time.monotonic() - empty_since)
            self._unserved()

    async def _tell(self, before: set[str]) -> None:
        """Report the current workers to all crews; ``before`` are those that were reported last.

        Then let the crews check their tasks.
        """
        self.known = set(self.members)
        for crew in list(self.crews):
            if before != self.known:
                crew.joined(before - self.known)
            if self.known:
                await crew.look()

    def died(self, address: str) -> None:
        """Handle Dask's report that a worker is gone, before the next query; on the event loop."""
        if self.members.pop(address, None) is not None:
            self.known.discard(address)
            for crew in list(self.crews):
                crew.joined({address})

    async def _look(self) -> None:
        threads = await asyncio.wait_for(self.client.scheduler.ncores_running(), ANSWER_S)
        known = {address: each.threads for address, each in self.members.items()}
        late = time.monotonic() - self._listened > max(LISTEN_S, 20 * PER_WORKER_S * len(threads))
        fit = {a: n for a, n in threads.items() if a not in self.misfits}
        if self.full or late or fit != known:
            await self._refresh()
            self.members = {a: each for a, each in self.members.items() if a in threads}

    async def states(self, keys: Iterable[Any]) -> dict[Any, str | None]:
        """Return Dask's state of each task; ``PAUSED`` if its worker does not run tasks.

        Dask never reassigns a task that it has sent, even if the worker's memory stays full.
        """
        found: dict[Any, str | None] = await self.client.scheduler.get_task_status(keys=list(keys))
        if self.idle:
            sent = await self.client.scheduler.processing(workers=list(self.idle))
            found.update(dict.fromkeys(found.keys() & {*chain(*sent.values())}, PAUSED))
        return found

    async def at_silent(self) -> tuple[set[Any], set[Any]]:
        """Return the keys of tasks assigned to silent workers, and of results stored there."""
        there, scheduler = list(self.silent), self.client.scheduler
        doing, having = await asyncio.gather(
            scheduler.processing(workers=there), scheduler.has_what(workers=there)
        )
        return {*chain(*doing.values())}, {*chain(*having.values())}

    # -------------------------------------------------------------------------------------- crews

    def add(self, crew: MonitoredRun) -> None:
        """Report events to ``crew`` from now on; call this on the event loop."""
        self.crews.add(crew)
        gone, self.known = self.known - set(self.members), set(self.members)
        for each in self.crews:
            each.joined(gone)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    def remove(self, crew: MonitoredRun) -> None:
        """Stop reporting events to ``crew``; call this on the event loop."""
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


def _newest_groups(dask_scheduler: Any) -> None:
    """Remove the task groups of earlier runs from Dask's span: the scheduler forgot them."""
    spans = dask_scheduler.extensions.get("spans")
    for span in () if spans is None else spans.find_by_tags(SPAN):
        groups = sorted(span.groups, key=lambda each: each.start)
        span.groups.intersection_update({each.name: each for each in groups}.values())


_newest_groups.__module__ = "__main__"  # sent by value: a scheduler may not have dml


def _in_hand(info: Mapping[str, Any]) -> int:
    """Return the number of tasks that a worker is running, according to its last heartbeat."""
    counts: Mapping[str, int] = info["metrics"].get("task_counts", {})
    return counts.get("executing", 0)


def lost(client: distributed.Client, cause: BaseException | None = None) -> WorkerLostError:
    """Return the error for a lost connection to the scheduler."""
    closed = client.status in ("closed", "closing")
    error = WorkerLostError(
        "the run lost its cluster",
        at=repr(client),
        why="its client was closed" if closed else str(cause or "the scheduler does not answer"),
        try_="iterate again, or go on from state_dict(): what was delivered is known there",
    )
    error.__cause__ = cause
    return error
