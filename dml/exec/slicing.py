"""This file is what a worker does with a slice: some rows of a flow through operators of a lane."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from dml.errors import DmlError
from dml.events import Tally
from dml.exec.blame import as_error
from dml.exec.job import Job
from dml.exec.lanes import Lane, all_stay
from dml.exec.losses import Noted
from dml.exec.parcel import Parcel, pack, unpack
from dml.exec.slices import Outcome, Start
from dml.exec.steps import Steps
from dml.exec.work import Parked, Piece, blocks_of, partitions_of
from dml.expr.block import Block, concat
from dml.expr.delivery import finished
from dml.expr.detached import detached
from dml.expr.settling import Returned
from dml.expr.trays import Numbered, Trays
from dml.kernels.ids import RowIds


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """Rows on which the operators from ``begin`` to ``end`` of a lane are run, piece by piece.

    With ``untyped`` the last of them hands on what its function returned, in no types yet. With
    ``slow`` a run that is closed stops between two calls of a function. ``first`` is the number of
    the first row among those of the epoch that go out, in a process that has places for them.
    """

    pieces: Sequence[Piece]
    begin: int
    end: int
    untyped: bool = False
    slow: bool = False
    first: int | None = None

    @property
    def start(self) -> int:
        """The place of the first unit that rows are of."""
        return self.pieces[0].place

    @property
    def stop(self) -> int:
        """The place behind the last one."""
        return self.pieces[-1].place + 1

    @property
    def nbytes(self) -> int:
        """Bytes of its rows."""
        return sum(piece.block.nbytes for piece in self.pieces if piece.block is not None)

    def __reduce__(self) -> tuple[Any, ...]:
        # columns are cut to their part, and travel as buffers
        parcel = pack(Outcome(list(self.pieces), 0, 0))
        return _received, (parcel, self.begin, self.end, self.untyped, self.slow)


def _received(parcel: Parcel, *rest: Any) -> Slice:
    return Slice(unpack(parcel).value, *rest)


class Origin:
    """Where the rows of a lane come from; ``begun`` hears of it.

    Only the process that reads units, by ``below``, knows them; elsewhere it is a slice.
    """

    def __init__(self, title: str, below: Job | None) -> None:
        self.title, self.below = title, below
        self.begun = cast("Callable[[int], None]", _unheard)

    def unit_at(self, place: int) -> Any:
        """The unit at a place, or all that there is."""
        return self if self.below is None else self.below.reading.unit_at(place)

    @property
    def place(self) -> str:
        """In words."""
        return f"a slice of {self.title}"


def _unheard(_place: int) -> None:
    """Nobody wants to know."""


@dataclasses.dataclass(frozen=True, eq=False)
class SliceJob(Job):
    """A job whose tasks are slices of ``lane``; its steps are the lane's.

    ``below`` reads the units that rows are of, if something does.
    """

    lane: Lane = dataclasses.field(kw_only=True)
    below: Job | None = dataclasses.field(kw_only=True, default=None)

    def __getstate__(self) -> dict[str, object]:
        """What another process needs: the operators without what is below them."""
        nodes = detached(self.lane.nodes)
        hole: Any = nodes[0].inputs[0]
        stage = dataclasses.replace(self.stage, source=hole, steps=nodes)
        state = super().__getstate__()
        lane = dataclasses.replace(self.lane, nodes=nodes)
        return {**state, "stage": stage, "lane": lane, "below": None}

    @cached_property
    def reading(self) -> Any:
        """What rows are made of."""
        return Origin(self.lane.title, self.below)

    @cached_property
    def _halt(self) -> threading.Event:
        return threading.Event()

    def stop(self) -> None:
        """No row is begun any more in this process."""
        self._halt.set()

    @property
    def stopped(self) -> bool:
        """True if nobody wants what is made."""
        return self._halt.is_set()

    def finish(self, piece: Piece) -> Piece:
        """A piece behind the last operator, as it is handed on."""
        if not self.finishing or piece.block is None:
            return piece
        return dataclasses.replace(piece, block=finished(piece.block))

    @cached_property
    def _steps(self) -> dict[tuple[int, int, bool], Steps]:
        return {}

    def steps_between(self, begin: int, end: int, *, slow: bool = False) -> Steps:
        """The operators from ``begin`` to ``end``, to be run; ``slow`` ones can be stopped."""
        found = self._steps.get((begin, end, slow))
        if found is None:
            made = Steps(self.lane.nodes[begin:end], self.at, self.lane.first + begin)
            found = self._steps.setdefault((begin, end, slow), self._heeding(made, slow=slow))
        return found

    def _heeding(self, steps: Steps, *, slow: bool) -> Steps:
        """The steps, where ``slow`` with functions that are not called once this is stopped."""
        heeding = {
            number: partial(_unless, self._halt, cast("Any", node).fn.call)
            for number, node in enumerate(steps.nodes)
            if slow and node.calls is not None and not node.proven
        }
        return steps.calling(heeding) if heeding else steps

    def starts(self, mine: Callable[[], Tally]) -> tuple[Start, ...]:
        """What begins a slice."""
        return (partial(_sliced, self, mine=mine),)


class StoppedError(Exception):
    """A function is not called, since nobody wants what it makes."""


def _unless(halt: threading.Event, call: Callable[..., Any], *args: Any) -> Any:
    """What ``call`` returns, or StoppedError."""
    if halt.is_set():
        raise StoppedError
    return call(*args)


def _sliced(job: SliceJob, given: Slice, mine: Callable[[], Tally]) -> Iterator[Outcome]:
    """The partitions that become of a slice; an error ends them."""
    steps = job.steps_between(given.begin, given.end - given.untyped)
    rows = sum(piece.block.n for piece in given.pieces if piece.block is not None)
    parked = Parked(steps, job.lane.needs.memory, job.sizes, grain=1, rows=rows)
    work = _Working(job, given, parked, mine, _trays(job, given))
    make = work.of_batches if job.lane.batched else work.of_rows
    return partitions_of(_marked(_pieces(job, given, make)), parked)


def _trays(job: SliceJob, given: Slice) -> Trays | None:
    """Where large values of the rows are put, if places are known for them."""
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
    """The pieces, each with whether it is the last."""
    held = next(pieces)
    for piece in pieces:
        yield held, False
        held = piece
    yield held, True


def _pieces(
    job: SliceJob, given: Slice, make: Callable[[Sequence[Piece], Noted], Iterator[Piece]]
) -> Iterator[Piece]:
    """A piece for each block that is made, one for what was lost behind it, one for an error."""
    noted = Noted(each=job.at.bounded)
    for (place, atom), group in groupby(given.pieces, attrgetter("where")):
        job.reading.begun(place)
        try:
            for piece in make(list(group), noted):
                yield dataclasses.replace(piece, losses=noted.taken(_as_it_is))
            if losses := noted.taken(_as_it_is):
                yield Piece(place, atom, losses=losses)
        except Exception as raised:  # noqa: BLE001 - whatever happens stands in its place
            error = as_error(raised, "")
            yield Piece(place, atom, error=error, losses=noted.taken(_as_it_is))
            return
    yield Piece(place, atom)


def _as_it_is(error: DmlError) -> DmlError:
    return error


@dataclasses.dataclass(frozen=True, slots=True)
class _Working:
    """A slice at work; ``mine`` is the tally of the thread that works."""

    job: SliceJob
    given: Slice
    parked: Parked
    mine: Callable[[], Tally]
    trays: Trays | None = None

    def of_rows(self, pieces: Sequence[Piece], noted: Noted) -> Iterator[Piece]:
        """What becomes of rows of one atom."""
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
        """What becomes of each batch: one, or nothing if no row is left of it."""
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
        """What the function of a step makes of a batch, in the types that this has by itself."""
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
        """The blocks of the pieces; nothing more once it is stopped."""
        for block in blocks_of(pieces, noted):
            if self.job.stopped:
                return
            yield block
