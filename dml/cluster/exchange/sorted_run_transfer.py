"""Store sorted runs on the workers of a Dask cluster: written by one worker, read by any.

All runs of one operator are an *exchange*. A worker has one folder for an exchange, its *shelf*,
which is created with the first run below ``spill_dir`` or Dask's own folder of the worker. It is
removed when the operator ends, when the worker is closed, and when the scheduler no longer knows
the exchange's lease: a Dask key that the client holds, so that the lease ends with the client. Runs
are not part of Dask's data, which Dask moves or spills. A task that needs a run reads the file if
the disk is visible to its worker, and otherwise requests batches from the worker that has the run.
Runs are never copied; lost runs are written again by their tasks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from distributed import get_worker
from distributed.utils import sync

from dml.cluster.dask_driver import met
from dml.cluster.exchange.sorted_runs import (
    BatchSpan,
    RunsGoneError,
    RunShelf,
    batches,
    received,
    run_path,
    sent,
)
from dml.data.block import Block, concat
from dml.data.schema import Schema
from dml.errors import InternalError
from dml.exec.memory.spill import LOCK
from dml.settings import Settings

ASK_S = 10.0  # seconds to list the runs of all workers; a silent worker counts as having none
CONNECT_S = 5.0  # seconds to connect to another worker; a dead one refuses at once
OP = "dml_runs"  # name of the workers' handler and extension
LOOK_S = 2.0  # seconds between two checks of leases by a worker
CLOSED = ("closed", "failed")  # Dask's status of a worker that ends
MOST_SENT = 8 << 20  # most bytes of an answer, unless one batch is larger
ENDED = 1000  # ended exchanges that are remembered, so that late tasks make no folder
UNREAD = (OSError, pa.ArrowException)  # errors of a missing or damaged run

Where = tuple[str, str]
"""A worker's address, and the folder of an exchange there."""


# ---------------------------------------------------------------------------------------- a worker


class Shelves:
    """The shelves of one worker, by exchange; an extension of Dask's worker, closed with it."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._shelves: dict[str, RunShelf] = {}
        self._ended: deque[str] = deque(maxlen=ENDED)
        self._lock = threading.Lock()
        self._looking: asyncio.Task[None] | None = None
        worker.handlers[OP] = _serve_batches

    @staticmethod
    def on(worker: Any) -> Shelves:
        """Return the shelves of ``worker``, created on first use."""
        found: Shelves = worker.extensions.setdefault(OP, Shelves(worker))
        return found

    def of(self, exchange: str, root: str | None) -> RunShelf:
        """Return the shelf of ``exchange``, created at first use or if its folder was removed."""
        with self._lock:
            if exchange in self._ended:
                raise InternalError("runs are written after the end", why=f"exchange {exchange}")
            shelf = self._shelves.get(exchange)
            if shelf is None or not Path(shelf.path).exists():
                shelf = self._shelves[exchange] = RunShelf(root or self._worker.local_directory)
                self._worker.loop.add_callback(self._look)
            return shelf

    def find_shelf(self, exchange: str) -> RunShelf | None:
        """Return the shelf of ``exchange``, or None if it does not exist."""
        return self._shelves.get(exchange)

    def end(self, exchange: str) -> None:
        """Remove the shelf of ``exchange``, and refuse to create it again."""
        with self._lock:
            self._ended.append(exchange)
        self._remove([exchange])

    async def close(self) -> None:
        """Remove all shelves; called by Dask at the end of the worker."""
        await asyncio.to_thread(self._remove, list(self._shelves))

    def _remove(self, exchanges: Sequence[str]) -> None:
        with self._lock:
            shelves = [self._shelves.pop(each, None) for each in exchanges]
        for shelf in shelves:
            if shelf is not None:
                shelf.close()

    def _look(self) -> None:
        """Start the task that checks leases; on the event loop."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._leases())

    async def _leases(self) -> None:
        while self._shelves:
            await asyncio.sleep(LOOK_S)
            if self._worker.status.name in CLOSED:  # a late task has written once more
                await self.close()
            elif ended := await self._unleased():
                await asyncio.to_thread(self._remove, ended)

    async def _unleased(self) -> list[str]:
        """Return the exchanges whose lease is gone; every lease is created before the first run.

        Such an exchange is not refused: a client that restarts its workers may continue it.
        """
        keys = {lease_key(each): each for each in list(self._shelves)}
        try:
            states = await self._worker.scheduler.get_task_status(keys=list(keys))
        except Exception:  # noqa: BLE001 (a scheduler that does not answer has ended nothing)
            return []
        return [exchange for key, exchange in keys.items() if states.get(key) is None]


