"""Run the operators of a lane on a slice, which is some rows of a flow, in a worker."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from dml.data.batch_trays import Numbered, Trays
from dml.data.block import Block, concat
from dml.errors import DmlError
from dml.events import Tally
from dml.exec.process.partition_codec import Parcel, pack, unpack
from dml.exec.tasks.error_row import as_error
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.skipped_rows import Noted
from dml.exec.tasks.slices import Outcome, Start
from dml.exec.tasks.steps import Steps
from dml.exec.tasks.task import Parked, PartitionCutter, blocks_of
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.kernels.rows.ids import RowIds
from dml.physical.lanes import Lane, all_stay
from dml.udfs.calling.batch_arrays import finished
from dml.udfs.calling.type_inference import Returned

if TYPE_CHECKING:
    from dml.data.schema import Schema


@op
class Hole(Node):
    """A placeholder with the schema and digest of an operator that is not sent to workers."""

    schema_below: Schema
    name: bytes

    rows = Rows.SOURCE

    def infer(self) -> Schema:
        """Return the schema of the input."""
        return self.schema_below

    @property
    def digest(self) -> bytes:
        """The digest of the input, so that keys derived from operators above it do not change."""
        return self.name


def detached(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the chain ``nodes`` with a ``Hole`` in place of its input; digests do not change."""
    below = nodes[0].inputs[0]
    made: Node = Hole(below.schema, below.digest)
    made.__dict__.update({name: getattr(below, name) for name in PLACES})
    out = list[Node]()
    for node in nodes:
        copy = object.__new__(type(node))
        copy.__dict__.update(node.__getstate__())
        copy.__dict__[node.input_names[0]] = made
        out.append(copy)
        made = copy
    return tuple(out)


PLACES = ("ordinal", "level", "batched")


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """Rows on which the operators [``begin``, ``end``) of a lane run, piece by piece.

    With ``untyped``, the last operator returns its function's results before types are settled.
    With ``slow``, closing the run stops the slice before the next call of a function. ``first`` is
    the number of the first row among the rows that the flow delivers, to find its place in
    preallocated arrays; None in other processes. ``target_bytes`` is the size of a partition; 0 is
    that of the job.
    """

    pieces: Sequence[Piece]
    begin: int
    end: int
    untyped: bool = False
    slow: bool = False
    first: int | None = None
    target_bytes: int = 0

    @property
    def start(self) -> int:
        """Place, in reading order, of the unit of the first rows."""
        return self.pieces[0].place

    @property
    def stop(self) -> int:
        """Place, in reading order, of the unit of the last rows, plus 1."""
        return self.pieces[-1].place + 1

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(piece.block.nbytes for piece in self.pieces if piece.block is not None)

    def __reduce__(self) -> tuple[Any, ...]:
        # columns are cut to their part, and travel as buffers
        parcel = pack(Outcome(list(self.pieces), 0, 0))
        options = self.untyped, self.slow, None, self.target_bytes
        return _received, (parcel, self.begin, self.end, *options)


def _received(parcel: Parcel, *rest: Any) -> Slice:
    return Slice(unpack(parcel).value, *rest)


class Origin:
    """Where rows of a lane come from: a unit that job ``below`` reads, or only "a slice" if None.

    ``begun`` gets the place of the unit processed next. ``below`` is not sent to other processes.
    """

    def __init__(self, title: str, below: Job | None) -> None:
        self.title, self.below = title, below
        self.begun: Callable[[int], None] = lambda _: None

    def unit_at(self, place: int) -> Any:
        """Return the unit at ``place`` of the reading order; without ``below``, this origin."""
        return self if self.below is None else self.below.reading.unit_at(place)

    @property
    def place(self) -> str:
        """The origin in words, for messages."""
        return f"a slice of {self.title}"


