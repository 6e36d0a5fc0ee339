"""Share one stream among several runs with a tee, which keeps a block until all have taken it.

A *taker* is a run, or another tee above this one. Blocks that a taker has not taken yet wait: in
memory up to a number of bytes for each taker, beyond that on disk. Rows lost to errors travel with
the blocks, so that every run counts them before the same rows as if it ran alone.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial

import numpy as np

from dml.data.block import Block, Values
from dml.data.schema import Schema
from dml.errors import DmlError, InternalError
from dml.exec.delivery.meter import Metered
from dml.exec.streams.plan_run import StreamTap
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.skipped_rows import Loss
from dml.expr.flow import WHOLE, Flow, Opener, Position, Spill
from dml.expr.node import Node
from dml.kernels.vec import Vec

# Bytes of the Python objects of a waiting entry, without its rows.
ENTRY_BYTES = 1024


@dataclasses.dataclass(slots=True)
class TeeEntry:
    """A block or an error, and the losses before it; ``stored`` if the block is on disk."""

    block: Block | None
    losses: tuple[Loss, ...] = ()
    error: DmlError | None = None
    stored: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the entry while it waits in memory."""
        return ENTRY_BYTES + (0 if self.block is None else self.block.nbytes)


class Queue:
    """Waiting entries of one taker, in order: ``most_bytes`` in memory, the rest on disk.

    Half of the memory is for the entries that are taken next. Later entries gather in the other
    half, and are written to disk when that half is full.
    """

    def __init__(self, most_bytes: int, spill: Callable[[Schema], Spill]) -> None:
        self.half, self.spill = most_bytes // 2, spill
        self.entries, self.late = deque[TeeEntry](), deque[TeeEntry]()
        self.first_bytes = self.late_bytes = self.spilled = 0
        self.disk: Spill | None = None
        self.reading: Iterator[Block] = iter(())

    @property
    def waiting(self) -> int:
        """Number of waiting entries."""
        return len(self.entries)

    def put(self, entry: TeeEntry) -> None:
        """Append an entry."""
        own, size = dataclasses.replace(entry), entry.nbytes
        self.entries.append(own)
        if self.first_bytes + size <= self.half or own.block is None:
            self.first_bytes += size
            return
        self.late.append(own)
        self.late_bytes += size
        if self.late_bytes > self.half:
            self._store()

    def _store(self) -> None:
        """Write all later entries to disk; if that fails, the taker gets the error."""
        blocks = [entry.block for entry in self.late if entry.block is not None]
        try:
            self.disk = self.disk or self.spill(blocks[0].schema)
            self.disk.write(iter(blocks))
        except DmlError as error:
            self.close()
            self.entries.append(TeeEntry(None, error=error))
            return
        self.spilled += len(blocks)
        for entry in self.late:
            entry.block, entry.stored = None, True
        self.late.clear()
        self.late_bytes = 0

    def take(self) -> TeeEntry:
        """Remove and return the first entry."""
        entry = self.entries.popleft()
        if entry.stored:
            entry.block = self._read()
        elif self.late and self.late[0] is entry:
            self.late.popleft()
            self.late_bytes -= entry.nbytes
        else:
            self.first_bytes -= entry.nbytes
        return entry

    def _read(self) -> Block:
        block = next(self.reading, None)
        if block is None and self.disk is not None:
            self.reading = self.disk.runs(1)[0]
            block = next(self.reading, None)
        if block is None:
            raise InternalError("a block that went to disk did not come back")
        return block

    def close(self) -> None:
        """Discard all entries."""
        self.entries.clear()
        self.late.clear()
        self.first_bytes = self.late_bytes = 0
        self.reading = iter(())
        if self.disk is not None:
            self.disk.close()
            self.disk = None


@dataclasses.dataclass(frozen=True, eq=False)
class Below(Streaming):
    """The part of a run below a tee, which runs once; its losses are collected for the takers."""

    heard: list[Loss] = dataclasses.field(default_factory=list)

    def lost(self, losses: Sequence[Loss], *, again: bool = False) -> DmlError | None:
        """Collect ``losses`` for the takers, and return no error."""
        del again  # runs that share are not resumed
        if any(loss.timed for loss in losses):
            self.at.keep.refuse()
        self.heard.extend(losses)
        return None


class Tee:
    """One stream and its takers, opened when the first taker requests a block."""

    def __init__(self, run: Below, node: Node, epoch: int, queues: dict[Hashable, Queue]) -> None:
        self.run, self.node, self.epoch, self.queues = run, node, epoch, queues
        self.input: Flow | None = None
        self.over: TeeEntry | None = None

    def next(self, taker: Hashable) -> TeeEntry:
        """Return the next entry for ``taker``; after the end or an error, return that again."""
        queue = self.queues[taker]
        if not queue.waiting:
            if self.over is not None:
                return self.over
            self._more()
        return queue.take()

    def _more(self) -> None:
        """Pull one block from the stream, and append it as an entry to the queue of every taker."""
        entry = self._make_entry()
        entry.losses = tuple(self.run.heard)
        self.run.heard.clear()
        if entry.block is None:
            self.over = dataclasses.replace(entry, losses=())
            self._shut()
        for queue in self.queues.values():
            queue.put(entry)

    def _make_entry(self) -> TeeEntry:
        try:
            if self.input is None:
                self.input = self.run.opener()(self.epoch, None)
            block = self.input.pull(WHOLE)
        except DmlError as error:
            return TeeEntry(None, error=error)
        return TeeEntry(block if block is None else unwritable(block))

    def leave(self, taker: Hashable) -> None:
        """Remove ``taker``; close the stream when all takers have left."""
        queue = self.queues.pop(taker, None)
        if queue is not None:
            queue.close()
        if not self.queues:
            self._shut()

    def _shut(self) -> None:
        if self.input is not None:
            self.input.close()
            self.input = None


