"""This file is where runs lie on a Dask cluster: made by one worker, read by any other.

A worker has one folder for the runs of an operator, below ``spill_dir`` or Dask's own folder of
that worker, from the first run that is written there on. It goes when the operator ends, when the
worker is closed, and when the scheduler knows the operator's lease no more: a Dask key that the
client wants, so that it goes with the client. Nothing that Dask holds, moves or spills has a part
in it. Whoever needs a run reads it from the disk where it can be seen from there, else asks the
worker that has it. Runs are never copied: those that are lost are made again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from distributed import get_worker
from distributed.utils import sync

from dml.errors import InternalError
from dml.exec.backends.dask import met
from dml.exec.runs import RunsGoneError, Shelf, Span, batches, received, run_path, sent
from dml.exec.spill import LOCK
from dml.expr.block import Block, concat
from dml.expr.schema import Schema
from dml.settings import Settings

ASK_S = 10.0  # for the runs of all workers; who does not answer has none
CONNECT_S = 5.0  # to reach another worker; one that died refuses at once
OP = "dml_runs"  # what workers are asked for runs by, and keep their shelves by
LOOK_S = 2.0  # between two looks of a worker at leases
CLOSED = ("closed", "failed")  # Dask's words for a worker that ends
MOST_SENT = 8 << 20  # bytes of an answer, or one batch
ENDED = 1000  # exchanges that have ended are remembered, so that who is late makes no folder
UNREAD = (OSError, pa.ArrowException)  # what a run that is gone or damaged raises

Where = tuple[str, str]
"""A worker's address, and the folder of an exchange there."""


# ---------------------------------------------------------------------------------------- a worker


class Shelves:
    """The shelves of one worker, by exchange; an extension of Dask's worker, closed with it."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._shelves: dict[str, Shelf] = {}
        self._ended: deque[str] = deque(maxlen=ENDED)
        self._lock = threading.Lock()
        self._looking: asyncio.Task[None] | None = None
        worker.handlers[OP] = _asked

    @staticmethod
    def on(worker: Any) -> Shelves:
        """Those of ``worker``."""
        with _MAKING:
            found: Shelves | None = worker.extensions.get(OP)
            if found is None:
                found = worker.extensions[OP] = Shelves(worker)
            return found

    def of(self, exchange: str, root: str | None) -> Shelf:
        """The shelf; made by the first who asks, and again where somebody removed its folder."""
        with self._lock:
            if exchange in self._ended:
                raise InternalError("runs are written after the end", why=f"exchange {exchange}")
            shelf = self._shelves.get(exchange)
            if shelf is None or not Path(shelf.path).exists():
                shelf = self._shelves[exchange] = Shelf(root or self._worker.local_directory)
                self._worker.loop.add_callback(self._look)
            return shelf

    def found(self, exchange: str) -> Shelf | None:
        """The shelf, if there is one."""
        return self._shelves.get(exchange)

    def end(self, exchange: str) -> None:
        """Remove it; nobody makes it again."""
        with self._lock:
            self._ended.append(exchange)
        self._remove([exchange])

    async def close(self) -> None:
        """Remove all; called by Dask at the end of the worker."""
        await asyncio.to_thread(self._remove, list(self._shelves))

    def _remove(self, exchanges: Sequence[str]) -> None:
        with self._lock:
            shelves = [self._shelves.pop(each, None) for each in exchanges]
        for shelf in shelves:
            if shelf is not None:
                shelf.close()

    def _look(self) -> None:
        """Look at leases from now on; on the loop."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._leases())

    async def _leases(self) -> None:
        while self._shelves:
            await asyncio.sleep(LOOK_S)
            if self._worker.status.name in CLOSED:  # and a task has written once more
                await self.close()
            elif ended := await self._unleased():
                await asyncio.to_thread(self._remove, ended)

    async def _unleased(self) -> list[str]:
        """Those whose lease is gone: the key was wanted before any run was written.

        No end for good: the client that restarts its workers still has its exchanges.
        """
        keys = {lease_key(each): each for each in list(self._shelves)}
        try:
            states = await self._worker.scheduler.get_task_status(keys=list(keys))
        except Exception:  # noqa: BLE001 (a scheduler that does not answer has ended nothing)
            return []
        return [exchange for key, exchange in keys.items() if states.get(key) is None]