@dataclasses.dataclass(frozen=True, eq=False)
class SliceJob(Job):
    """A job whose tasks are slices of ``lane``; its steps are those of the lane.

    ``below`` is the job that reads the units of the rows; None if the lane's input is not a source.
    """

    lane: Lane = dataclasses.field(kw_only=True)
    below: Job | None = dataclasses.field(kw_only=True, default=None)

    def __getstate__(self) -> dict[str, object]:
        """Return the state for another process: the lane's operators without those below them."""
        nodes = detached(self.lane.nodes)
        hole: Any = nodes[0].inputs[0]
        stage = dataclasses.replace(self.stage, source=hole, steps=nodes)
        state = super().__getstate__()
        lane = dataclasses.replace(self.lane, nodes=nodes)
        return {**state, "stage": stage, "lane": lane, "below": None}

    @cached_property
    def reading(self) -> Any:
        """The origin of the rows, with the members of ``Reading`` that are used for slices."""
        return Origin(self.lane.title, self.below)

    @cached_property
    def halt(self) -> threading.Event:
        """An event that is set once the output is not needed; slices of this process then stop."""
        return threading.Event()

    def finish(self, piece: Piece) -> Piece:
        """Return an output piece of the last operator in the form in which it is delivered."""
        if not self.finishing or piece.block is None:
            return piece
        made = finished(piece.block)
        return Piece(piece.place, piece.atom, made, losses=piece.losses)

    @cached_property
    def _steps(self) -> dict[tuple[int, int, bool], Steps]:
        return {}

    def steps_between(self, begin: int, end: int, *, slow: bool = False) -> Steps:
        """Return the operators [``begin``, ``end``) as steps; if ``slow``, ``halt`` stops calls."""
        found = self._steps.get((begin, end, slow))
        if found is None:
            made = Steps(self.lane.nodes[begin:end], self.at, self.lane.first + begin)
            found = self._steps.setdefault((begin, end, slow), self._heeding(made, slow=slow))
        return found

    def _heeding(self, steps: Steps, *, slow: bool) -> Steps:
        """Return the steps; if ``slow``, calls of functions raise StoppedError after ``halt``."""
        heeding = {
            number: partial(_unless, self.halt, cast("Any", node).fn.call)
            for number, node in enumerate(steps.nodes)
            if slow and node.calls is not None and not node.proven
        }
        return steps.calling(heeding) if heeding else steps

    def starts(self, mine: Callable[[], Tally]) -> tuple[Start, ...]:
        """Return a tuple with the function that begins a slice; ``mine`` returns the tally."""
        return (partial(_sliced, self, mine=mine),)


class StoppedError(Exception):
    """Raised in place of a function call whose output is no longer needed."""


def _unless(halt: threading.Event, call: Callable[..., Any], *args: Any) -> Any:
    """Return the result of ``call``; raise StoppedError if ``halt`` is set."""
    if halt.is_set():
        raise StoppedError
    return call(*args)


def _sliced(job: SliceJob, given: Slice, mine: Callable[[], Tally]) -> Iterator[Outcome]:
    """Yield the output partitions of the slice ``given``; after an error, no more follow."""
    steps = job.steps_between(given.begin, given.end - given.untyped)
    rows = sum(piece.block.n for piece in given.pieces if piece.block is not None)
    sizes = job.sizes
    if given.target_bytes not in {0, sizes.target_bytes}:
        sizes = dataclasses.replace(sizes, target_bytes=given.target_bytes)
    parked = Parked(steps, job.lane.needs.memory, sizes, grain=1, rows=rows)
    work = _Working(job, given, parked, mine, _trays(job, given))
    make = work.of_batches if job.lane.batched else work.of_rows
    cutter = PartitionCutter(parked)
    for piece, last in _marked(_pieces(job, given, make)):
        for made in cutter.add(piece, last=last):
            made.rows_in, rows = rows, 0
            yield made


def _trays(job: SliceJob, given: Slice) -> Trays | None:
    """Return the preallocated arrays for the slice's large values; None if there are none."""
    made, nodes = job.at.trays, job.lane.nodes[given.begin : given.end]
    if given.first is None or made.expected is None or not all(map(all_stay, nodes)):
        return None
    for node in nodes:
        schema = node.schema if node.schema.known else job.at.schemas.get(node.digest.hex())
        if schema is not None and made.fits(node.digest, schema):
            ids = [piece.block.ids for piece in given.pieces if piece.block is not None]
            return Numbered(made, RowIds.concat(ids), given.first)
    return None


def _marked(pieces: Iterator[Piece]) -> Iterator[tuple[Piece, bool]]:
    """Yield each piece with a flag that is True for the last one."""
    held = next(pieces)
    for piece in pieces:
        yield held, False
        held = piece
    yield held, True


