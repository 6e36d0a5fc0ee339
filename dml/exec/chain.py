"""This file runs what sees rows in order as a chain of tasks, none of which holds all of them.

Each task opens the flow of the stream operators where the one before it stopped, gives what the
rows at hand allow, and passes on its position and the pieces that this position needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from dml.errors import DmlError
from dml.exec.blame import traced
from dml.exec.job import Job
from dml.exec.meter import Tallies
from dml.exec.program import Program, Types, Values, joined
from dml.exec.slices import Outcome
from dml.exec.stream import Feed
from dml.exec.work import Piece
from dml.expr.flow import CHUNK, Position
from dml.expr.schema import Schema


class StarvedError(Exception):
    """The rows at hand are used up, and the task is not the last of the stream."""


@dataclasses.dataclass(frozen=True)
class Carried:
    """Where a chain of tasks stands: a position, the pieces it needs, and schemas settled so far.

    ``pieces`` are with their epochs, from the cut of ``position`` on. ``columns`` are those of the
    rows given so far; ``ended``: nothing follows.
    """

    position: Position | None = None
    pieces: tuple[tuple[int, Piece], ...] = ()
    schemas: dict[str, Schema] = dataclasses.field(default_factory=dict)
    columns: pa.Schema = dataclasses.field(default_factory=lambda: pa.schema([]))
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class Link:
    """What one task of the chain gave, and what the next one needs."""

    rows: pa.Table
    carried: Carried


@dataclasses.dataclass
class Tape:
    """The pieces at hand, in place of a driver; ``whole`` epochs have no others.

    ``cut`` is from where on the flow asked for pieces, when it was opened first.
    """

    pieces: Sequence[tuple[int, Piece]]
    whole: Callable[[int], bool]
    cut: tuple[int, int, int] | None = None

    def open(self, tasks: Any, job: Job, tallies: Tallies, **_: Any) -> Feed:
        """The pieces of the epoch of ``job`` from the first of ``tasks`` on."""
        epoch = job.at.epoch
        cut = epoch, tasks.first, tasks.skip_atoms
        self.cut = self.cut or cut
        pieces = [p for e, p in self.pieces if e == epoch and (e, p.place, p.atom) >= cut]
        return Played(pieces, whole=self.whole(epoch))


class Played:
    """A feed of pieces at hand."""

    def __init__(self, pieces: list[Piece], *, whole: bool) -> None:
        self.pieces, self.whole = pieces, whole

    def next(self) -> Outcome | None:
        """All of them at once; then None, or StarvedError where others would follow."""
        if self.pieces:
            pieces, self.pieces = self.pieces, []
            return Outcome(pieces, 0, sum(p.block.n for p in pieces if p.block is not None))
        if not self.whole:
            raise StarvedError
        return None

    def release(self) -> None:
        """Nothing is accounted for."""

    def settled(self) -> None:
        """Nothing runs ahead."""

    def close(self) -> None:
        """Nothing runs."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """One task of the chain: the ``epoch`` of its pieces, whether they are its last, the first."""

    start: int
    epoch: int
    last: bool

    def whole(self, epoch: int) -> bool:
        """True if all pieces of ``epoch`` are at hand: those of earlier ones, or its last."""
        return epoch < self.epoch or (epoch == self.epoch and self.last)


def linked(
    program: Program,
    turn: Turn,
    before: Link | None,
    values: Values,
    types: Types | None,
) -> Link:
    """What the operators over the stages give for the rows that came so far, and not before.

    A row-local function above a shuffle may be called again for rows at the border of two tasks.
    """
    here = Carried() if before is None else before.carried
    if here.ended:
        return Link(joined(program, [], here.columns), here)
    at = program.job(turn.start, types).at
    at.schemas.update(here.schemas)
    fresh = ((turn.epoch, piece) for value in values for piece in value)
    tape = Tape((*here.pieces, *fresh), turn.whole)
    batches, position, ended = _played(program, tape, turn.start, here.position)
    kept = () if ended else _needed(program, tape, turn.start, position)
    rows = joined(program, batches, here.columns)
    return Link(rows, Carried(position, kept, at.schemas.copy(), rows.schema, ended))


def _played(
    program: Program, tape: Tape, epoch: int, position: Position | None
) -> tuple[list[pa.RecordBatch], Position | None, bool]:
    """The elements that the tape allows, the position after them, and whether that is the end."""
    streaming = program.recipe.streaming(tape.open)
    plan, batches = streaming.plan, list[pa.RecordBatch]()
    try:
        flow = streaming.flow(epoch, position)
        while (block := flow.pull(CHUNK)) is not None:
            batches.append(block.to_arrow())
            position = flow.position()
    except StarvedError:
        return batches, position, False
    except DmlError as error:
        raise traced(error.under(plan.operators[-1].label()), plan) from (error.__cause__)
    return batches, position, True


def _needed(
    program: Program, tape: Tape, epoch: int, position: Position | None
) -> tuple[tuple[int, Piece], ...]:
    """The pieces that a flow from ``position`` on would ask for."""
    asked = Tape((), lambda _: False)
    with suppress(StarvedError):
        program.recipe.streaming(asked.open).flow(epoch, position).pull(1)
    cut = asked.cut or (epoch, 0, 0)
    return tuple((e, piece) for e, piece in tape.pieces if (e, piece.place, piece.atom) >= cut)


def shown(link: Link) -> pa.Table:
    """The rows of one task of the chain."""
    return link.rows
