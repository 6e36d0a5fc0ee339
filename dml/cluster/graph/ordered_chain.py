"""Run operators that see rows in order as a chain of tasks, none of which holds all rows.

Each task opens the flow of these operators where the previous one stopped, returns the elements
that the rows so far can make, and passes on its position and the pieces that the next task needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from dml.cluster.graph.program import GraphProgram, Types, Values, joined
from dml.data.schema import Schema
from dml.errors import DmlError
from dml.exec.delivery.meter import Tallies
from dml.exec.tasks.error_row import traced
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.slices import Outcome, PartitionFeed
from dml.expr.flow import CHUNK, Position


class StarvedError(Exception):
    """Raised when all available rows are used up, but the stream has more."""


@dataclasses.dataclass(frozen=True)
class ChainLink:
    """The output rows of one task of the chain, and the state for the next task.

    ``pieces`` are pairs of epoch and piece, which the next task needs from ``position`` on.
    ``schemas`` are the settled ones. If ``ended``, no more rows follow.
    """

    rows: pa.Table
    position: Position | None = None
    pieces: tuple[tuple[int, Piece], ...] = ()
    schemas: dict[str, Schema] = dataclasses.field(default_factory=dict)
    ended: bool = False


@dataclasses.dataclass
class PieceTape:
    """The available pieces, with their epochs, which replace the output of a driver.

    ``whole`` returns True for an epoch that has no further pieces. ``cut`` is (epoch, unit, atoms
    to skip) from which the flow requested pieces when it was first opened; None before that.
    """

    pieces: Sequence[tuple[int, Piece]]
    whole: Callable[[int], bool]
    cut: tuple[int, int, int] | None = None

    def open(self, tasks: Any, job: Job, tallies: Tallies, **_: Any) -> PartitionFeed:
        """Return a feed of the pieces of the epoch of ``job``, from the first of ``tasks`` on."""
        epoch = job.at.epoch
        cut = epoch, tasks.first, tasks.skip_atoms
        self.cut = self.cut or cut
        pieces = [p for e, p in self.pieces if e == epoch and (e, p.place, p.atom) >= cut]
        return Played(pieces, whole=self.whole(epoch))


@dataclasses.dataclass
class Played:
    """A feed of available pieces; ``whole`` is True if no more pieces follow.

    The other methods of a feed do nothing: no task runs, and no memory is accounted for.
    """

    pieces: list[Piece]
    whole: bool

    def next(self) -> Outcome | None:
        """Return all pieces at once, then None; raise StarvedError if more pieces would follow."""
        if self.pieces:
            pieces, self.pieces = self.pieces, []
            return Outcome(pieces, 0, sum(p.block.n for p in pieces if p.block is not None))
        if not self.whole:
            raise StarvedError
        return None

    def close(self) -> None:
        """Do nothing."""

    release = settled = close


@dataclasses.dataclass(frozen=True)
class Turn:
    """One task of the chain, which receives new pieces of ``epoch``.

    The chain begins in epoch ``start``. ``last`` is True if ``epoch`` ends with these pieces.
    """

    start: int
    epoch: int
    last: bool

    def whole(self, epoch: int) -> bool:
        """Return True if all pieces of ``epoch`` came to this task or to earlier ones."""
        return epoch < self.epoch or (epoch == self.epoch and self.last)


def linked(
    program: GraphProgram,
    turn: Turn,
    before: ChainLink | None,
    values: Values,
    types: Types | None,
) -> ChainLink:
    """Return the elements that stream operators make of the new pieces, and the state after them.

    The new pieces are ``values``; ``before`` is the result of the previous task. A row-local
    function above a shuffle may be called again for rows at the border of two tasks.
    """
    here = ChainLink(pa.table({})) if before is None else before
    columns = here.rows.schema
    if here.ended:
        return dataclasses.replace(here, rows=joined(program, [], columns))
    at = program.job(turn.start, types).at
    at.schemas.update(here.schemas)
    fresh = ((turn.epoch, piece) for value in values for piece in value)
    tape = PieceTape((*here.pieces, *fresh), turn.whole)
    batches, position, ended = _played(program, tape, turn.start, here.position)
    kept = () if ended else _needed(program, tape, turn.start, position)
    rows = joined(program, batches, columns)
    return ChainLink(rows, position, kept, at.schemas.copy(), ended)


def _played(
    program: GraphProgram, tape: PieceTape, epoch: int, position: Position | None
) -> tuple[list[pa.RecordBatch], Position | None, bool]:
    """Return the elements for the tape's pieces, the position after them, and if it is the end."""
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
    program: GraphProgram, tape: PieceTape, epoch: int, position: Position | None
) -> tuple[tuple[int, Piece], ...]:
    """Return the pieces that a flow from ``position`` on would request."""
    asked = PieceTape((), lambda _: False)
    with suppress(StarvedError):
        program.recipe.streaming(asked.open).flow(epoch, position).pull(1)
    cut = asked.cut or (epoch, 0, 0)
    return tuple((e, piece) for e, piece in tape.pieces if (e, piece.place, piece.atom) >= cut)
