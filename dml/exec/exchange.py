"""This file is where runs lie on a Dask cluster: made by one worker, read by any other.

A worker has one folder for the runs of an operator, below ``spill_dir`` or Dask's own folder of
that worker. A Dask key for each worker keeps it: the folder goes with the key, also because the
client that wanted it has died. Whoever needs a run reads it from the disk where it can be seen from
there, else asks the worker that has it. Runs are never copied: those of a worker that is lost are
made again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
OP = "dml_runs"  # what workers are asked for runs by
MOST_SENT = 8 << 20  # bytes of an answer, or one batch
ENDED = 1000  # exchanges that have ended are remembered, so that who is late makes no folder

Where = tuple[str, str]
"""A worker's address, and the folder of an exchange there."""


# ---------------------------------------------------------------------------------------- a worker


class _Shelves:
    """The shelves of the workers in this process, by exchange and worker."""

    def __init__(self) -> None:
        self._shelves: dict[tuple[str, str], Shelf] = {}
        self._ended: deque[tuple[str, str]] = deque(maxlen=ENDED)
        self._lock = threading.RLock()  # a key may leave while garbage is collected

    def of(self, exchange: str, worker: Any, root: str | None) -> Shelf:
        """The shelf on ``worker``; made by the first who asks."""
        key = exchange, worker.address
        with self._lock:
            if key in self._ended:
                raise RunsGoneError("runs are written after the end", why=f"exchange {exchange}")
            if key not in self._shelves:
                worker.handlers.setdefault(OP, _asked)
                self._shelves[key] = Shelf(root or worker.local_directory)
            return self._shelves[key]

    def found(self, exchange: str, address: str) -> Shelf | None:
        """The shelf, if there is one."""
        return self._shelves.get((exchange, address))

    def end(self, exchange: str, address: str) -> None:
        """Remove it; nobody makes it again."""
        with self._lock:
            self._ended.append((exchange, address))
            shelf = self._shelves.pop((exchange, address), None)
        if shelf is not None:
            shelf.close()


_SHELVES = _Shelves()


class Tenure:
    """As long as this is there, a worker has a shelf for an exchange."""

    def __init__(self, exchange: str, root: str | None) -> None:
        worker = get_worker()
        self._made = exchange, root
        _SHELVES.of(exchange, worker, root)
        weakref.finalize(self, _SHELVES.end, exchange, worker.address)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tenure, self._made


def shelf_here(exchange: str, root: str | None) -> Shelf:
    """The shelf of the worker that runs this task."""
    return _SHELVES.of(exchange, get_worker(), root)


def _listed(exchange: str, dask_worker: Any) -> tuple[str, list[str]]:
    """What a worker has: the folder, and names of runs."""
    shelf = _SHELVES.found(exchange, dask_worker.address)
    return ("", []) if shelf is None else (shelf.path, shelf.names)


def _left(exchange: str, dask_worker: Any) -> None:
    """The end of an exchange on a worker."""
    _SHELVES.end(exchange, dask_worker.address)


async def _asked(folder: str, wanted: Sequence[Sequence[Any]]) -> Any:
    """Batches of runs for another worker; None if they are gone."""
    paths = [(run_path(folder, name), first, stop) for name, first, stop in wanted]
    try:
        return await asyncio.to_thread(sent, paths)
    except (OSError, pa.ArrowInvalid):
        return None


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

    def each(self, span: Span) -> Iterator[Block]:
        """The batches of one, some 8 MiB of them in memory."""
        if self._is_near(span):
            yield from self._batches(span)
            return
        step = max(1, MOST_SENT // self.batch_bytes // 8)
        for first in range(span.first, span.stop, step):
            yield from self._ask([Span(span.run, first, min(first + step, span.stop))])

    def _is_near(self, span: Span) -> bool:
        return self.near and run_path(self.homes[span.run][1], LOCK).parent.exists()

    def _batches(self, span: Span) -> Iterator[Block]:
        address, folder = self.homes[span.run]
        path = run_path(folder, self.names[span.run])
        try:
            yield from batches(path, self.schema, span.first, span.stop)
        except (OSError, pa.ArrowInvalid) as error:
            raise RunsGoneError("a run is gone", why=str(error), places=(address,)) from error

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
        if answer is None:
            raise RunsGoneError("runs are gone", why="it has them no more", places=(address,))
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
        self.avoided: set[str] = set()  # workers that others could not read from
        self.hub = met(settings)
        self._tenures: dict[str, Any] = {}
        self._finalizer = weakref.finalize(self, _ended, self.hub, self.name, self._tenures)
        self.settle()

    def settle(self) -> None:
        """Have a shelf on every worker that is there."""
        for address in list(self.hub.members):
            if address not in self._tenures:
                self._tenures[address] = self.hub.client.submit(
                    Tenure,
                    self.name,
                    self.root,
                    key=(f"dml-runs-{self.name}", address),
                    workers=[address],
                    pure=False,
                )

    def homes(self) -> Mapping[str, Where]:
        """Where each run lies, of all that workers have which answer now."""
        self.hub = met(self.settings)
        self.settle()
        answers: dict[str, tuple[str, list[str]]] = {}
        self.hub.wait(self._list, answers)
        return {
            name: (address, folder)
            for address, (folder, names) in answers.items()
            if address not in self.avoided
            for name in names
        }

    async def _list(self, answers: dict[str, Any]) -> None:
        asked = {
            self.hub.asking(_run(self.hub, _listed, self.name, address)): address
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


async def _run(hub: Any, work: Any, exchange: str, address: str) -> Any:
    return await hub.client.run(work, exchange, workers=[address], on_error="return")


def _ended(hub: Any, exchange: str, tenures: dict[str, Any]) -> None:
    hub.call(_let_go, hub, exchange, tenures)


def _let_go(hub: Any, exchange: str, tenures: dict[str, Any]) -> None:
    """Release the shelves; what was written by tasks on other workers goes too. On the loop."""
    for address in {*hub.members, *tenures}:
        if address in hub.members:
            hub.asking(_run(hub, _left, exchange, address))
    for future in tenures.values():
        future.release()
    tenures.clear()


def unknown(names: Sequence[str], homes: Mapping[str, Where]) -> list[int]:
    """The numbers of runs that nobody has."""
    return [number for number, name in enumerate(names) if name not in homes]


def settled(names: Sequence[str], homes: Mapping[str, Where]) -> tuple[Where, ...]:
    """Where each of ``names`` lies; all are somewhere."""
    if missing := unknown(names, homes):
        raise InternalError("runs are nowhere", why=f"{len(missing)} of {len(names)}")
    return tuple(homes[name] for name in names)
