"""The crew of a run on a Dask cluster submits slices, tracks results, and survives lost workers.

The scheduling core decides what runs next within memory and slots. Each slice, or several small
slices together, is an ordinary Dask task on a worker that the crew chooses; a ``Ticket`` represents
the task. The result of a task stays on its worker until the consumer, or a task of a later stage,
fetches it from there. If a worker is lost, Dask reruns its tasks and recomputes its results; tasks
that Dask gives up are retried here. All waiting is done on the event loop of the client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import weakref
from collections.abc import Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, cast

import distributed

from dml.cluster.dask_task import RemotePartition, ResultFetcher, Ticket, ended, touched, under_way
from dml.cluster.job_broadcast import Cargo
from dml.cluster.placement import Places
from dml.cluster.worker_monitor import Hub, lost
from dml.cluster.worker_state import MADE_AGAIN, Shipment, ShippedArgument, TaskNote
from dml.errors import DmlError, InternalError, WorkerLostError, worded
from dml.exec.delivery.meter import Tallies
from dml.exec.drivers.remote import RemoteCrew
from dml.exec.process.exception_codec import received
from dml.exec.process.partition_codec import Parcel, unpack
from dml.exec.process.shared_memory import UnopenedError
from dml.exec.scheduler.messages import Resources, Run
from dml.exec.scheduler.policy import Seq
from dml.exec.tasks.job import Job
from dml.exec.tasks.replay_check import not_again
from dml.exec.tasks.slices import DriverLoop, Failure, NotSentError, Outcome

AHEAD = 3  # partitions that are fetched before the consumer asks for them
MOST_LOSSES = 3  # of the workers of one slice, before the slice is given up


class NoWorkerError(Exception):
    """Raised when Dask dropped a task, as its workers were gone, silent or out of memory."""

    def __str__(self) -> str:
        return "its workers were gone, silent, or had their memory full for a time, more than once"


class Losing:
    """Counts how often the slices of each task were lost.

    A loss counts twice if Dask reports that several workers died, though some of them may have died
    because of another slice.
    """

    def __init__(self) -> None:
        self._losses: dict[Seq, int] = {}

    def lose(self, seq: Seq, error: BaseException) -> bool:
        """Count a loss of task ``seq``; return True if it was lost too often for a retry."""
        several = isinstance(error, distributed.KilledWorker) and error.allowed_failures > 0
        weight = 2 if several else 1
        losses = self._losses[seq] = self._losses.get(seq, 0) + weight
        return losses > MOST_LOSSES

    def suspects(self, seq: Seq) -> bool:
        """Return True if the slices of task ``seq`` may have killed workers."""
        return seq in self._losses

    def apart(self, seq: Seq) -> bool:
        """Return True if task ``seq`` was lost repeatedly, so that it is retried alone on a worker.

        If several tasks were on a worker that died, it is unknown which one killed it. Retried
        together, all of them would be lost again.
        """
        return self._losses.get(seq, 0) > 1

    def clear(self, seq: Seq) -> None:
        """Forget the losses of a task, as one of its slices has succeeded."""
        self._losses.pop(seq, None)


def to_dml_error(error: BaseException, where: str) -> DmlError:
    """Return the error for the user, at ``where``, if Dask gave up a task with ``error``."""
    if isinstance(error, DmlError):
        return error
    if isinstance(error, distributed.KilledWorker | NoWorkerError):
        found: DmlError = WorkerLostError(
            "workers died over one piece of work",
            at=where,
            why=str(error),
            try_="the logs of those workers; memory is the usual reason",
        )
    else:
        found = InternalError(
            "a task could not be run on the cluster",
            at=where,
            why=worded(error),
            try_="the same versions of dml and its dependencies on all workers",
        )
    found.__cause__ = error
    return found


class DaskCrew(RemoteCrew):
    """The crew of remote workers on Dask, which stores locations of partitions, not their rows.

    Tickets are used on the client's event loop only.
    """

    def __init__(
        self, loop: DriverLoop, job: Job, tallies: Tallies, hub: Hub, places: Places
    ) -> None:
        super().__init__(loop, job, tallies)
        self.hub, self.places = hub, places
        self.losing = Losing()
        self.wait_s = self.silent_s = 60.0
        self.limit_bytes = loop.core.state.limit_bytes
        self.queue: list[Run] = []
        # whether results may be lent memory, whether messages are being handled, tasks in Dask
        self.lends, self.gathering, self.flying = True, False, 0
        self.tickets: dict[int, Ticket] = {}  # tickets without a result yet
        self.live: weakref.WeakSet[Ticket] = weakref.WeakSet()
        self.cargo = Cargo(hub, self.name, job)
        self.tasks: set[asyncio.Task[None]] = set()
        self.fetching = ResultFetcher(hub, self._begin, self._unfetched, self._used, self._again)

    # ------------------------------------------------------- handing out; any thread, locked

    def hand_out(self, runs: Iterable[Run]) -> None:
        """Queue slices, and assign them to workers once all pending messages have been handled."""
        self.queue += runs
        few = len(self.queue) < self.places.depth
        if not (self.gathering or (few and self.flying >= self.places.full)):
            self._flush()
        for seq in islice(self.loop.offers, AHEAD):
            stored = self.loop.stored.get(seq)
            held = stored.value if isinstance(stored, Outcome) else None
            if isinstance(held, RemotePartition) and held.parcel is None:
                self.fetching.start(held.ticket)

    def _flush(self) -> None:
        groups: dict[tuple[str, int], list[Run]] = {}
        self.places.look_again()
        waiting, self.queue = filter(self._due, self.queue), []
        for run in sorted(waiting, key=lambda run: not self.losing.apart(run.seq)):
            if (place := self._place(run)) is None:
                self.queue.append(run)
                continue
            self.places.take(place, self.loop.core.demands[run.stage])
            groups.setdefault((place, run.stage), []).append(run)
        for (place, _), runs in groups.items():
            for some in self._cut(place, runs):
                self.flying += 1
                self.hub.call(self._submit, self._ticket(place, some))

    def _due(self, run: Run) -> bool:
        """Return False if slice ``run`` has ended, for example by another attempt at it."""
        task = self.loop.core.active.get(run.seq)
        return task is not None and task.k == run.k

    def _place(self, run: Run) -> str | None:
        """Return the address of the worker for ``run``, or None if ``run`` has to wait.

        A slice of a parked generator goes to the worker of that generator, even if the worker is
        busy. A second attempt does not go to a worker where a late attempt is still under way.
        """
        home, demand = self.homes.get(run.seq), self.loop.core.demands[run.stage]
        if home in self.places.members:
            return None if home in self.places.apart else home
        if self.losing.apart(run.seq):
            return self.places.alone(demand)
        if self.race.under_way(run):
            late = {ticket.place for ticket in self.tickets.values() if run in ticket.runs}
            return self.places.choose(demand, (), late)
        liked = [self.loop.argument(run).ticket.worker] if run.stage else []
        return self.places.choose(demand, liked)

    def _cut(self, place: str, runs: list[Run]) -> list[list[Run]]:
        """Divide slices into tasks; late slices, and those that may kill a worker, are separate."""
        rest = [r for r in runs if not (self.losing.suspects(r.seq) or self.race.under_way(r))]
        alone = [[run] for run in runs if run not in rest]
        return alone + self.places.bundles(place, rest)

    def _ticket(self, place: str, runs: list[Run]) -> Ticket:
        late = self.race.under_way(runs[0])
        bound = [place] if late else self._bound(place, runs)
        ticket = Ticket(next(self.hub.tickets), place, runs, bound)
        for run in runs:
            self.begun(run)
            order = self.order(run)
            if self.homes.get(run.seq) == place:
                ticket.parked.add(run.seq)
            if isinstance(held := order.argument, RemotePartition):
                if held.ticket not in ticket.sources:
                    ticket.sources.append(held.ticket)
                part = ShippedArgument(
                    ticket.sources.index(held.ticket), held.place, held.seen(run)
                )
                order = dataclasses.replace(order, argument=part)
            ticket.orders.append(order)
        return ticket

    def _bound(self, place: str, runs: list[Run]) -> list[str]:
        if any(run.seq in self.homes for run in runs) or self._once(runs):
            return [place]  # elsewhere, a parked generator or an impure call would begin again
        if any(self.losing.apart(run.seq) for run in runs):
            return [place]  # if the worker is gone, Dask would run this beside other work
        return self.places.allowed(self.loop.core.demands[runs[0].stage], place)

    # ----------------------------------------------------------------------------------- submitting

    def _submit(self, ticket: Ticket) -> None:
        """Register and submit a ticket; call this, and all methods below, on the event loop."""
        self.tickets[ticket.number] = ticket
        self._resubmit(ticket)

    def _resubmit(self, ticket: Ticket) -> None:
        if self.closing:
            return
        demand = self.loop.core.demands[ticket.runs[0].stage]
        try:
            ticket.submit(self.hub, self.cargo, demand, lends=self.lends)
        except Exception as error:  # noqa: BLE001 (a closed client, whatever it raises)
            self.fail(lost(self.hub.client, error))
            return
        self.live.add(ticket)
        self._begin(self._watch(ticket.number, ticket.future))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    # -------------------------------------------------------------------------------------- hearing

    def noted(self, note: TaskNote) -> None:
        """Handle the message from a worker that a task has ended."""
        self.lends &= not (note.strange and note.ticket in self.tickets)
        try:
            if note.shipment is not None:
                self._take(note.ticket, note.worker, note.shipment, whole=note.whole)
        except Exception as error:  # noqa: BLE001  (or the consumer would wait for ever)
            self.fail(error)

    async def _watch(self, number: int, future: Any) -> None:
        """Wait until Dask reports the end of a task, in case the worker's message is missing."""
        await ended(future)
        ticket, status = self.tickets.get(number), future.status
        if ticket is None or self.closing or ticket.future is not future:
            return
        if status == "finished":
            shipment = await self.fetching.fetched(ticket)
            self._take(number, ticket.place, shipment, whole=False)
        elif status == "error":
            self._failed(ticket, await future.exception())
        elif self.hub.client.status != "running":
            self.fail(lost(self.hub.client))
        elif self._once(ticket.runs):
            self._failed(ticket, NoWorkerError())
        else:  # a dependency is gone for good: a large job, with the worker that held it
            await self._resend(ticket)

    async def _resend(self, ticket: Ticket, refused: bytes = b"") -> bool:
        """Submit a ticket again, after resending the job; return False if that has failed before.

        ``refused`` is the digest of a job that a worker could not deserialize.
        """
        try:
            sent = await self.cargo.again(ticket.generation, refused=refused)
        except DmlError as error:
            self._failed(ticket, error)
            return True
        except OSError as error:
            self.fail(lost(self.hub.client, error))
            return True
        if sent:
            self._submit(ticket)
        return sent

    def _take(self, number: int, worker: str, shipment: Shipment, *, whole: bool) -> None:
        ticket = self.tickets.pop(number, None)
        if ticket is None or self.closing:
            return
        ticket.worker = worker
        if shipment.misfit:
            self._begin(self._misfit(ticket, shipment))
            return
        self._left(ticket)
        for place, (run, answer) in enumerate(zip(ticket.runs, shipment.answers, strict=True)):
            self.losing.clear(run.seq)
            if answer.parcel is not None:
                self.places.lasted(run.stage, answer.seconds)
                if not answer.parcel.outcome.done:
                    self.cargo.stay(worker)  # for its parked generator
                parcel = answer.parcel if whole else None
                held = RemotePartition(answer.parcel.outcome, ticket, place, parcel, answer.digest)
                answer = dataclasses.replace(answer, parcel=cast("Parcel", held))  # noqa: PLW2901
            self.answered(run, worker, answer)
        if whole and self._last(ticket):
            ticket.drop()
        with self.lock:
            if self.places.deepened():
                self._resize()
        self._gathered()

    def _left(self, ticket: Ticket) -> None:
        with self.lock:
            self.gathering = True
            self.flying -= 1
            demand = self.loop.core.demands[ticket.runs[0].stage]
            self.places.leave(ticket.place, demand, len(ticket.runs))

    def _gathered(self) -> None:
        """Assign further slices, after all messages of a ticket are handled."""
        with self.lock:
            self.gathering = False
            self.proceed(tuple)
            self.wake()

    def _last(self, ticket: Ticket) -> bool:
        return ticket.runs[0].stage == len(self.loop.core.demands) - 1

    def _failed(self, ticket: Ticket, error: BaseException) -> None:
        """Handle a ticket whose task Dask gave up: retry its slices, or end them as failed."""
        if isinstance(error, NotSentError):
            self._again(ticket)
            return
        self.tickets.pop(ticket.number, None)
        ticket.drop()
        self._left(ticket)
        if isinstance(error, distributed.KilledWorker):
            self.hub.died(error.last_worker.address)
        if isinstance(error, UnopenedError):  # Dask released the copy that was lent
            self.lends, error = False, NoWorkerError()
            for source in ticket.sources:
                self._elsewhere(source)
        for run in ticket.runs:
            final = self.losing.lose(run.seq, error)
            with self.lock:
                self.homes.pop(run.seq, None)
            if self.counts(run, lost=True):
                found = to_dml_error(error, self.worked_on(run, -1))
                self.ended(run, Failure(found, final=final), 0.0)
        self._gathered()

    async def _misfit(self, ticket: Ticket, shipment: Shipment) -> None:
        """Resend a job that a worker cannot deserialize, with functions by value, or give up."""
        if not await self._resend(ticket, shipment.refused):
            self._failed(ticket, received(shipment.misfit))

    def fail(self, error: BaseException) -> None:
        """End the run with an error; called on the event loop or by the consumer."""
        with self.lock:
            self.broken = self.broken or error
            self.wake()

    def joined(self, gone: set[str]) -> None:
        """Handle a change of the workers; ``gone`` are the addresses of workers that left."""
        for worker in gone:
            self.cargo.left(worker)
            self.moved_out(worker)
        with self.lock:
            # first, or failed slices would go back there
            self.places.welcome(self.hub.members, others=bool(self.hub.silent))
        for ticket in list(self.tickets.values()):
            if set(ticket.bound) & gone and not self.hub.there(ticket.bound):
                self._failed(ticket, NoWorkerError())  # Dask would wait for one of them
        with self.lock:
            self._resize()

    async def _without_silent(self) -> None:
        """Resubmit the tasks of silent workers, and those whose results are stored there.

        Dask itself would wait for these workers. This is repeated at every check: silent workers
        seem idle to Dask, which lets them steal tasks.
        """
        doing, having = await self.hub.at_silent()
        waiting = {ticket.seat for ticket in self.live if under_way(ticket)}
        if self.cargo.lies_in(having):
            having |= waiting  # seats that do not exist yet cannot be used
        if waiting & (doing | having):
            await self.cargo.again(self.cargo.generation)
        for ticket in touched(self.live, doing, having):
            if ticket.number in self.tickets and ticket.future.key in doing:
                self._failed(ticket, NoWorkerError())
            elif not self.closing:
                self._elsewhere(ticket)

    async def look(self) -> None:
        """Resubmit tasks that Dask has forgotten, as it does after a time without workers."""
        if self.hub.silent:
            await self._without_silent()
        wanted = [each for each in self.live if each.future is not None and self._awaited(each)]
        keys = {key for t in wanted for each in t.needed() for key in (each.future.key, each.seat)}
        if not keys:
            return
        states = await self.hub.states(keys)
        for ticket in wanted:
            if ticket.future is None or self.closing or not ticket.forgotten(states):
                continue
            await self.cargo.again(ticket.generation)
            for each in list(ticket.needed()):
                if each.number in self.tickets:
                    self._failed(each, NoWorkerError())
                elif states.get(each.future.key) != "memory":
                    self._elsewhere(each)

    def _awaited(self, ticket: Ticket) -> bool:
        coming = ticket.fetched
        return ticket.number in self.tickets or (coming is not None and not coming.done())

    def _once(self, runs: Sequence[Run]) -> str:
        """Return the operator whose slices Dask must not repeat; "" if Dask may repeat these."""
        return self.loop.core.demands[runs[0].stage].once

    def _elsewhere(self, ticket: Ticket) -> None:
        demand = self.loop.core.demands[ticket.runs[0].stage]
        if demand.once:
            where = self.worked_on(ticket.runs[0], -1)
            gone = WorkerLostError("a partition was lost with its worker", at=where)
            gone.why = f"only {ticket.worker} had it"
            self.fail(not_again(demand.once, gone))
            return
        with self.lock:
            if ticket.place not in self.places.taking:
                self._move(ticket, self.places.choose(demand, ()) or ticket.place)
            ticket.bound = self._bound(ticket.place, ticket.runs)
        ticket.worker = ticket.place
        self._resubmit(ticket)

    def _again(self, ticket: Ticket) -> None:
        """Resubmit a ticket that Dask gave up, or those of its sources that caused this.

        Dask recomputes a lost result from the orders of its first submission. If the generator was
        parked then, these orders lack the task's argument: the task raises NotSentError, and so do
        all tasks that need its result.
        """
        given_up = [each for each in ticket.needed() if each.future.status == "error"]
        for each in given_up or [ticket]:
            self._elsewhere(each)

    def _move(self, ticket: Ticket, place: str) -> None:
        if ticket.number in self.tickets:  # it is counted as load of its current worker
            for run in ticket.runs:
                self.places.leave(ticket.place, self.loop.core.demands[run.stage])
                self.places.take(place, self.loop.core.demands[run.stage])
        ticket.place = place

    def _resize(self) -> None:
        self.proceed(lambda: self.loop.take(Resources(self.places.slots(), self.limit_bytes)))
        self.wake()

    # ------------------------------------------------------------------------------------- fetching

    def opened(self, outcome: Outcome) -> Outcome:
        """Return ``outcome`` with its rows, fetched from the worker; for the consumer's thread."""
        if not isinstance(held := outcome.value, RemotePartition):
            return outcome
        return unpack(held.parcel or self._arrived(held))

    def _arrived(self, held: RemotePartition) -> Parcel:
        found = self.fetching.arrived(held, self._over)
        if found.digest != held.digest:
            raise self.differing(held.ticket.runs[held.place], MADE_AGAIN)
        if found.error:  # it was lost, and making it again fails now
            raise received(found.error)
        if found.parcel is None:
            raise InternalError("a partition came back empty", why=f"task {held.ticket.runs}")
        return found.parcel

    def _over(self) -> bool:
        """Return True once the consumer has stopped; raise the error that ended the run, if any."""
        if isinstance(self.broken, DmlError):
            raise self.broken
        return self.closing

    def _used(self, ticket: Ticket) -> None:
        """Release a ticket of the last stage, since its results have been fetched."""
        if self._last(ticket):
            ticket.drop()

    def _unfetched(self, ticket: Ticket, error: Exception) -> DmlError:
        if isinstance(error, distributed.KilledWorker | DmlError):
            return to_dml_error(error, self.worked_on(ticket.runs[0], -1))
        return lost(self.hub.client, error)

    def leave(self) -> None:
        """Leave the hub and release all tasks, without blocking: this happens on the event loop."""
        self.hub.call(self._leave)

    def _leave(self) -> None:
        self.hub.remove(self)
        for task in list(self.tasks):
            task.cancel()
        self.tickets.clear()
        for ticket in list(self.live):
            ticket.drop()
        self.cargo.drop()
        self.clean()
