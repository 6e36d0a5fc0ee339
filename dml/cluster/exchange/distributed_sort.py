"""Run an operator that needs all rows on the workers of a cluster, in two rounds of tasks.

In the first round, the tasks of the stages write each partition as a sorted run to the disk of
their worker, and return only a report: the first key of each batch of the run. In the second round,
each task merges one range of keys from all runs. Both rounds are ordinary runs of a driver: the
scheduling core bounds their memory, and Dask reruns the tasks of a lost worker. If a lost worker
had sorted runs, their tasks run again, and the second round resumes after the last delivered row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from distributed import get_worker

from dml.base.amounts import bytes_text
from dml.cluster.exchange.range_partition import Ranges, RunIndex, bounds_of, check_same
from dml.cluster.exchange.sorted_run_transfer import (
    Exchange,
    RunFetcher,
    Where,
    shelf_here,
    unknown,
)
from dml.cluster.exchange.sorted_runs import KEY, ByColumns, ByKey, RunsGoneError, store_run
from dml.data.block import Block
from dml.errors import DmlError, MemoryContractError, WorkerLostError
from dml.events import Tally
from dml.exec.delivery.meter import Meter, Metered
from dml.exec.memory.spill import Spilling
from dml.exec.scheduler.policy import Demand
from dml.exec.slicing.slice_worker import detached
from dml.exec.streams.stream import StageFlow, unsettled
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import PartitionSizes, Piece, ReadTask, TaskList
from dml.exec.tasks.slices import Outcome, Start
from dml.exec.tasks.task import beside_rows
from dml.expr.flow import UNBOUNDED, Again, Flow, Position
from dml.io.memory.range import Range
from dml.ops.sort.external_sort import HELD
from dml.ops.sort.row_order import Ordering
from dml.physical.plan import Stage, units_each

if TYPE_CHECKING:
    from dml.exec.drivers.driver_choice import Opening
    from dml.exec.streams.stream import Streaming
    from dml.expr.node import Node

# Extra memory for writing a run, in partitions: the joined rows, and the sorted batches.
SORTING = 2
# Ranges for each thread of the cluster, unless memory requires more; bounds of a range's bytes.
RANGES, LEAST_RANGE, MOST_RANGE = 4, 1 << 20, 64 << 20
# A range is planned from a sample, and made in one pass unless it is LARGER times its planned size.
# No range is planned larger than PLANNED / LARGER of the memory of a thread.
PLANNED, LARGER = 2, 3
# Divisor of the memory limit for the reports of all runs, which each process holds.
TOLD_PART = 4
# Losses of runs that are tolerated while no row is delivered.
MOST_LOSSES = 5


@dataclasses.dataclass(frozen=True, eq=False)
class RunsJob(Job):
    """The job of the first round: the output of the stages is written as sorted runs.

    ``by`` is the order of rows; ``exchange`` names folders below ``root``, or Dask's own if None.
    """

    by: ByColumns | ByKey = dataclasses.field(kw_only=True)
    exchange: str = dataclasses.field(kw_only=True)
    root: str | None = dataclasses.field(kw_only=True)

    def starts(self, mine: Callable[[], Tally]) -> tuple[Start, ...]:
        """Return the start function of each stage; that of the last stage writes runs."""
        *before, last = super().starts(mine)
        return (*before, partial(self._written, last))

    def _written(self, start: Start, argument: Any) -> Iterator[Outcome]:
        for made in start(argument):
            yield _with_report(made, self._store_run(made.value))

    def _store_run(self, pieces: list[Piece]) -> Block | None:
        shelf = shelf_here(self.exchange, self.root)
        try:
            return store_run(shelf, pieces, self.by)
        except (MemoryContractError, OSError):
            if Path(shelf.path).exists():
                raise
        # The folder was removed while it was written to: the worker is about to be closed.
        return store_run(shelf_here(self.exchange, self.root), pieces, self.by)


def _with_report(made: Outcome, told: Block | None) -> Outcome:
    """Return ``made`` with its run's report ``told`` in place of rows; keep errors and losses."""
    pieces = [
        dataclasses.replace(piece, block=None, firsts=())
        for piece in made.value
        if piece.ends or piece.error is not None or piece.losses
    ]
    if told is not None:
        pieces.insert(0, Piece(made.value[0].place, made.value[0].atom, told))
    held_bytes = (0 if told is None else told.nbytes) + beside_rows(pieces)
    parked_bytes = made.parked_bytes + SORTING * made.held_bytes
    return Outcome(pieces, held_bytes, made.rows, made.done, parked_bytes)


