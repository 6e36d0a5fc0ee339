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
from dml.exec.tasks.unit_input import Atom, Running, UnitRequest
from dml.exec.tasks.unit_reader import Reading
from dml.expr.flow import WHOLE
from dml.io.source import Unit
from dml.physical.plan import Link, Stage
from dml.udfs.calling.batch_arrays import finished


def partitions(
    reading: Reading, task: ReadTask, sizes: PartitionSizes, mine: Callable[[], Tally]
) -> Iterator[Outcome]:
    """Yield the partitions of ``task``, each of about ``target_bytes`` or one block.

    ``mine`` returns the tally of the current thread. Each block of an open unit is a partition,
    since the time until the next one is unknown.
    """
    if task.start < task.stop and reading.unit_at(task.start).is_open:
        sizes = dataclasses.replace(sizes, target_bytes=1)
    parked = Parked(reading.steps, 0, sizes, grain=reading.grain)
    cutter = PartitionCutter(parked)
    for place, made in spans(reading, task, sizes, mine):
        if made is not None:
            yield from cutter.add(made, last=place + 1 + len(made.firsts) == task.stop)
            continue
        unit = _UnitOutput(reading, task, place, parked, mine)
        try:
            for origin, blocks in unit.atoms():
                unit.origin = origin
                for block in parked.fitting(blocks):
                    yield from cutter.add(*unit.pieces(block))
                unit.atom += 1
        except Exception as error:  # noqa: BLE001 - whatever happens, it says where
            yield from cutter.add(*unit.failed(error), last=True)
            return
        yield from cutter.add(*unit.ended(), last=place + 1 == task.stop)


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
    cutter = PartitionCutter(parked)
    for piece, last in _linked_pieces(linking, given, parked, mine):
        yield from cutter.add(piece, last=last)


class PartitionCutter:
    """Gathers the pieces of a task into partitions.

    A large enough partition ends with an atom, or after a multiple of ``grain`` rows of an atom.
    """

    def __init__(self, parked: Parked) -> None:
        self.parked = parked
        self.where: tuple[int, int] | None = None  # the atom of the last piece
        self.given = 0  # rows of that atom
        self._begin()

    def _begin(self) -> None:
        self.held: list[Piece] = []
        self.held_bytes = self.weight = self.rows = 0

    def add(self, *pieces: Piece, last: bool = False) -> Iterator[Outcome]:
        """Yield the partitions that ``pieces`` complete; ``last`` if no more pieces will come."""
        most = self.parked.sizes.target_bytes
        for number, piece in enumerate(pieces, 1):
            if piece.where != self.where:
                if self.held and self.weight >= most:
                    yield self._partition()
                self.where, self.given = piece.where, 0
            self._hold(piece)
            done = last and number == len(pieces)
            whole = piece.ends or not self.given % self.parked.grain
            if done or ((self.weight >= most or self.parked.late) and whole):
                yield self._partition(done=done)

    def _hold(self, piece: Piece) -> None:
        self.held.append(piece)
        if piece.block is not None:
            self.held_bytes += piece.block.nbytes
            self.weight += piece.block.weight
            self.rows += piece.block.n
            self.given += piece.block.n
        if piece.returned is not None:
            self.held_bytes += piece.returned.nbytes
            self.weight += piece.returned.nbytes
            self.rows += len(piece.returned.out)

    def _partition(self, *, done: bool = False) -> Outcome:
        """Return the held pieces as one partition, with the bytes of rows and of objects."""
        held, rows = self.held, self.rows
        whole_bytes = self.held_bytes + beside_rows(held)
        self._begin()
        ends = self.parked.taken_ends() if self.parked.reached else ()
        parked_bytes = self.parked.nbytes
        return Outcome(held, whole_bytes, rows, done=done, parked_bytes=parked_bytes, ends=ends)


def beside_rows(pieces: Sequence[Piece]) -> int:
    """Return the bytes of a partition's Python objects, without those of its rows."""
    columns = sum(len(piece.block.schema) for piece in pieces if piece.block is not None)
    return objects_bytes(len(pieces), columns)


