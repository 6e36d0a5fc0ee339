"""This file is what a worker executes: read units, run the stage's steps, cut partitions.

Errors gain their place here: the file, row group and row that the failing block came from. An
error is the end of its task's partitions, and is delivered after the rows that came before it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dml.errors import DmlError, InternalError, MemoryContractError, UDFError
from dml.events import Tally
from dml.exec.budget import sized
from dml.exec.slices import Outcome
from dml.expr.block import Block
from dml.expr.delivery import finished
from dml.expr.flow import At
from dml.expr.node import Node
from dml.expr.ops.lifted import LiftedNode
from dml.expr.ops.map_rows import CALLS
from dml.expr.ops.shuffle_all import ShuffleAll
from dml.expr.ops.shuffle_atoms import ShuffleAtoms
from dml.expr.sources.source import Source, Unit
from dml.kernels.ids import RowIds
from dml.kernels.permute import IndexPermutation
from dml.plan import Stage

# Of so many blocks of a step, the processor time of one is asked for.
ASKED = 64
# Bytes of one value of a row as Python has it: the object, and its place in a dict.
CELL_BYTES = 100
# Stands for the number of columns where only a run can tell.
MANY_COLUMNS = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Some output of atom ``atom`` of the unit at ``place`` in reading order.

    ``block`` follows those of earlier pieces of the same atom; ``ends`` says that the unit has no
    more, ``error`` what stopped it.
    """

    place: int
    atom: int
    block: Block | None = None
    ends: bool = False
    error: DmlError | None = None

    @property
    def stops(self) -> bool:
        """True if nothing of its unit follows."""
        return self.ends or self.error is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """Units at places ``start`` to ``stop`` of the reading order, the first from ``skip_atoms``."""

    start: int
    stop: int
    skip_atoms: int = 0


class Reading:
    """One epoch of a stage: which unit stands at which place, and the blocks of each.

    ``finishing`` gives columns as they are delivered, for streams that only move rows.
    """

    def __init__(
        self, stage: Stage, at: At, *, finishing: bool = False, whole_bytes: int = 0
    ) -> None:
        self.stage, self.at, self.finishing = stage, at, finishing
        self.whole_bytes = whole_bytes
        source, order = stage.source, stage.order
        self.places = source.unit_count
        self.watches = [Stopwatch() for _ in range(1 + len(stage.steps))]
        self.rows_order: IndexPermutation | None = None
        self.unit_order: IndexPermutation | None = None
        if isinstance(order, ShuffleAll):
            self.rows_order = order.permutation(at, at.epoch)
        elif isinstance(order, ShuffleAtoms):
            self.unit_order = order.order(at, at.epoch, self.places)

    def unit_at(self, place: int) -> Unit:
        """The unit that is read at ``place``."""
        index = place
        if self.unit_order is not None:
            index = int(self.unit_order.forward(np.array([place], dtype=np.int64))[0])
        return sized(self.stage.source.unit(index), self.whole_bytes)

    def read(self, unit: Unit, skip_atoms: int) -> Iterator[Block]:
        """Blocks of ``unit``, atom by atom; none where statistics rule the unit out."""
        source, stage = self.stage.source, self.stage
        if self.rows_order is not None:
            return self._permuted(unit, skip_atoms)
        if stage.predicate and not source.may_match(unit, stage.predicate):
            return iter(())
        return source.read(unit, stage.columns, skip_atoms)

    def _permuted(self, unit: Unit, skip_atoms: int) -> Iterator[Block]:
        """As many rows as the unit has, from all over the source."""
        order = self.rows_order
        if skip_atoms or order is None:
            return
        start = unit.atom * unit.atom_rows
        index = order.forward(np.arange(start, start + unit.rows, dtype=np.int64))
        yield self.stage.source.rows_at(index, self.stage.columns)


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that a partition aims at, and that the stage may hold in all."""

    target_bytes: int
    most_bytes: int


def partitions(
    reading: Reading, task: Task, sizes: Sizes, mine: Callable[[], Tally]
) -> Iterator[Outcome]:
    """The partitions of one task, each of about ``target_bytes`` or one block.

    ``mine`` gives the tally of the thread that runs at the time.
    """
    held: list[Piece] = []
    held_bytes = rows = 0
    parked = Parked(reading.stage, sizes.most_bytes)
    for piece in _pieces(reading, task, parked, mine):
        held.append(piece)
        if piece.block is not None:
            held_bytes += piece.block.nbytes
            rows += piece.block.n
        last = piece.error is not None or (piece.ends and piece.place == task.stop - 1)
        if held_bytes >= sizes.target_bytes or last:
            yield Outcome(held, held_bytes, rows, done=last, parked_bytes=parked.nbytes)
            held, held_bytes, rows = [], 0, 0
        if last:
            return


class Parked:
    """What the generator of a task holds beside its partitions: a decoder and Python rows."""

    def __init__(self, stage: Stage, most_bytes: int) -> None:
        self.stage, self.most_bytes = stage, most_bytes
        self.calls_bytes = max((_calls_bytes(node) for node in stage.steps), default=0)
        self.nbytes = 0

    def open(self, unit: Unit) -> None:
        """Begin to read ``unit``; MemoryContractError if that cannot fit."""
        stage = self.stage
        working = stage.source.working_bytes(unit, stage.columns)
        self.nbytes = working + self.calls_bytes
        if working > self.most_bytes:
            raise MemoryContractError(
                "one row group does not fit into the memory number",
                at=unit.place,
                why=f"reading it takes {working} bytes for pages and one atom of its"
                f" {len(stage.columns)} columns; the stage may hold {self.most_bytes}",
                try_="a larger memory_limit=, fewer num_workers= or columns, smaller row groups",
            )

    def check(self, block: Block, unit: Unit) -> None:
        """Refuse a block that alone is more than the stage may hold."""
        if block.nbytes > self.most_bytes:
            raise MemoryContractError(
                f"{block.n} rows do not fit into the memory number",
                at=unit.place,
                why=f"they take {block.nbytes} bytes; the stage may hold {self.most_bytes}",
                try_="a larger memory_limit=, or a smaller atom_rows= of the source",
            )


def _calls_bytes(node: Node) -> int:
    """What a user's function holds as Python rows, in and out."""
    columns = len(node.inputs[0].schema) or MANY_COLUMNS
    return 2 * CALLS * columns * CELL_BYTES if hasattr(node, "fn") else 0