def _pieces(
    job: SliceJob, given: Slice, make: Callable[[Sequence[Piece], Noted], Iterator[Piece]]
) -> Iterator[Piece]:
    """Yield a piece for each output block, for losses after an atom's last block, and for an error.

    An empty piece is yielded only if there is no other: in a partition of its own it would keep the
    slice open after all rows are delivered, and the slice would be repeated if its worker died.
    """
    noted, empty = Noted(each=job.at.bounded), True
    for (place, atom), group in groupby(given.pieces, attrgetter("where")):
        job.reading.begun(place)
        try:
            for piece in make(list(group), noted):
                losses = noted.drain(_as_it_is)
                yield dataclasses.replace(piece, losses=losses) if losses else piece
                empty = False
            if losses := noted.drain(_as_it_is):
                yield Piece(place, atom, losses=losses)
                empty = False
        except Exception as raised:  # noqa: BLE001 - whatever happens stands in its place
            error = as_error(raised, "")
            yield Piece(place, atom, error=error, losses=noted.drain(_as_it_is))
            return
    if empty:
        yield Piece(place, atom)


def _as_it_is(error: DmlError) -> DmlError:
    return error


@dataclasses.dataclass(frozen=True, slots=True)
class _Working:
    """A slice that is being processed; ``mine`` returns the tally of the current thread."""

    job: SliceJob
    given: Slice
    parked: Parked
    mine: Callable[[], Tally]
    trays: Trays | None = None

    def of_rows(self, pieces: Sequence[Piece], noted: Noted) -> Iterator[Piece]:
        """Yield the output for the rows of one atom."""
        begin, end, slow = self.given.begin, self.given.end, self.given.slow
        last, place, atom = end - self.given.untyped, pieces[0].place, pieces[0].atom
        steps = self.job.steps_between(begin, last, slow=slow)
        steps = steps if self.trays is None else steps.placing(self.trays)
        made = steps.run(self._blocks(pieces, noted), self.mine, noted)
        if self.given.untyped:
            calling = self.job.steps_between(last, end, slow=slow)
            if calling.by_batch:
                untyped = self._untyped(calling, made, noted)
            else:
                untyped = calling.returned(made, self.mine, noted)
            yield from (Piece(place, atom, returned=each) for each in untyped)
            return
        for out in self.parked.fitting(made):
            yield self._ended(Piece(place, atom, out))

    def of_batches(self, pieces: Sequence[Piece], noted: Noted) -> Iterator[Piece]:
        """Yield the output for each batch: one batch, or nothing if no row is left."""
        for piece in pieces:
            block = next(self._blocks((piece,), noted), None)
            last = self.given.end - self.given.untyped
            for number in range(self.given.begin, last):
                if block is not None:
                    steps = self.job.steps_between(number, number + 1, slow=self.given.slow)
                    parts = [out for out in steps.run((block,), self.mine, noted) if out.n]
                    block = concat(parts) if parts else None
            if block is not None and self.given.untyped:
                calling = self.job.steps_between(last, last + 1, slow=self.given.slow)
                for each in self._untyped(calling, (block,), noted):
                    yield Piece(piece.place, piece.atom, returned=each)
            elif block is not None:
                for out in self.parked.fitting((block,)):
                    yield self._ended(Piece(piece.place, piece.atom, out))

    def _untyped(self, calling: Steps, blocks: Iterable[Block], noted: Noted) -> Iterator[Returned]:
        """Yield the output of step ``calling`` for each batch, with types of that batch alone."""
        firsts = list[RowIds]()

        def seen() -> Iterator[Block]:
            for block in blocks:
                if block.n and not firsts:
                    firsts.append(block.ids.slice(0, 1))
                yield block

        for out in calling.apart().run(seen(), self.mine, noted):
            if out.n:
                yield Returned([out], [1], out.ids, firsts[0], out.nbytes)

    def _ended(self, piece: Piece) -> Piece:
        whole = self.given.end == len(self.job.lane.nodes)
        return self.job.finish(piece) if whole else piece

    def _blocks(self, pieces: Sequence[Piece], noted: Noted) -> Iterator[Block]:
        """Yield the blocks of the pieces; stop once the job is halted."""
        for block in blocks_of(pieces, noted):
            if self.job.halt.is_set():
                return
            yield block