class Parked:
    """Bytes of a task's generator without its partitions: for the decoder and for Python rows.

    It also gathers the ends of a unit's blocks (``Outcome.ends``) for the next partition, the last
    of which is ``reached``. If it is inside an atom, rows come slowly (``late``).
    """

    def __init__(
        self, steps: Steps, memory: int, sizes: PartitionSizes, *, grain: int, rows: int = CALLS
    ) -> None:
        self.steps, self.sizes, self.grain, self.rows = steps, sizes, grain, rows
        self.memory = self.open_bytes = memory
        self.largest_bytes = 0
        self._inside: list[int] = []
        self.reached, self.late = 0, False

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

    def ended(self, row: int, inside: bool) -> None:  # noqa: FBT001 - a callback
        """Record that a block ends at ``row`` of a unit, perhaps ``inside`` an atom."""
        self.reached, self.late = row, inside
        if inside:
            self._inside.append(row)

    def taken_ends(self) -> tuple[int, ...]:
        """Return the recorded ends inside atoms, then the last end; forget those inside."""
        inside, self._inside = self._inside, []
        return (*inside, self.reached)

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


class _UnitOutput:
    """Makes the pieces of one unit of a task, and adds places to errors.

    A piece that may be the last of the unit waits for the next one. Looking for a piece after the
    last atom costs no work, and saves a slice. But pieces do not wait if the atom becomes several
    blocks, which may be delivered one by one.
    """

    origin: Block | None = None
    """The source block of the current atom; None if none was read, or its rows are from a store."""

    def __init__(
        self,
        reading: Reading,
        task: ReadTask,
        place: int,
        parked: Parked,
        mine: Callable[[], Tally],
    ) -> None:
        self.reading, self.place, self.parked, self.mine = reading, place, parked, mine
        self.unit, self.noted = reading.unit_at(place), Noted(each=reading.at.bounded)
        if reading.stage.source.may_be_slow and task.stop - task.start == 1:
            self.unit = dataclasses.replace(self.unit, ends=task.ends)
        self.atom = task.skip_atoms if place == task.start else 0
        self.last_atom = None if self.unit.atoms is None else self.unit.atoms - 1
        self.held: list[Piece] = []  # the piece that waits, if any
        reading.begun(place)

    def atoms(self) -> Iterator[Atom]:
        """Open the unit, and return its output atoms."""
        reading, unit, parked = self.reading, self.unit, self.parked
        parked.open(reading.stage, unit)
        changed_ns = partial(reading.stage.source.changed_ns, unit)
        telling = (changed_ns, parked.sizes.most_bytes, parked.hold)
        run = Running(
            reading.at, self.mine, self.noted, *telling, reading=reading, place=self.place
        )
        read: Callable[[int], Iterator[Atom]] = partial(reading.atoms, unit, self.mine)
        if unit.ends is not None:
            read = partial(reading.slow_atoms, unit, self.mine, parked.ended)
        return reading.top.atoms(UnitRequest(unit, self.atom, read, run))

    def pieces(self, block: Block) -> list[Piece]:
        """Return the pieces that are ready once the next output block is known."""
        made = finished(block) if self.reading.finishing else block
        piece = Piece(self.place, self.atom, made, losses=self._losses())
        ready, self.held = self.held, []
        if ready and self.reading.grain != WHOLE:
            self.last_atom = None
        if self.atom == self.last_atom:
            self.held = [piece]
            return ready
        return [*ready, piece]

    def failed(self, error: Exception) -> list[Piece]:
        """Return the last pieces of the task, which ``error`` has ended."""
        found = self._located(as_error(error, self.unit.place))
        return [*self.held, Piece(self.place, self.atom, error=found, losses=self._losses())]

    def ended(self) -> list[Piece]:
        """Return the last pieces of the unit."""
        losses = self._losses()
        if self.held and not losses:
            return [self.held[0].last()]
        return [*self.held, Piece(self.place, self.atom, ends=True, losses=losses)]

    def _losses(self) -> tuple[Loss, ...]:
        return self.noted.drain(self._located)

    def _located(self, error: DmlError) -> DmlError:
        if self.origin is None:
            return placed_later(error, self.unit, self.reading.stage.source)
        return placed(error, self.unit, self.origin)


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
