"""This file is what a worker executes: read units, run a stage's steps, cut partitions.

Law of the chain: the pieces of a stage are in order of (place, atom), and what a later stage makes
of an atom is a function of the blocks of that atom, so that neither cutting partitions nor
resuming at an atom can be seen. A source gives an atom as one block; where a later step must see
an atom whole, all its pieces travel in one partition.

Errors gain their place here: the file, row group and row that the failing block came from. An
error is the end of its task's partitions, and is delivered after the rows that came before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from dml.errors import DmlError, MemoryContractError
from dml.events import Tally
from dml.exec.blame import as_error, placed, placed_later
from dml.exec.budget import HAND_BYTES, calls_bytes, objects_bytes, too_large
from dml.exec.losses import Loss, Noted
from dml.exec.reading import Reading
from dml.exec.slices import Outcome
from dml.exec.spanning import Firsts, spans
from dml.exec.steps import Steps
from dml.exec.stored import Running
from dml.expr.block import Block
from dml.expr.cutting import CALLS
from dml.expr.delivery import finished
from dml.expr.flow import UNBOUNDED, WHOLE
from dml.expr.settling import Returned
from dml.expr.sources.source import Unit
from dml.plan import Link, Stage


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Some output of atom ``atom`` of the unit at ``place``; with ``firsts``, of units from there.

    ``block`` follows those of earlier pieces of the same atom; ``ends`` says that the unit has no
    more, ``error`` what stopped it. ``losses`` are rows that functions cost since the last piece;
    where a run may lose a certain number (``At.bounded``) all of them before the rows of this one.
    ``returned`` is what a function returned instead of a block, in no types yet.
    """

    place: int
    atom: int
    block: Block | None = None
    ends: bool = False
    error: DmlError | None = None
    losses: tuple[Loss, ...] = ()
    firsts: Firsts = ()
    returned: Returned | None = None

    def last(self) -> Piece:
        """The same as the last of its unit."""
        stands = (self.place, self.atom, self.block)
        return Piece(*stands, True, self.error, self.losses, self.firsts)  # noqa: FBT003

    @property
    def where(self) -> tuple[int, int]:
        """Its unit's place, and the atom."""
        return self.place, self.atom

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