@dataclasses.dataclass(frozen=True, eq=False)
class MergeJob(Job):
    """The job of the second round: one task for each range, which merges it from all runs.

    ``fetching`` reads the runs; ``groups`` is the operator that groups the rows, or None. Large
    ranges are sorted below ``root``, or below Dask's own folder if None, as the runs were written.
    """

    ranges: Ranges = dataclasses.field(kw_only=True)
    fetching: RunFetcher = dataclasses.field(kw_only=True)
    groups: Any = dataclasses.field(kw_only=True)
    root: str | None = dataclasses.field(kw_only=True, default=None)

    def starts(self, mine: Callable[[], Tally]) -> tuple[Start, ...]:
        """Return the start function of the only stage."""
        del mine
        return (self._partitions,)

    def _partitions(self, task: ReadTask) -> Iterator[Outcome]:
        """Yield the partitions of one range: one, unless its rows exceed ``most_bytes``.

        Groups may be larger than their rows, so their partitions end at ``range_bytes``.
        """
        ranges, held, held_bytes, rows = self.ranges, list[Piece](), 0, 0
        most_bytes = ranges.most_bytes if self.groups is None else ranges.range_bytes
        for piece in self._pieces(task.start):
            held.append(piece)
            if piece.block is not None:
                held_bytes += piece.block.nbytes
                rows += piece.block.n
            if piece.stops or held_bytes >= most_bytes:
                whole_bytes = held_bytes + beside_rows(held)
                yield Outcome(held, whole_bytes, rows, piece.stops, ranges.working_bytes)
                held, held_bytes, rows = [], 0, 0

    def _pieces(self, number: int) -> Iterator[Piece]:
        """Yield the blocks of range ``number``, then the end of the range, or its error."""
        spill = Spilling(self.root or get_worker().local_directory)
        at = dataclasses.replace(self.at, spill=spill)
        flow = self.ranges.rows(number, self.fetching.all, at)
        names = tuple(name for name in self.ranges.index.schema.names if name != KEY)
        try:
            if self.groups is None:
                while (block := flow.pull(UNBOUNDED)) is not None:
                    yield Piece(number, 0, block.select(names))
            else:
                for block in self.groups.groups(at, flow):
                    yield Piece(number, 0, block)
            yield Piece(number, 0, ends=True)
        except RunsGoneError:
            raise
        except DmlError as error:
            yield Piece(number, 0, error=error)
        finally:
            flow.close()


def open_exchange(
    run: Streaming, nodes: Sequence[Node], epoch: int, position: Position | None, *, finishing: bool
) -> Flow:
    """Open the output of ``nodes``, from ``position`` (None: the start) on, made in two rounds.

    ``nodes`` are the first operators of the stream of ``run``: one that orders rows, and perhaps
    one that groups them in that order. If ``finishing``, columns get their delivered form.
    """
    rounds = Rounds(run, nodes, epoch, finishing=finishing)
    return Metered(Again(rounds.first, rounds.rows, position), run.meter, len(nodes))


