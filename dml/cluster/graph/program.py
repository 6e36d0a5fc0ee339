"""Execute a plan, which is sent once, on some consecutive units in each task of a static graph.

The stages of the plan compute units on any worker and in any order. Operators that see rows in
order run as a chain of tasks, none of which holds all rows: each opens the flow of these operators
where the previous one stopped, returns the elements that can be computed from the rows so far, and
passes on its position and the pieces that the next task needs.
"""

from __future__ import annotations

import dataclasses
import importlib
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import pyarrow as pa

from dml.data.schema import Schema
from dml.errors import DmlError, PlanError, worded
from dml.events import Tally
from dml.exec.delivery.meter import Tallies
from dml.exec.memory.memory_shares import Budget
from dml.exec.memory.spill import DiskSpill
from dml.exec.process.references import pickled
from dml.exec.streams.plan_run import Open
from dml.exec.streams.stream import Streaming, unsettled
from dml.exec.tasks.error_row import traced
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import PartitionSizes, Piece, TaskList
from dml.exec.tasks.slices import Outcome, PartitionFeed, Start
from dml.expr.flow import CHUNK, At, Compute, Position
from dml.physical.operators import RunChoices
from dml.physical.plan import Plan

Values = list[list[Piece]]
"""The output of a stage for one task: the pieces of each of its partitions."""


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """A plan with all that its tasks need to run it; ``sizes`` are the sizes of a partition.

    A unit that is decoded at once has at most ``whole_bytes``.
    """

    plan: Plan
    at: At
    sizes: PartitionSizes
    whole_bytes: int

    @staticmethod
    def of(plan: Plan, compute: Compute, seed: int, budget: Budget) -> Recipe:
        """Return the recipe of a run with this budget; no schema is settled yet."""
        at = At(0, seed, compute, {}, DiskSpill, budget.held_bytes, budget.hold_bytes)
        sizes = PartitionSizes(budget.target_bytes, budget.stage_bytes, budget.atom_bytes)
        return Recipe(plan, at, sizes, budget.whole_bytes)

    def job(self, epoch: int) -> Job:
        """Return the work of the stages in ``epoch``; all epochs share the settled schemas."""
        at = dataclasses.replace(self.at, epoch=epoch)
        plan = self.plan
        return Job(plan.stage, at, self.sizes, self.whole_bytes, links=plan.links)

    def streaming(self, driver: Open) -> Streaming:
        """Return the stream operators; ``driver`` gives them the output of the stages."""
        sizes, tallies = self.sizes, Tallies()
        return Streaming(
            *(self.plan, self.at, driver, sizes.target_bytes, tallies, sizes.most_bytes),
            self.whole_bytes,
            sizes.atom_bytes,
            choices=RunChoices(sliced=False, whole_units=True),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class GraphProgram:
    """A recipe as bytes: pickled once, and unpickled once in each process."""

    packed: bytes

    @staticmethod
    def of(recipe: Recipe) -> GraphProgram:
        """Serialize a recipe; raise PlanError if a function of the plan cannot be pickled."""
        try:
            return GraphProgram(pickled(recipe))
        except Exception as error:  # a user's object may raise anything when pickled
            raise PlanError(
                "a function of this pipeline cannot be sent to another process",
                at=recipe.plan.operators[-1].label(),
                why=worded(error),
                try_="open files, locks and connections inside the function, not around it",
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Return the serialized recipe alone."""
        return {"packed": self.packed}

    @cached_property
    def recipe(self) -> Recipe:
        """The deserialized recipe."""
        recipe: Recipe = pickle.loads(self.packed)  # noqa: S301 (written by ``of``)
        return recipe

    @cached_property
    def jobs(self) -> dict[int, Job]:
        """The jobs that tasks in this process have needed so far, by epoch."""
        return {}

    def job(self, epoch: int, types: Types | None = None) -> Job:
        """Return the job of ``epoch``, shared by all tasks here, after adding ``types`` to it."""
        if types is not None:
            self.recipe.at.schemas.update(types.schemas)
        return self.jobs.setdefault(epoch, self.recipe.job(epoch))


@dataclasses.dataclass(frozen=True)
class Types:
    """The types that the first rows have settled: schemas by operator, and the output columns.

    Tasks of ``epoch`` below unit ``settling`` settled them; the first part has these tasks' rows.
    """

    schemas: dict[str, Schema]
    columns: pa.Schema
    epoch: int
    settling: int


def settled(program: GraphProgram, epoch: int, tasks: TaskList) -> tuple[Types, Values]:
    """Run tasks through all stages in order until every type is known, or no tasks are left.

    Return the types, and the output of the tasks that settled them.
    """
    job = program.job(epoch)
    values: Values = []
    done = stop = 0
    while done < len(tasks):
        task, done = tasks[done], done + 1
        made: Sequence[Any] = [task]
        for start in job.starts(Tally):
            made = _run(start, made)
        values += made
        stop = task.stop
        if not unsettled(job):
            break
    found = next((p.block for value in values for p in value if p.block is not None), None)
    columns = pa.schema([]) if found is None else found.schema.to_arrow()
    return Types(job.at.schemas.copy(), columns, epoch, stop), values


def first_rows(program: GraphProgram, found: tuple[Types, Values]) -> pa.Table:
    """Return as a table the output of the tasks that were run to settle the types."""
    types, values = found
    return table(program, values, types)


def run_stage(
    program: GraphProgram, epoch: int, stage: int, given: Any, types: Types | None
) -> Values:
    """Run stage number ``stage`` on the output of the previous stage; the first one, on a task.

    Return [] for a task whose rows the first part has.
    """
    if not stage and types is not None and types.epoch == epoch and given.start < types.settling:
        return []
    return _run(program.job(epoch, types).starts(Tally)[stage], given if stage else [given])


def stage_rows(program: GraphProgram, epoch: int, stage: int, given: Any, types: Any) -> pa.Table:
    """Return the output of ``run_stage`` as a table."""
    return table(program, run_stage(program, epoch, stage, given, types), types)


def _run(start: Start, given: Sequence[Any]) -> Values:
    return [_checked(outcome) for each in given for outcome in start(each)]


def _checked(outcome: Outcome) -> list[Piece]:
    """Return the pieces of a partition; raise the error of a piece, if any."""
    pieces: list[Piece] = outcome.value
    for piece in pieces:
        if piece.error is not None:
            raise piece.error
    return pieces


def table(program: GraphProgram, values: Values, types: Types | None) -> pa.Table:
    """Return the rows of a task as a table, in order."""
    blocks = [piece.block for value in values for piece in value if piece.block is not None]
    batches = [block.to_arrow() for block in blocks if block.n]
    return joined(program, batches, pa.schema([]) if types is None else types.columns)


def joined(program: GraphProgram, batches: list[pa.RecordBatch], columns: pa.Schema) -> pa.Table:
    """Return batches as a table; if there are none, an empty one of known columns.

    Its schema is the plan's if that is known, else ``columns``.
    """
    if batches:
        return pa.Table.from_batches(batches)
    schema = program.recipe.plan.schema
    return pa.Table.from_batches([], schema.to_arrow() if schema.known else columns)


def framed(rows: pa.Table) -> Any:
    """Return a data frame whose columns keep Arrow types, nulls included; tensors become lists."""
    dtype = importlib.import_module("pandas").ArrowDtype  # an extra
    plain = (_stored(column) for column in rows.columns)
    return pa.table(list(plain), names=rows.column_names).to_pandas(types_mapper=dtype)


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    chunks = [chunk.storage for chunk in column.chunks]
    return pa.chunked_array(chunks, type=column.type.storage_type)


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
    """A feed of available pieces; ``whole`` is True if no more pieces follow."""

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

    def release(self) -> None:
        """Do nothing: no memory is accounted for."""

    def settled(self) -> None:
        """Do nothing: no task runs."""

    close = settled


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
    """Return the output of stream operators for the new pieces, and the state after them.

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