_MAKING = threading.Lock()


def lease_key(exchange: str) -> str:
    """The Dask key that the client wants for as long as the exchange goes on."""
    return f"dml-runs-{exchange}"


def _leased() -> None:
    """The value of a lease, which says nothing: it may be lost, moved or made again."""


def shelf_here(exchange: str, root: str | None) -> Shelf:
    """The shelf of the worker that runs this task."""
    return Shelves.on(get_worker()).of(exchange, root)


def _listed(exchange: str, dask_worker: Any) -> tuple[str, list[str]]:
    """What a worker has: the folder, and names of runs."""
    shelf = Shelves.on(dask_worker).found(exchange)
    return ("", []) if shelf is None else (shelf.path, shelf.names)


async def _dropped(exchange: str, names: Sequence[str], dask_worker: Any) -> None:
    """Remove runs that could not be read, and others that cannot be opened: they are made again."""
    shelf = Shelves.on(dask_worker).found(exchange)
    if shelf is not None:
        await asyncio.to_thread(_drop, shelf, set(names))


def _drop(shelf: Shelf, names: set[str]) -> None:
    for name in shelf.names:
        if name in names or _is_unread(shelf.path, (name, 0, 0)):
            run_path(shelf.path, name).unlink(missing_ok=True)


async def _left(exchange: str, dask_worker: Any) -> None:
    """The end of an exchange on a worker."""
    await asyncio.to_thread(Shelves.on(dask_worker).end, exchange)


async def _asked(folder: str, wanted: Sequence[Sequence[Any]]) -> Any:
    """Batches of runs for another worker; the names of those that cannot be read if there are."""
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
class Fetching:
    """Reads runs from within a task: ``homes`` says of each where it lies.

    ``near`` permits to read them from disks that can be seen from here. Raises RunsGoneError.
    """

    names: tuple[str, ...]
    schema: Schema
    homes: tuple[Where, ...]
    batch_bytes: int
    patience_s: float
    near: bool = True
    gone: set[str] = dataclasses.field(default_factory=set)  # workers that did not answer

    def all(self, spans: Sequence[Span]) -> list[Block]:
        """The rows of each span; one request to each worker for about 8 MiB of it."""
        found = {span.run: self._read(span) for span in spans if self._is_near(span)}
        for group in self._far([span for span in spans if span.run not in found]):
            blocks = self._ask(group)
            for span in group:
                found[span.run] = concat([next(blocks) for _ in range(span.first, span.stop)])
        return [found[span.run] for span in spans]

    def _is_near(self, span: Span) -> bool:
        return self.near and run_path(self.homes[span.run][1], LOCK).parent.exists()

    def _batches(self, span: Span) -> Iterator[Block]:
        address, folder = self.homes[span.run]
        path = run_path(folder, self.names[span.run])
        try:
            yield from batches(path, self.schema, span.first, span.stop)
        except UNREAD as error:
            unread = ((address, self.names[span.run]),)
            raise RunsGoneError(
                "a run is gone", why=str(error), places=(address,), unread=unread
            ) from error

    def _read(self, span: Span) -> Block:
        return concat(list(self._batches(span)))

    def _far(self, spans: Sequence[Span]) -> Iterator[list[Span]]:
        """Spans of one worker together, as many as one answer may hold."""
        by_home: dict[Where, list[Span]] = {}
        for span in spans:
            by_home.setdefault(self.homes[span.run], []).append(span)
        for group in by_home.values():
            some, size = list[Span](), 0
            for span in group:
                nbytes = (span.stop - span.first) * self.batch_bytes
                if some and size + nbytes > MOST_SENT:
                    yield some
                    some, size = [], 0
                some.append(span)
                size += nbytes
            yield some

    def _ask(self, spans: Sequence[Span]) -> Iterator[Block]:
        """The batches of spans of one worker, one after the other."""
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
            unread = tuple((address, name) for name in answer)
            why = "it cannot read them any more"
            raise RunsGoneError("runs are gone", why=why, places=(address,), unread=unread)
        return received(answer, self.schema)