def _pieces(
    reading: Reading, task: Task, parked: Parked, mine: Callable[[], Tally]
) -> Iterator[Piece]:
    """The output of every atom, a piece per block; the last of a unit says so."""
    for place in range(task.start, task.stop):
        unit = reading.unit_at(place)
        first = Task(place, place, task.skip_atoms if place == task.start else 0)
        held: Piece | None = None
        for piece in _unit_pieces(reading, unit, first, parked, mine):
            if held is not None and piece.ends:
                piece = dataclasses.replace(held, ends=True)  # noqa: PLW2901 (one piece of two)
            elif held is not None:
                yield held
            # what follows the last atom costs no work to see, and spares a slice
            held = piece if piece.atom == unit.atoms - 1 and not piece.stops else None
            if held is None:
                yield piece
            if piece.error is not None:
                return


def _unit_pieces(
    reading: Reading, unit: Unit, first: Task, parked: Parked, mine: Callable[[], Tally]
) -> Iterator[Piece]:
    """A piece per block of ``unit``, and one that closes it."""
    place, atom = first.start, first.skip_atoms
    block: Block | None = None
    try:
        parked.open(unit)
        for block in _timed_read(reading, unit, atom, mine):
            for out in _through(reading, 0, block, mine):
                parked.check(out, unit)
                yield Piece(place, atom, finished(out) if reading.finishing else out)
            atom += 1
    except DmlError as error:
        yield Piece(place, atom, error=placed(error, unit, block))
    except MemoryError as error:
        yield Piece(place, atom, error=_no_memory(error, unit))
    except Exception as error:  # noqa: BLE001 - whatever happens, it says where
        yield Piece(place, atom, error=placed(_unexpected(error), unit, block))
    else:
        yield Piece(place, atom, ends=True)


class Stopwatch:
    """Seconds of a step, and how many of them the processor was at work.

    To ask for a thread's processor time takes microseconds, and much more on a busy machine, so
    it is asked for every 64th time; the others are judged by that one. Threads may share one.
    """

    def __init__(self) -> None:
        self.count, self.share = 0, 1.0

    def time(self, blocks: Iterator[Block], node: Node) -> tuple[Block | None, float, float]:
        """The next block, elapsed seconds, processor seconds."""
        asking = not self.count % ASKED
        self.count += 1
        cpu = time.thread_time() if asking else 0.0
        started = time.perf_counter()
        block = _next(blocks, node)
        seconds = time.perf_counter() - started
        if asking and seconds:
            self.share = min(1.0, (time.thread_time() - cpu) / seconds)
        return block, seconds, seconds * self.share


