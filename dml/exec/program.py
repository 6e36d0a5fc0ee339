"""This file is what the tasks of a static graph execute: a plan sent once, and runs of its units.

The stages make the rows of a run of units anywhere, in any order; ``chain.py`` is what sees them in
order.
"""

from __future__ import annotations

import dataclasses
import importlib
import pickle
from functools import cached_property
from typing import Any

import pyarrow as pa

from dml.errors import PlanError, worded
from dml.events import Tally
from dml.exec.budget import Budget
from dml.exec.job import Job
from dml.exec.meter import Tallies
from dml.exec.references import pickled
from dml.exec.slices import Outcome, Start
from dml.exec.spill import DiskSpill
from dml.exec.stream import Open, Streaming, unsettled
from dml.exec.work import Piece, Sizes, Task, TaskList
from dml.expr.flow import At, Compute
from dml.expr.schema import Schema
from dml.plan import Plan

Values = list[list[Piece]]
"""What a stage makes of one task: the pieces of each of its partitions."""


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """A plan with all that its tasks must be told; ``sizes`` are those of a partition."""

    plan: Plan
    at: At
    sizes: Sizes
    whole_bytes: int

    @staticmethod
    def of(plan: Plan, compute: Compute, seed: int, budget: Budget) -> Recipe:
        """As a run with this budget would do it; each task begins with epoch and schemas anew."""
        at = At(0, seed, compute, {}, DiskSpill, budget.held_bytes, budget.hold_bytes)
        sizes = Sizes(budget.target_bytes, budget.stage_bytes, budget.atom_bytes)
        return Recipe(plan, at, sizes, budget.whole_bytes)

    def job(self, epoch: int) -> Job:
        """The work of the stages in ``epoch``; all epochs share the schemas that are settled."""
        at = dataclasses.replace(self.at, epoch=epoch)
        plan = self.plan
        return Job(plan.stage, at, self.sizes, self.whole_bytes, links=plan.links)

    def streaming(self, driver: Open) -> Streaming:
        """The operators over the stages, which ``driver`` stands for."""
        sizes, tallies = self.sizes, Tallies()
        return Streaming(
            *(self.plan, self.at, driver, sizes.target_bytes, tallies, sizes.most_bytes),
            self.whole_bytes,
            sizes.atom_bytes,
            cutting=None,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A recipe, packed once and opened once in each process that holds it."""

    packed: bytes

    @staticmethod
    def of(recipe: Recipe) -> Program:
        """PlanError if a function of the plan cannot be sent to another process."""
        try:
            return Program(pickled(recipe))
        except Exception as error:  # what a user's object raises when it is pickled is its own
            raise PlanError(
                "a function of this pipeline cannot be sent to another process",
                at=recipe.plan.operators[-1].label(),
                why=worded(error),
                try_="open files, locks and connections inside the function, not around it",
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: not what was opened here."""
        return {"packed": self.packed}

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, opened."""
        recipe: Recipe = pickle.loads(self.packed)  # noqa: S301 (written by ``of``)
        return recipe

    @cached_property
    def jobs(self) -> dict[int, Job]:
        """Jobs by epoch, as far as they were needed here."""
        return {}

    def job(self, epoch: int, types: Types | None = None) -> Job:
        """The work of the stages in ``epoch``, one for all tasks here; ``types`` are taken over."""
        if types is not None:
            self.recipe.at.schemas.update(types.schemas)
        return self.jobs.setdefault(epoch, self.recipe.job(epoch))


@dataclasses.dataclass(frozen=True)
class Types:
    """What the first rows have settled: schemas by operator, columns, and in which task.

    The tasks of ``epoch`` before number ``settling`` were run for it: their rows are the first's.
    """

    schemas: dict[str, Schema]
    columns: pa.Schema
    epoch: int
    settling: int


@dataclasses.dataclass(frozen=True)
class Settled:
    """The types, and the pieces of the tasks that settled them."""

    types: Types
    values: Values


def settled(program: Program, epoch: int, tasks: TaskList) -> Settled:
    """Run tasks through all stages in order until every type is known, or there are no more."""
    job = program.job(epoch)
    values: Values = []
    done = 0
    while done < len(tasks):
        begun = _begun(job, tasks[done])
        done += 1
        for start in job.starts(Tally)[1:]:
            begun = _gone_on(start, begun)
        values += begun
        if not unsettled(job):
            break
    found = next((p.block for value in values for p in value if p.block is not None), None)
    columns = pa.schema([]) if found is None else found.schema.to_arrow()
    return Settled(Types(job.at.schemas.copy(), columns, epoch, done), values)


def typed(found: Settled) -> Types:
    """The types alone, which are little: every task asks for them."""
    return found.types


def first(found: Settled) -> Values:
    """What the tasks made that had to be run to know the types."""
    return found.values


def first_rows(program: Program, found: Settled) -> pa.Table:
    """The same as rows."""
    return table(program, found.values, found.types)


def made(program: Program, epoch: int, number: int, task: Task, types: Types | None) -> Values:
    """What the first stage makes of task ``number``; nothing if the first part has its rows."""
    if types is not None and types.epoch == epoch and number < types.settling:
        return []
    return _begun(program.job(epoch, types), task)


def made_rows(
    program: Program, epoch: int, number: int, task: Task, types: Types | None
) -> pa.Table:
    """The same as rows."""
    return table(program, made(program, epoch, number, task, types), types)


def carried(
    program: Program, epoch: int, stage: int, values: Values, types: Types | None
) -> Values:
    """What stage number ``stage`` makes of what the one before it made."""
    return _gone_on(program.job(epoch, types).starts(Tally)[stage], values)


def carried_rows(
    program: Program, epoch: int, stage: int, values: Values, types: Types | None
) -> pa.Table:
    """The same as rows."""
    return table(program, carried(program, epoch, stage, values, types), types)


def no_rows(program: Program, types: Types | None) -> pa.Table:
    """A table of no rows."""
    return table(program, [], types)


def _begun(job: Job, task: Task) -> Values:
    return [_checked(outcome) for outcome in job.starts(Tally)[0](task)]


def _gone_on(start: Start, values: Values) -> Values:
    return [_checked(outcome) for value in values for outcome in start(value)]


def _checked(outcome: Outcome) -> list[Piece]:
    """The pieces of a partition; raises the error that one of them came with."""
    pieces: list[Piece] = outcome.value
    for piece in pieces:
        if piece.error is not None:
            raise piece.error
    return pieces


def table(program: Program, values: Values, types: Types | None) -> pa.Table:
    """The rows of a task, in order."""
    blocks = [piece.block for value in values for piece in value if piece.block is not None]
    batches = [block.to_arrow() for block in blocks if block.n]
    return joined(program, batches, pa.schema([]) if types is None else types.columns)


def joined(program: Program, batches: list[pa.RecordBatch], columns: pa.Schema) -> pa.Table:
    """The rows as a table; if there are none, of ``columns`` unless the plan knows better."""
    if batches:
        return pa.Table.from_batches(batches)
    schema = program.recipe.plan.schema
    return pa.Table.from_batches([], schema.to_arrow() if schema.known else columns)


def framed(rows: pa.Table) -> Any:
    """The rows as a pandas data frame whose columns keep their Arrow types, nulls or not.

    Tensors are lists of their elements: a frame has no others.
    """
    dtype = importlib.import_module("pandas").ArrowDtype  # an extra
    plain = (_stored(column) for column in rows.columns)
    return pa.table(list(plain), names=rows.column_names).to_pandas(types_mapper=dtype)


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    chunks = [chunk.storage for chunk in column.chunks]
    return pa.chunked_array(chunks, type=column.type.storage_type)
