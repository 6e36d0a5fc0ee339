"""This file is what a worker executes: read units, run the stage's steps, cut partitions.

Errors gain their place here: the file, row group and row that the failing block came from. An
error is the end of its task's partitions, and is delivered after the rows that came before it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dml.errors import DmlError, InternalError, MemoryContractError, UDFError
from dml.events import Tally
from dml.exec.slices import Outcome
from dml.expr.block import Block
from dml.expr.flow import At
from dml.expr.node import Node
from dml.expr.ops.map_rows import CALLS
from dml.expr.ops.shuffle_all import ShuffleAll
from dml.expr.ops.shuffle_atoms import ShuffleAtoms
from dml.expr.sources.source import Source, Unit
from dml.kernels.ids import RowIds
from dml.kernels.permute import IndexPermutation
from dml.plan import Stage

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


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """Units at places ``start`` to ``stop`` of the reading order, the first from ``skip_atoms``."""

    start: int
    stop: int
    skip_atoms: int = 0


class Reading:
    """One epoch of a stage: which unit stands at which place, and the blocks of each."""

    def __init__(self, stage: Stage, at: At) -> None:
        self.stage, self.at = stage, at
        source, order = stage.source, stage.order
        self.places = source.unit_count
        self.rows_order: IndexPermutation | None = None
        self.unit_order: IndexPermutation | None = None
        if isinstance(order, ShuffleAll):
            self.rows_order = order.permutation(at, at.epoch)
        elif isinstance(order, ShuffleAtoms):
            self.unit_order = order.order(at, at.epoch, self.places)

    def unit_at(self, place: int) -> Unit:
        """The unit that is read at ``place``."""
        if self.unit_order is None:
            return self.stage.source.unit(place)
        (index,) = self.unit_order.forward(np.array([place], dtype=np.int64))
        return self.stage.source.unit(int(index))

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
        self.nbytes = stage.source.working_bytes(unit, stage.columns) + self.calls_bytes
        if self.nbytes > self.most_bytes:
            raise MemoryContractError(
                "one row group does not fit into the memory number",
                at=unit.place,
                why=f"reading it takes {self.nbytes} bytes for pages and one atom of its"
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
    """The output of every atom, a piece per block, and a closing piece per unit."""
    for place in range(task.start, task.stop):
        unit = reading.unit_at(place)
        atom = task.skip_atoms if place == task.start else 0
        block: Block | None = None
        try:
            parked.open(unit)
            for block in _timed_read(reading, unit, atom, mine):
                for out in _through(reading.stage.steps, 0, block, reading.at, mine):
                    parked.check(out, unit)
                    yield Piece(place, atom, out)
                atom += 1
        except DmlError as error:
            yield Piece(place, atom, error=placed(error, unit, block))
            return
        except MemoryError as error:
            yield Piece(place, atom, error=_no_memory(error, unit))
            return
        except Exception as error:  # noqa: BLE001 - whatever happens, it says where
            yield Piece(place, atom, error=placed(_unexpected(error), unit, block))
            return
        yield Piece(place, atom, ends=True)


def _timed_read(
    reading: Reading, unit: Unit, skip_atoms: int, mine: Callable[[], Tally]
) -> Iterator[Block]:
    blocks = iter(reading.read(unit, skip_atoms))
    fetched = reading.stage.source.stored_bytes(unit, reading.stage.columns)
    while True:
        started, cpu = time.perf_counter(), time.thread_time()
        block = _next(blocks, reading.stage.source)
        seconds, cpu_s = time.perf_counter() - started, time.thread_time() - cpu
        if block is None:
            return
        mine().block(0, 0, block.n, fetched, block.nbytes, seconds, cpu_s)
        fetched = 0
        yield block


def _through(
    steps: Sequence[Node], done: int, block: Block, at: At, mine: Callable[[], Tally]
) -> Iterator[Block]:
    """``block`` through the steps from number ``done`` on, one after the other."""
    if done == len(steps):
        yield block.bare()
        return
    made = steps[done].run(block, at)
    rows_in, bytes_in = block.n, block.nbytes
    while True:
        started, cpu = time.perf_counter(), time.thread_time()
        out = _next(made, steps[done])
        seconds, cpu_s = time.perf_counter() - started, time.thread_time() - cpu
        if out is None:
            return
        mine().block(done + 1, rows_in, out.n, bytes_in, out.nbytes, seconds, cpu_s)
        rows_in = bytes_in = 0
        yield from _through(steps, done + 1, out, at, mine)


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


def traced(error: DmlError, source: Source) -> DmlError:
    """The error with the place in ``source`` of the row that it blames, if it blames one."""
    ids: RowIds | None = error.__dict__.pop("row_id", None)
    unit = None if ids is None else source.unit_of(ids)
    if ids is None or unit is None:
        return error
    return _spotted(error, unit, int(ids.low()[0]))


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