@dataclasses.dataclass(frozen=True, slots=True)
class TaskList:
    """Tasks of ``each`` units from place ``first`` on, made when asked for.

    The first task has ``long`` units, if those are more: such as have the rows that settle types.
    """

    first: int
    places: int
    each: int
    skip_atoms: int
    long: int = 0

    def __len__(self) -> int:
        rest = self.places - self.first - self._more
        return max(-(-rest // self.each), int(self.places > self.first))

    def __getitem__(self, i: int) -> Task:
        start = self.first + i * self.each + (self._more if i else 0)
        stop = min(self.first + (i + 1) * self.each + self._more, self.places)
        return Task(start, stop, 0 if i else self.skip_atoms)

    @property
    def _more(self) -> int:
        """Units that the first task has more than the others."""
        return max(0, self.long - self.each)


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that a partition aims at, that the stage may hold in all, and one task of an atom."""

    target_bytes: int
    most_bytes: int
    atom_bytes: int = UNBOUNDED


def partitions(
    reading: Reading, task: Task, sizes: Sizes, mine: Callable[[], Tally]
) -> Iterator[Outcome]:
    """The partitions of one task, each of about ``target_bytes`` or one block.

    ``mine`` gives the tally of the thread that runs at the time. Of an open unit every atom is a
    partition: nobody knows how long the next one takes.
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
    """One epoch of a later stage: the steps of ``link``, the first of which has number ``first``.

    ``finishing`` and ``grain`` are as those of the reading.
    """

    def __init__(
        self, reading: Reading, link: Link, first: int, *, finishing: bool, grain: int
    ) -> None:
        self.reading, self.finishing, self.grain = reading, finishing, grain
        self.steps, self.memory = Steps(link.steps, reading.at, first), link.needs.memory


def carried_on(
    linking: Linking, given: Sequence[Piece], sizes: Sizes, mine: Callable[[], Tally]
) -> Iterator[Outcome]:
    """The partitions that a later stage makes of one partition of the stage before it."""
    parked = Parked(linking.steps, linking.memory, sizes, grain=linking.grain)
    made = _linked_pieces(linking, given, parked, mine)
    return partitions_of(made, parked)


def partitions_of(made: Iterator[tuple[Piece, bool]], parked: Parked) -> Iterator[Outcome]:
    """Partitions of the pieces ``made``, each with whether it is the last.

    A partition ends with its atom, or where ``grain`` divides the rows that the atom has given.
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
        if last or (weight >= target_bytes and (piece.ends or not given % grain)):
            yield _partition(held, held_bytes, rows, parked, done=last)
            held, held_bytes, weight, rows = [], 0, 0, 0
        if last:
            return


def _partition(
    held: list[Piece], held_bytes: int, rows: int, parked: Parked, *, done: bool = False
) -> Outcome:
    """The pieces as one partition, whose objects are counted beside the ``held_bytes`` of rows."""
    whole_bytes = held_bytes + beside_rows(held)
    return Outcome(held, whole_bytes, rows, done=done, parked_bytes=parked.nbytes)


def beside_rows(pieces: Sequence[Piece]) -> int:
    """Bytes that the objects of a partition take, beside its rows."""
    columns = sum(len(piece.block.schema) for piece in pieces if piece.block is not None)
    return objects_bytes(len(pieces), columns)


class Parked:
    """What the generator of a task holds beside its partitions: a decoder and Python rows."""

    def __init__(
        self, steps: Steps, memory: int, sizes: Sizes, *, grain: int, rows: int = CALLS
    ) -> None:
        self.steps, self.sizes, self.grain, self.rows = steps, sizes, grain, rows
        self.memory = self.open_bytes = memory
        self.largest_bytes = 0

    @property
    def nbytes(self) -> int:
        """What it is expected to take: also what a block took that was large.

        Whoever made that block had as much again in hand: so much is learned of the next ones.
        """
        usual = max(self.sizes.target_bytes, HAND_BYTES)
        return self.open_bytes + self._calling_bytes + max(0, self.largest_bytes - usual)

    @property
    def _calling_bytes(self) -> int:
        """What the function that holds most of the rows of an atom holds, as far as is known."""
        schemas = self.steps.at.schemas
        each = (calls_bytes(node, self.rows, schemas) for node in self.steps.nodes)
        return max(each, default=0)

    def open(self, stage: Stage, unit: Unit) -> None:
        """Begin to read ``unit``; MemoryContractError if that cannot fit."""
        working = stage.source.working_bytes(unit, stage.columns)
        self.open_bytes = working + self.memory
        self.rows = unit.atom_rows if unit.rows is None else min(unit.rows, unit.atom_rows)
        if working > self.sizes.most_bytes:
            raise too_large(stage, working, self.sizes.most_bytes, unit.place)

    def hold(self, nbytes: int) -> None:
        """So much more of the unit lies in memory."""
        self.open_bytes += nbytes

    def fitting(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The blocks of an atom; MemoryContractError for one that is more than the stage may hold.

        Of blocks that must stay together, none but the first may pass what a task may hold.
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
    reading: Reading, task: Task, parked: Parked, mine: Callable[[], Tally]
) -> Iterator[Piece]:
    """The output of every atom, a piece per block; the last of a unit says so."""
    for places, made in spans(reading, task, parked.sizes, mine):
        if made is not None:
            yield Piece(places.start, 0, made[0], ends=True, firsts=made[1])
            continue
        for piece in _apart(reading, task, places, parked, mine):
            yield piece
            if piece.error is not None:
                return


def _apart(
    reading: Reading, task: Task, places: range, parked: Parked, mine: Callable[[], Tally]
) -> Iterator[Piece]:
    """The output of the units at ``places``, which are some of the task's, one by one."""
    for place in places:
        unit = reading.unit_at(place)
        reading.begun(place)
        first = Task(place, place, task.skip_atoms if place == task.start else 0)
        held: Piece | None = None
        grows = False
        for piece in _unit_pieces(reading, unit, first, parked, mine):
            if held is not None and piece.ends and not piece.losses:
                piece = held.last()  # noqa: PLW2901 (of two)
            elif held is not None:
                grows = reading.grain != WHOLE
                yield held
            # what follows a block of the last atom costs no work to see, and spares a slice; but
            # not where it becomes several, that may go on one by one
            last = unit.atoms is not None and piece.atom == unit.atoms - 1
            held = piece if last and not (piece.stops or grows) else None
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
    noted = Noted(each=reading.at.bounded)
    read = partial(_timed_read, reading, unit, mine=mine)

    def at_its_place(error: DmlError) -> DmlError:
        if block is None:  # taken from a store, or nothing yet
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
                yield Piece(place, atom, made, losses=noted.taken(at_its_place))
            atom += 1
    except Exception as error:  # noqa: BLE001 - whatever happens, it says where
        found = at_its_place(as_error(error, unit.place))
        yield Piece(place, atom, error=found, losses=noted.taken(at_its_place))
    else:
        yield Piece(place, atom, ends=True, losses=noted.taken(at_its_place))


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
    """What becomes of the pieces ``given``, atom by atom, and whether a piece is the last."""
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
    """A piece per block of one atom, and the error that stopped it here or in an earlier stage."""
    place, atom = pieces[0].where
    linking.reading.begun(place)
    unit, source = linking.reading.unit_at(place), linking.reading.stage.source
    noted = Noted(each=linking.reading.at.bounded)

    def lost() -> tuple[Loss, ...]:
        return noted.taken(lambda error: placed_later(error, unit, source))

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
    """The blocks of an atom, and what stopped an earlier stage in it; what that lost is noted."""
    for piece in pieces:
        noted.pass_on(piece.losses)
        if piece.block is not None:
            yield piece.block
        if piece.error is not None:
            raise piece.error


def _beyond(piece: Piece) -> int:
    return piece.place + 1 + len(piece.firsts)