class Taps:
    """The tees of runs that share streams; ``takers`` is {digest of a shared node: its takers}."""

    def __init__(self, takers: dict[bytes, list[Hashable]], epoch: int) -> None:
        self.takers, self.epoch = takers, epoch
        self.tees: dict[bytes, Tee] = {}
        self.opened: set[tuple[Hashable, bytes]] = set()

    def of(self, taker: Hashable) -> StreamTap:
        """Return the function through which ``taker`` opens the flows of shared nodes."""
        return partial(self._open, taker)

    def _open(  # noqa: PLR0917 (a StreamTap, once the first is bound)
        self,
        taker: Hashable,
        run: Streaming,
        number: int,
        open_input: Opener,
        epoch: int,
        position: Position | None,
    ) -> Flow:
        """Return the flow of the shared operator ``number`` of ``run``.

        Each taker shares only its first pass of the epoch of the tees; other passes of a repeat,
        other epochs and resumed runs get flows of their own.
        """
        node = run.plan.stream[number]
        again = epoch != self.epoch or position is not None or (taker, node.digest) in self.opened
        if again or taker not in self.takers.get(node.digest, ()):
            return Metered(open_input(epoch, position), run.meter, number + 1)
        self.opened.add((taker, node.digest))
        return Metered(_Tap(self.tee(run, node, number), taker, run), run.meter, number + 1)

    def tee(self, run: Streaming, node: Node, number: int) -> Tee:
        """Return the tee of ``node``, operator ``number`` over the stream of ``run``."""
        key = node.digest
        if key not in self.tees:
            shared = sum(each.digest in self.takers for each in run.plan.stream)
            most = run.kept_bytes // max(1, shared)
            spill = run.at.spill
            queues = {taker: Queue(most, spill) for taker in self.takers[key]}
            self.tees[key] = Tee(self._below(run, key, number), node, self.epoch, queues)
        return self.tees[key]

    def _below(self, run: Streaming, key: bytes, number: int) -> Below:
        """Return the part of ``run`` below operator ``number``, which takes from tees below it."""
        plan = run.plan
        cut = dataclasses.replace(
            plan,
            stream=plan.stream[:number],
            beside=plan.beside[:number],
            schema=plan.stream[number].inputs[0].schema,
            batched=plan.stream[number].inputs[0].batched,
        )
        given = {field.name: getattr(run, field.name) for field in dataclasses.fields(Streaming)}
        given |= {"plan": cut, "beside": run.beside[:number], "tap": self.of(key)}
        return Below(**given)

    def waiting(self, taker: Hashable) -> int:
        """Return how many entries wait for ``taker`` and for the tees from which it takes."""
        found = 0
        for key, tee in self.tees.items():
            if taker in tee.queues:
                found += tee.queues[taker].waiting + self.waiting(key)
        return found

    def leave(self, taker: Hashable) -> None:
        """Remove ``taker`` from all tees, including those that are not open yet."""
        for key, takers in self.takers.items():
            if taker in takers:
                takers.remove(taker)
                if key in self.tees:
                    self.tees[key].leave(taker)
                if not takers:
                    self.leave(key)

    @property
    def spilled(self) -> int:
        """Number of blocks that were spilled to disk."""
        return sum(queue.spilled for tee in self.tees.values() for queue in tee.queues.values())


class _Tap:
    """The flow of a tee for one taker."""

    def __init__(self, tee: Tee, taker: Hashable, run: Streaming) -> None:
        self.tee, self.taker, self.run = tee, taker, run
        self.batched = tee.node.batched
        self.block: Block | None = None
        self.at = self.given = 0
        self.error: DmlError | None = None

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows, or one batch; None if exhausted."""
        if self.block is None:
            self.block, self.at = self._next(), 0
        block = self.block
        if block is None:
            return None
        out = block if self.batched else block.slice(self.at, self.at + min(most, block.n))
        given = 1 if self.batched else out.n
        self.at, self.given = self.at + given, self.given + given
        if self.batched or self.at >= block.n:
            self.block = None
        return out

    def _next(self) -> Block | None:
        if self.error is not None:
            raise self.error
        entry = self.tee.next(self.taker)
        self.error = self.run.lost(entry.losses) or entry.error
        if self.error is not None:
            raise self.error
        return entry.block

    def position(self) -> Position:
        """Return the number of delivered elements; runs that share a stream are not resumed."""
        return {"given": self.given}

    def close(self) -> None:
        """Leave the tee, which closes its stream when all takers have left."""
        self.block = None
        self.tee.leave(self.taker)


def unwritable(block: Block) -> Block:
    """Return ``block`` with read-only arrays, since several takers share its rows."""
    columns = tuple(_unwritable(column) for column in block.columns)
    return Block(block.schema, columns, block.ids)


def _unwritable(values: Values) -> Values:
    if not isinstance(values, Vec):
        return values
    valid = None if values.valid is None else _view(values.valid)
    return Vec(_view(values.values), valid)


def _view(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