def _timed_read(
    reading: Reading, unit: Unit, skip_atoms: int, mine: Callable[[], Tally]
) -> Iterator[Block]:
    blocks = iter(reading.read(unit, skip_atoms))
    fetched = reading.stage.source.stored_bytes(unit, reading.stage.columns)
    while True:
        block, seconds, cpu_s = reading.watches[0].time(blocks, reading.stage.source)
        if block is None:
            return
        mine().block(0, 0, block.n, fetched, block.nbytes, seconds, cpu_s)
        fetched = 0
        yield block


def _through(
    reading: Reading, done: int, block: Block, mine: Callable[[], Tally]
) -> Iterator[Block]:
    """``block`` through the steps from number ``done`` on, one after the other."""
    steps: Sequence[Any] = reading.stage.steps
    if done == len(steps):
        yield block.bare()
        return
    made = steps[done].run(block, reading.at)
    rows_in, bytes_in = block.n, block.nbytes
    while True:
        out, seconds, cpu_s = reading.watches[done + 1].time(made, steps[done])
        if out is None:
            mine().calls(done + 1, _calls(steps[done], block))
            return
        mine().block(done + 1, rows_in, out.n, bytes_in, out.nbytes, seconds, cpu_s)
        rows_in = bytes_in = 0
        yield from _through(reading, done + 1, out, mine)


def _calls(node: Node, block: Block) -> int:
    """How often ``node`` called the user's function on ``block``, which it has worked through."""
    called = hasattr(node, "fn") and (not isinstance(node, LiftedNode) or node.trust.differs)
    return block.n if called else 0


def _next(blocks: Iterator[Block], node: Node) -> Block | None:
    """The next block of ``node``, whose errors name it and the user's line."""
    try:
        return next(blocks, None)
    except DmlError as error:
        raise error.under(node.label()) from error.__cause__


def placed(error: DmlError, unit: Unit, block: Block | None) -> DmlError:
    """The error with the file, row group and row that it is about, as far as they are known."""
    row = _row_of(error, block)
    error.__dict__.pop("row_id", None)
    return _spotted(error, unit, row)


def traced(error: DmlError, source: Source, stream: Sequence[Node]) -> DmlError:
    """The error with the place in ``source`` of the row that it blames, if it blames one."""
    ids: RowIds | None = error.__dict__.pop("row_id", None)
    while ids is not None:
        # ids of an operator's making are as good as random: hardly one is a row's number
        for i in np.flatnonzero(ids.low() < (source.row_count or 0))[:16]:
            unit = source.unit_of(ids.slice(int(i), int(i) + 1))
            if unit is not None:
                return _spotted(error, unit, int(ids.low()[i]))
        repeat = next((node for node in reversed(stream) if hasattr(node, "origins")), None)
        stream = stream[: stream.index(repeat)] if repeat is not None else ()
        ids = repeat.origins(ids) if repeat is not None else None
    return error


def _spotted(error: DmlError, unit: Unit, row: int | None) -> DmlError:
    spot = unit.place if row is None else f"{unit.place}, row {row}"
    if spot and spot not in error.at:
        error.at = f"{error.at}; {spot}" if error.at else spot
    if isinstance(error, UDFError):
        error.file, error.row_group, error.row = unit.file, unit.row_group, row
    return error


def _row_of(error: DmlError, block: Block | None) -> int | None:
    """The number of the failing row in its source, unless its id is of an operator's making."""
    ids = getattr(error, "row_id", None)
    if ids is None or block is None or not block.n:
        return None
    high, low = ids.arrays()
    first, rest = block.ids.slice(0, 1).arrays()
    return int(low[0]) if high[0] == first[0] and low[0] >= rest[0] else None


def _unexpected(error: Exception) -> DmlError:
    """An exception that no rule of dml expects, as the bug that it is."""
    found = InternalError(
        f"{type(error).__name__}: {error}", try_="report this with the full traceback"
    )
    found.__cause__ = error
    return found


def _no_memory(error: MemoryError, unit: Unit) -> DmlError:
    found = MemoryContractError(
        "the process ran out of memory",
        at=unit.place,
        try_="a smaller memory_limit=, or fewer num_workers=",
    )
    found.__cause__ = error
    return found