def lease_key(exchange: str) -> str:
    """Return the Dask key of the lease that the client holds until the exchange is closed."""
    return f"dml-runs-{exchange}"


def _leased() -> None:
    """Do nothing: a lease has no value, so Dask may lose, move or recompute it."""


def shelf_here(exchange: str, root: str | None) -> RunShelf:
    """Return the shelf of ``exchange`` on the worker that runs the current task."""
    return Shelves.on(get_worker()).of(exchange, root)


def _listed(exchange: str, dask_worker: Any) -> tuple[str, list[str]]:
    """Return the folder of ``exchange`` on a worker, and the names of the complete runs there."""
    shelf = Shelves.on(dask_worker).find_shelf(exchange)
    return ("", []) if shelf is None else (shelf.path, shelf.names)


async def _dropped(exchange: str, names: Sequence[str], dask_worker: Any) -> None:
    """Remove the runs ``names`` and all unreadable runs from a worker; they are rewritten."""
    shelf = Shelves.on(dask_worker).find_shelf(exchange)
    if shelf is not None:
        await asyncio.to_thread(_drop, shelf, set(names))


def _drop(shelf: RunShelf, names: set[str]) -> None:
    for name in shelf.names:
        if name in names or _is_unread(shelf.path, (name, 0, 0)):
            run_path(shelf.path, name).unlink(missing_ok=True)


async def _left(exchange: str, dask_worker: Any) -> None:
    """End an exchange on a worker, and remove its shelf."""
    await asyncio.to_thread(Shelves.on(dask_worker).end, exchange)


async def _serve_batches(folder: str, wanted: Sequence[Sequence[Any]]) -> Any:
    """Return batches of runs, serialized, for another worker; else the names of unreadable runs.

    ``wanted`` has name, first batch and end batch for each run.
    """
    return await asyncio.to_thread(_read, folder, wanted)


def _read(folder: str, wanted: Sequence[Sequence[Any]]) -> bytes | list[str]:
    try:
        return sent([(run_path(folder, name), first, stop) for name, first, stop in wanted])
    except UNREAD:
        unread = [each[0] for each in wanted if _is_unread(folder, each)]
        return unread or sent([(run_path(folder, name), *span) for name, *span in wanted])


def _is_unread(folder: str, wanted: Sequence[Any]) -> bool:
    name, first, stop = wanted
    try:
        sent([(run_path(folder, name), first, stop)])
    except UNREAD:
        return True
    return False


@dataclasses.dataclass(frozen=True, eq=False)
class RunFetcher:
    """Reads batches of runs within a task; raises RunsGoneError if a run or its worker is gone.

    ``homes`` has the location (address of the worker, folder) of each run in ``names``.
    """

    names: tuple[str, ...]
    schema: Schema
    homes: tuple[Where, ...]
    batch_bytes: int
    patience_s: float
    gone: set[str] = dataclasses.field(default_factory=set)  # workers that did not answer

    def all(self, spans: Sequence[BatchSpan]) -> list[Block]:
        """Return the rows of each span, requesting about 8 MiB of rows from a worker at a time."""
        found = {span.run: self._read(span) for span in spans if self._is_near(span)}
        for group in self._far([span for span in spans if span.run not in found]):
            blocks = self._ask(group)
            for span in group:
                found[span.run] = concat([next(blocks) for _ in range(span.first, span.stop)])
        return [found[span.run] for span in spans]

    def _is_near(self, span: BatchSpan) -> bool:
        return run_path(self.homes[span.run][1], LOCK).parent.exists()

    def _read(self, span: BatchSpan) -> Block:
        address, folder = self.homes[span.run]
        path = run_path(folder, self.names[span.run])
        try:
            return concat(list(batches(path, self.schema, span.first, span.stop)))
        except UNREAD as error:
            unread = (self.names[span.run],)
            raise RunsGoneError(
                "a run is gone", why=str(error), places=(address,), unread=unread
            ) from error

    def _far(self, spans: Sequence[BatchSpan]) -> Iterator[list[BatchSpan]]:
        """Yield groups of spans: each group is on one worker, and small enough for one answer."""
        by_home: dict[Where, list[BatchSpan]] = {}
        for span in spans:
            by_home.setdefault(self.homes[span.run], []).append(span)
        for group in by_home.values():
            some, size = list[BatchSpan](), 0
            for span in group:
                nbytes = (span.stop - span.first) * self.batch_bytes
                if some and size + nbytes > MOST_SENT:
                    yield some
                    some, size = [], 0
                some.append(span)
                size += nbytes
            yield some

    def _ask(self, spans: Sequence[BatchSpan]) -> Iterator[Block]:
        """Request the batches of ``spans``, all on one worker, and return them in order."""
        address, folder = self.homes[spans[0].run]
        wanted = [(self.names[span.run], span.first, span.stop) for span in spans]
        if address in self.gone:
            raise RunsGoneError("a worker has gone", why="it did not answer", places=(address,))
        worker = get_worker()
        try:
            answer = sync(worker.loop, _answer, worker, address, self.patience_s, folder, wanted)
        except (OSError, TimeoutError) as error:
            self.gone.add(address)
            why = f"{type(error).__name__}: {error}"
            raise RunsGoneError("a worker has gone", why=why, places=(address,)) from error
        if isinstance(answer, list | tuple):
            why = "it cannot read them any more"
            raise RunsGoneError("runs are gone", why=why, places=(address,), unread=tuple(answer))
        return received(answer, self.schema)


