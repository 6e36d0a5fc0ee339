"""Read units, run the steps of a stage on their blocks, and cut the output into partitions.

The pieces of a stage are in order of (place, atom), and the output of a later stage for an atom is
a function of that atom's blocks alone. So results do not depend on where partitions are cut, or on
the atom at which a run resumes. A source reads an atom as one block; if a later step must see whole
atoms, all pieces of an atom travel in one partition.

Errors get their place here: the file, row group and row of the failing block. An error ends the
partitions of its task, and is delivered after the rows that came before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from dml.data.block import Block
from dml.data.row_slicing import CALLS
from dml.errors import DmlError, MemoryContractError
from dml.events import Tally
from dml.exec.memory.memory_shares import HAND_BYTES, calls_bytes, objects_bytes, too_large
from dml.exec.tasks.coalesced_units import spans
from dml.exec.tasks.error_row import as_error, placed, placed_later
from dml.exec.tasks.partition import PartitionSizes, Piece, ReadTask
from dml.exec.tasks.skipped_rows import Loss, Noted
from dml.exec.tasks.slices import Outcome
from dml.exec.tasks.steps import Steps
from dml.exec.tasks.unit_input import Running
from dml.exec.tasks.unit_reader import Reading
from dml.expr.flow import WHOLE
from dml.io.source import Unit
from dml.physical.plan import Link, Stage
from dml.udfs.calling.batch_arrays import finished


def partitions(
    reading: Reading, task: ReadTask, sizes: PartitionSizes, mine: Callable[[], Tally]
) -> Iterator[Outcome]:
    """Yield the partitions of ``task``, each of about ``target_bytes`` or one block.

    ``mine`` returns the tally of the current thread. Each atom of an open unit is a partition,
    since the time until the next atom is unknown.
    """
    if task.start < task.stop and reading.unit_at(task.start).is_open:
        sizes = dataclasses.replace(sizes, target_bytes=1)
    parked = Parked(reading.steps, 0, sizes, grain=reading.grain)
    made = (
        (piece, piece.error is not None or (piece.ends and _beyond(piece) == task.stop))
        for piece in _pieces(reading, task, parked, mine)
    )
    return partitions_of(made, parked)


class Linking:
    """An epoch of a later stage: steps of ``link``, ordinals from ``first`` on; see ``Reading``."""

    def __init__(
        self, reading: Reading, link: Link, first: int, *, finishing: bool, grain: int
    ) -> None:
        self.reading, self.finishing, self.grain = reading, finishing, grain
        self.steps, self.memory = Steps(link.steps, reading.at, first), link.needs.memory


def carried_on(
    linking: Linking, given: Sequence[Piece], sizes: PartitionSizes, mine: Callable[[], Tally]
) -> Iterator[Outcome]:
    """Yield the output partitions of a later stage for ``given``, the pieces of one partition."""
    parked = Parked(linking.steps, linking.memory, sizes, grain=linking.grain)
    made = _linked_pieces(linking, given, parked, mine)
    return partitions_of(made, parked)


def partitions_of(made: Iterator[tuple[Piece, bool]], parked: Parked) -> Iterator[Outcome]:
    """Yield partitions of the pieces ``made``; each piece has a flag, True for the last piece.

    A large enough partition ends with an atom, or after a multiple of ``grain`` rows of an atom.
    """
    target_bytes, grain = parked.sizes.target_bytes, parked.grain
    held: list[Piece] = []
    held_bytes = weight = rows = given = 0
    where: tuple[int, int] | None = None
    for piece, last in made:
        if piece.where != where:
            if where is not None and held and weight >= target_bytes:
                yield _partition(held, held_bytes, rows, parked)
                held, held_bytes, weight, rows = [], 0, 0, 0
            where, given = piece.where, 0
        held.append(piece)
        if piece.block is not None:
            held_bytes += piece.block.nbytes
            weight += piece.block.weight
            rows += piece.block.n
            given += piece.block.n
        if piece.returned is not None:
            held_bytes += piece.returned.nbytes
            weight += piece.returned.nbytes
            rows += len(piece.returned.out)
        if last or (weight >= target_bytes and (piece.ends or not given % grain)):
            yield _partition(held, held_bytes, rows, parked, done=last)
            held, held_bytes, weight, rows = [], 0, 0, 0
        if last:
            return


def _partition(
    held: list[Piece], held_bytes: int, rows: int, parked: Parked, *, done: bool = False
) -> Outcome:
    """Return the pieces as one partition, with ``held_bytes`` of rows and the bytes of objects."""
    whole_bytes = held_bytes + beside_rows(held)
    return Outcome(held, whole_bytes, rows, done=done, parked_bytes=parked.nbytes)


def beside_rows(pieces: Sequence[Piece]) -> int:
    """Return the bytes of a partition's Python objects, without those of its rows."""
    columns = sum(len(piece.block.schema) for piece in pieces if piece.block is not None)
    return objects_bytes(len(pieces), columns)