class Rounds:
    """Both rounds of the operators ``nodes`` of ``run`` in one epoch; see ``open_exchange``."""

    def __init__(
        self, run: Streaming, nodes: Sequence[Node], epoch: int, *, finishing: bool
    ) -> None:
        self.run, self.groups = run, nodes[1:]
        self.opening = cast("Opening", run.open)
        self.at = dataclasses.replace(run.at, epoch=epoch)
        order, together = cast("Any", nodes[0]).spread(self.at, epoch), bool(self.groups)
        columns = isinstance(order, Ordering)
        self.by = ByColumns(**vars(order), together=together) if columns else ByKey(order.keys)
        self.exchange = Exchange(self.opening.settings)
        job = run.job(epoch, finishing=finishing)
        where: dict[str, Any] = {"exchange": self.exchange.name, "root": self.exchange.root}
        same = {each.name: getattr(job, each.name) for each in dataclasses.fields(job)}
        self.job = RunsJob(**same, by=self.by, **where)
        units, unit_at = self.job.reading.places, self.job.reading.unit_at
        self.each = units_each(units, unit_at, run.target_bytes)
        self.tasks = TaskList(0, units, self.each, 0)

    # ------------------------------------------------------------------------------ the first round

    def first(self) -> StageFlow:
        """Begin the first round, and return the flow of the runs' reports, in order."""
        return self._stages(cast("Sequence[ReadTask]", self.tasks), self.run.meter, self.run.lost)

    def _stages(self, tasks: Sequence[ReadTask], meter: Meter, lost: Any) -> StageFlow:
        demands = [*self.opening.demands]
        last = demands[-1]
        # what the memory of a stage has left after one slice
        spare = self.opening.budget.stage_bytes - last.output_bytes - last.open_bytes
        sorting = max(0, min(SORTING * last.output_bytes, spare))
        demands[-1] = dataclasses.replace(last, open_bytes=last.open_bytes + sorting)
        return StageFlow(self._feed(demands, tasks, self.job), None, meter, lost)

    def _feed(self, demands: Sequence[Demand], tasks: Sequence[ReadTask], job: Job) -> Any:
        """Begin ``tasks`` of a round's ``job``; ``demands`` are those of its stages."""
        return dataclasses.replace(self.opening, demands=demands)(
            *(tasks, job, self.run.tallies),
            settling=unsettled(job),
            on_core=self.run.holding.begin,
            **self.run.reports(job),
        )

    def _heard(self, flow: Flow) -> list[Block]:
        """Return the reports of all runs, one block each, and count the bytes written to disk."""
        told, told_bytes = [], 0
        most_bytes = self.opening.budget.limit_bytes // TOLD_PART
        while (block := flow.pull(1 << 62)) is not None:
            told.append(block)
            told_bytes += block.nbytes
            if told_bytes > most_bytes:
                raise _too_many(told_bytes, most_bytes)
            if isinstance(self.run.at.spill, Spilling):
                self.run.at.spill.wrote(int(block["\0bytes"][0].sum()))
        flow.close()
        return told

    def _again(self, index: RunIndex, missing: Sequence[int]) -> None:
        """Run the tasks again that wrote the runs whose numbers in ``index`` are ``missing``."""
        wanted = sorted({index.places[number] // self.each for number in missing})
        tasks = [self.tasks[number] for number in wanted]
        flow = self._stages(tasks, Meter(0), lambda *_, **__: None)
        check_same(index, self._heard(flow))

    # ----------------------------------------------------------------------------- the second round

    def rows(self, first: Flow) -> Iterator[Block]:
        """Yield the rows in order: end the first round, whose flow is ``first``, then merge."""
        try:
            told = self._heard(first)
            if told:
                index = RunIndex.of(told, self.by)
                told.clear()
                yield from self._merged(self._divided(index))
        finally:
            first.close()
            self.exchange.close()

    def _divided(self, index: RunIndex) -> Ranges:
        """Return ranges that fit into a thread's share of memory, enough for all threads."""
        workers = max(1, self.opening.workers)
        most = max(1, self.opening.budget.stage_bytes // workers // (HELD + 2))
        wanted = max(LEAST_RANGE, index.total_bytes // (RANGES * workers))
        range_bytes = max(1, min(wanted, most * PLANNED // LARGER, MOST_RANGE))
        most_bytes = min(most, LARGER * max(range_bytes, LEAST_RANGE))
        if self.opening.settings.target_partition_bytes != "auto":
            range_bytes = min(range_bytes, self.run.target_bytes)
        by = self.by if isinstance(self.by, ByColumns) else ByKey(None)
        return Ranges(index, by, bounds_of(index, by, range_bytes), range_bytes, most_bytes)

    def _merged(self, ranges: Ranges) -> Iterator[Block]:
        position: Position | None = None
        losses, cause = 0, RunsGoneError("runs are gone", why="made again, they are nowhere")
        while losses <= MOST_LOSSES:
            homes = self._settled(ranges.index)
            if homes is None:
                losses += 1
                continue
            flow = self._ranged(ranges, homes, position)
            try:
                while (block := flow.pull(1 << 62)) is not None:
                    losses = 0
                    yield block
            except RunsGoneError as gone:
                position, cause = flow.position(), gone
                self.exchange.avoid(gone)
                losses += 1
            else:
                return
            finally:
                flow.close()
        raise _lost(cause) from cause

    def _settled(self, index: RunIndex) -> Mapping[str, Where] | None:
        """Return the location of each run by name; None if some are missing, also when rerun."""
        homes = self.exchange.homes()
        if missing := unknown(index.names, homes):
            self._again(index, missing)
            self.exchange.remade.update(index.names[number] for number in missing)
            homes = self.exchange.homes()
        return None if unknown(index.names, homes) else homes

    def _ranged(self, ranges: Ranges, homes: Any, position: Position | None) -> StageFlow:
        """Return the flow of all ranges' rows from ``position`` on; ``homes`` locates the runs."""
        index, settings = ranges.index, self.opening.settings
        fetching = RunFetcher(
            *(index.names, index.schema, tuple(homes[name] for name in index.names)),
            *(index.batch_bytes, settings.worker_silent_s),
        )
        stage = Stage(Range(0, len(ranges), 1, 1), ("id",), (), ())
        size, budget = ranges.range_bytes, self.opening.budget
        sizes = PartitionSizes(size, budget.stage_bytes, budget.atom_bytes)
        groups = detached(self.groups)[0] if self.groups else None
        own: dict[str, Any] = {"ranges": ranges, "fetching": fetching, "groups": groups}
        job = MergeJob(stage, self.at, sizes, root=self.exchange.root, **own)
        open_bytes = ranges.working_bytes
        if size + open_bytes > sizes.most_bytes:
            raise _too_wide(index.batch_bytes, size + open_bytes, sizes.most_bytes)
        demand = Demand("merge", output_bytes=size, open_bytes=open_bytes, bounded=True)
        start = 0 if position is None else position["unit"]
        tasks = cast("Sequence[ReadTask]", TaskList(start, len(ranges), 1, 0))
        feed = self._feed((demand,), tasks, job)
        return StageFlow(feed, position, Meter(0), lambda *_, **__: None)


def _too_wide(batch_bytes: int, wanted_bytes: int, most_bytes: int) -> MemoryContractError:
    return MemoryContractError(
        "rows are too large to be sorted within the memory number",
        why=f"some that are read at once take {bytes_text(batch_bytes)}, sorting them"
        f" {bytes_text(wanted_bytes)}; all stages may hold {bytes_text(most_bytes)}",
        try_="a larger memory_limit=, spread=False, or smaller columns",
    )


def _too_many(told_bytes: int, most_bytes: int) -> MemoryContractError:
    return MemoryContractError(
        "rows are too many to be sorted by workers within the memory number",
        why=f"first keys of what they wrote, of every 16 KiB or more, take {bytes_text(told_bytes)}"
        f" by now, and may take {bytes_text(most_bytes)}",
        try_="a larger memory_limit=, or spread=False",
    )


def _lost(cause: RunsGoneError) -> WorkerLostError:
    return WorkerLostError(
        "sorted runs were lost again and again",
        at=", ".join(cause.places),
        why=cause.why or cause.what,
        try_="workers that live longer and can reach each other, or spread=False",
    )