async def _answer(worker: Any, address: str, patience_s: float, folder: str, wanted: Any) -> Any:
    """Return the worker's answer within ``patience_s``; Dask would retry dead workers longer."""
    comm = await asyncio.wait_for(worker.rpc.connect(address), CONNECT_S)
    worker.rpc.reuse(address, comm)
    asked = getattr(worker.rpc(address), OP)
    return await asyncio.wait_for(asked(folder=folder, wanted=wanted), patience_s)


# -------------------------------------------------------------------------------------- the client


class Exchange:
    """The runs of one operator on the cluster that ``settings`` name, until ``close`` is called."""

    def __init__(self, settings: Settings) -> None:
        self.name, self.settings = uuid.uuid4().hex, settings
        self.root = settings.spill_dir
        self.hub = met(settings)
        self._avoided: set[str] = set()  # workers that did not answer other workers
        self.remade: set[str] = set()  # runs that were since rewritten, to be read from any worker
        self._lease: list[Any] = []
        self._finalizer = weakref.finalize(
            self, self.hub.call, _let_go, self.hub, self.name, self._lease
        )
        self._renew()

    def _renew(self) -> None:
        """Create the lease, again if a restart of the cluster has dropped it."""
        if not self._lease or self._lease[0].cancelled():
            key = lease_key(self.name)
            self._lease[:] = [self.hub.submit(_leased, key=key, pure=False)]

    def homes(self) -> Mapping[str, Where]:
        """Return the location of each run by name, according to the answers of all workers.

        An avoided worker is used only for rewritten runs that no other worker has.
        """
        self.hub = met(self.settings)
        self._renew()
        every = self.hub.ask(self.hub.members, _listed, self.name, within_s=ASK_S)
        answers = {address: there for address, there in every.items() if isinstance(there, tuple)}
        found: dict[str, Where] = {}
        for address in sorted(answers, key=self._avoided.__contains__, reverse=True):
            folder, names = answers[address]
            some = self.remade.intersection(names) if address in self._avoided else names
            found.update((name, (address, folder)) for name in some)
        return found

    def avoid(self, gone: RunsGoneError) -> None:
        """Remove unreadable runs; or, if a worker did not answer, avoid all runs that it has."""
        if gone.unread:
            there = self.hub.members.keys() & gone.places
            self.hub.ask(there, _dropped, self.name, gone.unread, within_s=ASK_S)
        else:
            self._avoided.update(gone.places)
            self.remade.clear()

    def close(self) -> None:
        """Remove all runs soon, and return without waiting for that."""
        self._finalizer()


def _let_go(hub: Any, exchange: str, lease: list[Any]) -> None:
    """End the exchange on the hub's workers; other workers notice the missing lease."""
    for address in hub.members:
        hub.asking(hub.client.run(_left, exchange, workers=[address], on_error="return"))
    for future in lease:
        future.release()
    lease.clear()


def unknown(names: Sequence[str], homes: Mapping[str, Where]) -> list[int]:
    """Return the numbers of the runs that no worker has."""
    return [number for number, name in enumerate(names) if name not in homes]