class Parked:
    """Bytes of a task's generator without its partitions: for the decoder and for Python rows."""

    def __init__(
        self, steps: Steps, memory: int, sizes: PartitionSizes, *, grain: int, rows: int = CALLS
    ) -> None:
        self.steps, self.sizes, self.grain, self.rows = steps, sizes, grain, rows
        self.memory = self.open_bytes = memory
        self.largest_bytes = 0

    @property
    def nbytes(self) -> int:
        """Expected bytes of the generator.

        They include the bytes by which the largest block so far exceeds a usual one: its producer
        had a second copy of it, and later blocks may need as much.
        """
        usual = max(self.sizes.target_bytes, HAND_BYTES)
        return self.open_bytes + self._calling_bytes + max(0, self.largest_bytes - usual)

    @property
    def _calling_bytes(self) -> int:
        """Most bytes that a function of the steps needs for the rows of an atom."""
        schemas = self.steps.at.schemas
        each = (calls_bytes(node, self.rows, schemas) for node in self.steps.nodes)
        return max(each, default=0)

    def open(self, stage: Stage, unit: Unit) -> None:
        """Begin to read ``unit``; raise MemoryContractError if that needs too much memory."""
        working = stage.source.working_bytes(unit, stage.columns)
        self.open_bytes = working + self.memory
        self.rows = unit.atom_rows if unit.rows is None else min(unit.rows, unit.atom_rows)
        if working > self.sizes.most_bytes:
            raise too_large(stage, working, self.sizes.most_bytes, unit.place)

    def hold(self, nbytes: int) -> None:
        """Count ``nbytes`` more bytes of the current unit in memory."""
        self.open_bytes += nbytes

    def fitting(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the blocks of an atom; raise MemoryContractError for a block that is too large.

        A block that begins a group of ``grain`` rows may have up to ``sizes.most_bytes``. If a
        group has several blocks, they may have up to ``sizes.atom_bytes`` together.
        """
        rows = held_bytes = given = 0
        for block in blocks:
            kept = given % self.grain != 0
            given += block.n
            rows, held_bytes = rows * kept + block.n, held_bytes * kept + block.nbytes
            self.largest_bytes = max(self.largest_bytes, block.nbytes)
            most_bytes = self.sizes.atom_bytes if kept else self.sizes.most_bytes
            if held_bytes > most_bytes:
                raise MemoryContractError(
                    f"{rows} rows do not fit into the memory number",
                    why=f"they take {held_bytes} bytes; they may take {most_bytes}"
                    f"{' as one atom or group, which map_batches sees whole' * kept}",
                    try_="a larger memory_limit=, or a smaller atom_rows= of the source",
                )
            yield block


def _pieces(
    reading: Reading, task: ReadTask, parked: Parked, mine: Callable[[], Tally]
) -> Iterator[Piece]:
    """Yield a piece for each output block of ``task``; a unit's last piece has ``ends`` set."""
    for places, made in spans(reading, task, parked.sizes, mine):
        if made is not None:
            yield Piece(places.start, 0, made[0], ends=True, firsts=made[1])
            continue
        for piece in _apart(reading, task, places, parked, mine):
            yield piece
            if piece.error is not None:
                return


def _apart(
    reading: Reading, task: ReadTask, places: range, parked: Parked, mine: Callable[[], Tally]
) -> Iterator[Piece]:
    """Yield the output of the task's units at ``places``, unit by unit."""
    for place in places:
        unit = reading.unit_at(place)
        reading.begun(place)
        first = ReadTask(place, place, task.skip_atoms if place == task.start else 0)
        held: Piece | None = None
        grows = False
        for piece in _unit_pieces(reading, unit, first, parked, mine):
            if held is not None and piece.ends and not piece.losses:
                piece = held.last()  # noqa: PLW2901 (of two)
            elif held is not None:
                grows = reading.grain != WHOLE
                yield held
            # looking for a piece after the last atom costs no work, and saves a slice; but not if
            # the atom becomes several blocks, which may be delivered one by one
            last = unit.atoms is not None and piece.atom == unit.atoms - 1
            held = piece if last and not (piece.stops or grows) else None
            if held is None:
                yield piece
            if piece.error is not None:
                return


def _unit_pieces(
    reading: Reading, unit: Unit, first: ReadTask, parked: Parked, mine: Callable[[], Tally]
) -> Iterator[Piece]:
    """Yield a piece for each output block of ``unit``, and a last piece that ends the unit."""
    place, atom = first.start, first.skip_atoms
    block: Block | None = None
    noted = Noted(each=reading.at.bounded)
    read = partial(_timed_read, reading, unit, mine=mine)

    def at_its_place(error: DmlError) -> DmlError:
        if block is None:  # rows are from a store, or none were read yet
            return placed_later(error, unit, reading.stage.source)
        return placed(error, unit, block)

    try:
        parked.open(reading.stage, unit)
        changed_ns = partial(reading.stage.source.changed_ns, unit)
        most_bytes = parked.sizes.most_bytes
        telling = (changed_ns, most_bytes, parked.hold)
        running = Running(reading.at, mine, noted, *telling, reading=reading, place=place)
        for block, blocks in reading.top.atoms(unit, atom, read, running):  # noqa: B007 - where errors are placed
            for out in parked.fitting(blocks):
                made = finished(out) if reading.finishing else out
                yield Piece(place, atom, made, losses=noted.drain(at_its_place))
            atom += 1
    except Exception as error:  # noqa: BLE001 - whatever happens, it says where
        found = at_its_place(as_error(error, unit.place))
        yield Piece(place, atom, error=found, losses=noted.drain(at_its_place))
    else:
        yield Piece(place, atom, ends=True, losses=noted.drain(at_its_place))


def _timed_read(
    reading: Reading, unit: Unit, skip_atoms: int, mine: Callable[[], Tally]
) -> Iterator[Block]:
    if reading.late is not None and reading.late.spares(unit, skip_atoms, mine):
        return
    blocks = iter(reading.read(unit, skip_atoms))
    fetched = reading.stage.source.stored_bytes(unit, reading.stage.columns)
    while True:
        block, seconds, cpu_s = reading.watch.time(blocks, reading.stage.source)
        if block is None:
            return
        mine().block(0, 0, block.n, fetched, block.nbytes, seconds, cpu_s)
        fetched = 0
        yield block


def _linked_pieces(
    linking: Linking, given: Sequence[Piece], parked: Parked, mine: Callable[[], Tally]
) -> Iterator[tuple[Piece, bool]]:
    """Yield a later stage's pieces for ``given``, each with a flag that is True for the last."""
    atoms = [list(pieces) for _, pieces in groupby(given, attrgetter("where"))]
    for number, pieces in enumerate(atoms, 1):
        held: Piece | None = None
        for piece in _atom_pieces(linking, pieces, parked, mine):
            if held is not None:
                yield held, False
            held = piece
        last, ends = number == len(atoms), pieces[-1].ends
        if held is not None and held.error is not None:
            yield held, True
            return
        if last or ends:
            held = dataclasses.replace(held or Piece(*pieces[0].where), ends=ends)
        if held is not None:
            yield held, last


def _atom_pieces(
    linking: Linking, pieces: Sequence[Piece], parked: Parked, mine: Callable[[], Tally]
) -> Iterator[Piece]:
    """Yield a piece for each block of one atom, or for the error of this or an earlier stage."""
    place, atom = pieces[0].where
    linking.reading.begun(place)
    unit, source = linking.reading.unit_at(place), linking.reading.stage.source
    noted = Noted(each=linking.reading.at.bounded)

    def lost() -> tuple[Loss, ...]:
        return noted.drain(lambda error: placed_later(error, unit, source))

    try:
        for out in parked.fitting(linking.steps.run(blocks_of(pieces, noted), mine, noted)):
            yield Piece(place, atom, finished(out) if linking.finishing else out, losses=lost())
    except Exception as error:  # noqa: BLE001 - whatever happens, it says where
        found = pieces[-1].error
        if error is not found:
            found = placed_later(as_error(error, unit.place), unit, source)
        yield Piece(place, atom, error=found, losses=lost())
    else:
        if losses := lost():
            yield Piece(place, atom, losses=losses)


def blocks_of(pieces: Sequence[Piece], noted: Noted) -> Iterator[Block]:
    """Yield the blocks of an atom, then raise an error of its pieces; pass losses to ``noted``."""
    for piece in pieces:
        noted.pass_on(piece.losses)
        if piece.block is not None:
            yield piece.block
        if piece.error is not None:
            raise piece.error


def _beyond(piece: Piece) -> int:
    return piece.place + 1 + len(piece.firsts)