async def _answer(worker: Any, address: str, patience_s: float, folder: str, wanted: Any) -> Any:
    """What another worker sends; Dask itself would try for long to reach one that has died."""
    comm = await asyncio.wait_for(worker.rpc.connect(address), CONNECT_S)
    worker.rpc.reuse(address, comm)
    asked = getattr(worker.rpc(address), OP)
    return await asyncio.wait_for(asked(folder=folder, wanted=wanted), patience_s)


# -------------------------------------------------------------------------------------- the client


class Exchange:
    """The runs of one operator on the cluster that ``settings`` name, until it is closed."""

    def __init__(self, settings: Settings) -> None:
        self.name, self.settings = uuid.uuid4().hex, settings
        self.root = settings.spill_dir
        self.hub = met(settings)
        self._avoided: set[str] = set()  # workers that did not answer others
        self._again: set[str] = set()  # runs that were made again since
        self._lease: list[Any] = []
        self._finalizer = weakref.finalize(self, _ended, self.hub, self.name, self._lease)
        self._renew()

    def _renew(self) -> None:
        """Want the lease; once more where a restart of the cluster has dropped it."""
        if not self._lease or self._lease[0].cancelled():
            key = lease_key(self.name)
            self._lease[:] = [self.hub.submit(_leased, key=key, pure=False)]

    def homes(self) -> Mapping[str, Where]:
        """Where each run lies, of all that workers have which answer now.

        A worker that was ``avoided`` has only what was made again since, and nobody else has.
        """
        self.hub = met(self.settings)
        self._renew()
        answers: dict[str, tuple[str, list[str]]] = {}
        self.hub.wait(self._list, answers)
        found: dict[str, Where] = {}
        for address in sorted(answers, key=self._avoided.__contains__, reverse=True):
            folder, names = answers[address]
            some = self._again.intersection(names) if address in self._avoided else names
            found.update((name, (address, folder)) for name in some)
        return found

    def avoid(self, gone: RunsGoneError) -> None:
        """Runs could not be read: those are removed, or all of a worker which did not answer."""
        if gone.unread:
            self.hub.wait(self._drop, gone.unread)
        else:
            self._avoided.update(gone.places)
            self._again.clear()

    def made(self, names: Iterable[str]) -> None:
        """These were made again: they may be read wherever they lie."""
        self._again.update(names)

    async def _drop(self, unread: Sequence[tuple[str, str]]) -> None:
        by_home: dict[str, list[str]] = {}
        for address, name in unread:
            by_home.setdefault(address, []).append(name)
        asked = [
            self.hub.asking(_run(self.hub, _dropped, address, self.name, names))
            for address, names in by_home.items()
            if address in self.hub.members
        ]
        if asked:
            await asyncio.wait(asked, timeout=ASK_S)

    async def _list(self, answers: dict[str, Any]) -> None:
        asked = {
            self.hub.asking(_run(self.hub, _listed, address, self.name)): address
            for address in self.hub.members
        }
        done, _ = await asyncio.wait(asked, timeout=ASK_S)
        for each in done:
            if each.exception() is None:
                found = each.result().get(asked[each])
                if isinstance(found, tuple):
                    answers[asked[each]] = found

    def close(self) -> None:
        """Remove all runs, soon; never blocks."""
        self._finalizer()


async def _run(hub: Any, work: Any, address: str, *args: Any) -> Any:
    return await hub.client.run(work, *args, workers=[address], on_error="return")


def _ended(hub: Any, exchange: str, lease: list[Any]) -> None:
    hub.call(_let_go, hub, exchange, lease)


def _let_go(hub: Any, exchange: str, lease: list[Any]) -> None:
    """End it on all workers; who does not hear of it sees that the lease is gone. On the loop."""
    for address in hub.members:
        hub.asking(_run(hub, _left, address, exchange))
    for future in lease:
        future.release()
    lease.clear()


def unknown(names: Sequence[str], homes: Mapping[str, Where]) -> list[int]:
    """The numbers of runs that nobody has."""
    return [number for number, name in enumerate(names) if name not in homes]


def settled(names: Sequence[str], homes: Mapping[str, Where]) -> tuple[Where, ...]:
    """Where each of ``names`` lies; all are somewhere."""
    if missing := unknown(names, homes):
        raise InternalError("runs are nowhere", why=f"{len(missing)} of {len(names)}")
    return tuple(homes[name] for name in names)
