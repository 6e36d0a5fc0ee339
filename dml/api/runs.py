"""Verbs that run a pipeline are defined here: iteration, graphs, splits, run reports, forecasts."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dml.base.user_line import door, users_line
from dml.errors import PlanError
from dml.expr.node import Node
from dml.io.source import Source
from dml.settings import AUTOTUNE, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from types import ModuleType

    from dml.api.recommendation import Recommendations
    from dml.api.resources import RunResources
    from dml.api.run_profile import RunProfile, Train
    from dml.cluster.graph.program import Recipe
    from dml.events import Event
    from dml.exec.delivery.iterator import Elements, Report
    from dml.exec.memory.memory_report import MemoryReport
    from dml.exec.streams.stream import Streaming
    from dml.fleet.history import RunHistory
    from dml.fleet.report import RunTable
    from dml.settings import Auto
    from dml.verify.simulate.answer import WhatIf

DASK_KINDS = ("delayed", "dataframe")


def wiring() -> ModuleType:
    """Return the session module, which is loaded by the first run."""
    from dml.api import session

    return session


def running(settings: Settings) -> ModuleType:
    """Return the module that opens a run: in this process, or in a driver process."""
    if settings.driver == "here":
        return wiring()
    from dml.api import driver_runs

    return driver_runs


def graphs() -> ModuleType:
    """Return the module that compiles to Dask; loading it takes a third of a second, once."""
    from dml.cluster.graph import graph

    return graph


def splitting() -> ModuleType:
    """Return the module that distributes a run's elements to ranks."""
    from dml.ranks import streaming_split as opening

    return opening


class Results:
    """The base of Dataset with the methods that run it: iteration, whole results, run reports."""

    def __init__(
        self, node: Node, settings: Settings | None = None, pinned: int | None = None
    ) -> None:
        if not isinstance(node, Node):
            raise PlanError(
                "a Dataset is not made by its class",
                why=f"dml.Dataset got a {type(node).__name__}",
                try_="dml.from_dict({...}), dml.from_items([...]), dml.read_parquet(...)",
            )
        self._node = node if node.where else node.placed(users_line())
        self._settings = settings or Settings()
        self._pinned = pinned
        self._next_epoch = 0
        self._last: Report | None = None
        self._run: Callable[[], MemoryReport] | None = None
        self._grouped: dict[tuple[int, bool], Node] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the report of this process's last run."""
        return {**self.__dict__, "_last": None, "_run": None, "_grouped": {}}

    @door
    def __iter__(self) -> Elements:
        return self._iterated(self._node)

    def _iterated(self, node: Node) -> Elements:
        """Return the next epoch's iterator over ``node``: this pipeline, or one derived from it."""
        epoch = self._coming
        made: Elements = running(self._settings).run(node, self._settings, epoch, self._restored)
        self._next_epoch = epoch + 1
        self._ran(node, made.report)
        self._run = made.told_of_memory
        return made

    def _ran(self, node: Node, report: Report) -> None:
        """Record the report of the last run of ``node``, for all Datasets with that node."""
        self._last = node.memo["report"] = report

    @property
    def _coming(self) -> int:
        """The epoch of the next iteration."""
        return self._next_epoch if self._pinned is None else self._pinned

    def _restored(self, epoch: int) -> None:
        self._next_epoch = epoch + 1

    def _quietly(self, node: Node | None = None) -> Elements:
        """Iterate over ``node`` (None: this pipeline); do not read ahead or count an epoch."""
        chosen = self._node if node is None else node
        opened = running(self._settings).run
        run: Elements = opened(chosen, self._settings, self._pinned or 0, lambda _: None)
        return run.when_asked()

    def _streamed(self, node: Node, epoch: int) -> tuple[Streaming, RunResources]:
        """Return ``epoch`` of ``node`` as an unopened stream, and the run's resources."""
        made: tuple[Streaming, RunResources] = wiring().streamed(node, self._settings.here, epoch)
        return made

    def _batches(self, node: Node | None = None) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of ``node``, or of this pipeline, as they are computed."""
        from dml.exec.delivery import tables

        epoch = self._pinned or 0
        streaming, _ = self._streamed(self._node if node is None else node, epoch)
        made: Generator[pa.RecordBatch, None, None]
        made = tables.record_batches(streaming, epoch)
        return made

    def _asked_whole(self, verb: str) -> tuple[Node, Settings, int]:
        """Return node, settings and epoch for ``verb``; raise PlanError for an endless stream."""
        self._must_end(verb)
        return self._node, self._settings.here, self._pinned or 0

    @door
    def take_rows(self, n: int) -> list[dict[str, Any]]:
        """Run now, and return the first ``n`` elements; does not count as an epoch."""
        from dml.api import head_step

        with self._quietly(head_step.first(self._node, n)) as elements:
            return list(elements)

    @door
    def count(self) -> int:
        """Return the number of elements, reading them all unless the source knows their number."""
        if isinstance(self._node, Source) and self._node.row_count is not None:
            return self._node.row_count
        self._must_end("count")
        if self._node.batched:
            return sum(1 for _ in self._quietly())
        with closing(self._batches()) as batches:
            return sum(batch.num_rows for batch in batches)

    @door
    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table in memory."""
        self._must_end("to_arrow")
        return wiring().table(self._node, self._settings.here, self._pinned or 0)

    @door
    def to_dask(self, kind: str = "delayed") -> Any:
        """Return the rows as a Dask graph, not yet computed: a list of ``dask.delayed`` values.

        Each computes to a ``pyarrow.Table``; together, in order, they are the rows of
        ``to_arrow()``, on any Dask scheduler. A task reads consecutive read units of about
        ``target_partition_bytes`` (64 MiB). Tasks of functions with ``num_gpus`` or ``resources``
        are annotated with these (a worker needs the resource "GPU"), and stay so through
        ``dask.optimize``, ``persist`` and submission; ``num_cpus`` and ``concurrency`` have no
        effect in a static graph. Operators that depend on the order of rows (``batch``, ``take``,
        windows) become a chain of tasks, one after the other, which holds one window at a time. If
        a function's types are unknown, one task processes the first rows, and all other tasks wait
        for the types; a table has no columns if no row precedes or is in it.

        ``kind="dataframe"`` returns a ``dask.dataframe`` of the same rows (needs pandas), with
        columns in their Arrow types and tensors as lists. This does not count as an epoch. Raise
        PlanError for endless streams, full shuffles that need all rows in one process, and
        functions that cannot be pickled; for data frames also for unknown types and ``resources``.
        """
        if kind not in DASK_KINDS:
            raise PlanError(
                f"to_dask has no kind {kind!r}",
                why=f"kinds are {', '.join(DASK_KINDS)}",
                try_='kind="delayed"',
            )
        compile_ = graphs().compiled if kind == "delayed" else graphs().data_frame
        return compile_(*self._graphed("to_dask"))

    @door
    def persist(self) -> list[Any]:
        """Compute ``to_dask()`` on the workers of the current Dask client, else in this process.

        As ``dask.persist`` does, return the same ``dask.delayed`` values, now with their rows, or
        with the futures that compute them. Errors of rows are raised when a value is computed.
        Raise PlanError as ``to_dask`` does, and if no worker has a function's ``resources``.
        """
        made: list[Any] = graphs().persisted(graphs().compiled(*self._graphed("persist")))
        return made

    def _graphed(self, verb: str) -> tuple[Recipe, int, int | None]:
        """Return the recipe, the epoch and the bytes per task (None: automatic) of a Dask graph."""
        self._must_end(verb)
        session, settings, graph = wiring(), self._settings, graphs()
        plan = session.optimized(self._node, settings).plan
        budget = session.RunResources.of(settings, plan).budget
        recipe = graph.Recipe.of(plan, session.tiers_of(settings), settings.seed, budget)
        asked = settings.target_partition_bytes
        return recipe, self._pinned or 0, None if asked == AUTOTUNE else int(asked)

    def _must_end(self, verb: str) -> None:
        if self._node.endless:
            raise PlanError(
                f"{verb} of an endless stream",
                at=self._node.label(),
                why=".repeat() without a count goes on for ever",
                try_=f".take(n).{verb}(), or .repeat(n)",
            )

    @door
    def stats(self) -> RunTable:
        """Return the work of each operator in the last iteration: rows, bytes, seconds.

        The iteration is the last one of this Dataset, else of another Dataset with the same
        pipeline, such as ``ds.epoch(k)``.
        """
        last: Report | None = self._last or self._node.memo.get("report")
        if last is None:
            raise PlanError(
                "no run to tell about yet",
                why="this dataset has not been iterated",
                try_="for batch in ds: ..., then ds.stats() of the same ds",
            )
        found: RunTable = wiring().stats(last.so_far())
        return found

    @door
    def history(self, count: int = 20) -> RunHistory:
        """Return the last ``count`` recorded runs of this pipeline, by whatever process.

        Pipelines are the same if their operators, functions, constants and names of files are.
        ``print`` it for a table; ``.runs`` is an Arrow table; a notebook shows a picture, too.
        Raise PlanError where telemetry is off, or DuckDB (``dml[fleet]``) is not installed.
        """
        found: RunHistory = wiring().history(self._node, self._settings, count)
        return found

    @property
    def _last_events(self) -> list[Event]:
        """The events of the pipeline's last run in this process; [] if there was none."""
        last = self._node.memo.get("report")
        return [] if last is None else last.so_far()

    @door
    def what_if(
        self,
        *,
        workers: int | None = None,
        memory: int | str | None = None,
        gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        storage_gbps: float | None = None,
        step_s: float | None = None,
        rows_per_s: float | None = None,
        prefetch: int | Auto | None = None,
        cache: str | None = None,
        cost: Mapping[str, float] | None = None,
    ) -> WhatIf:
        """Forecast a run with other resources: its time, its bottleneck, and a lower bound.

        Arguments not given are as in the settings. Each worker beyond the present ones brings its
        own core; ``gpus`` and ``resources`` are those of all workers together; ``storage_gbps`` is
        the storage bandwidth in Gbit/s, a limit in addition to the measured reading time; a
        training loop takes ``step_s`` seconds per element (None: as in the last run here), and
        ``prefetch`` elements are made ahead of it. ``cache`` names a function or an operator: the
        forecast is then for an epoch after the first, with its rows in a ``cache()`` after it.
        ``cost={"decode": 0.5}`` is a run in which that function takes half its time. With
        ``rows_per_s``, find the number of workers that reaches this rate.

        Nothing runs, and no epoch is counted. The scheduler of real runs schedules simulated tasks
        on a hypothetical cluster; the answer also gives a bound that no schedule could beat. Costs
        are those of the last iteration of this pipeline in this process, else of earlier runs, else
        guesses; the answer says which. docs/what_if.md lists what is not modelled. Raise PlanError
        for invalid numbers, needed resources that no worker has, and a cluster without
        ``workers=``.
        """
        asked = (workers, memory, gpus, resources, storage_gbps, step_s, rows_per_s, prefetch)
        from dml.api import what_if

        return what_if.what_if(self._node, self._settings, (*asked, cache, cost), self._last_events)

    @door
    def recommend(self) -> Recommendations:
        """Return the settings that are worth fixing, as code with reasons; ``print`` it.

        These are settings with which the next run is expected to take at least 5 % less, by the
        forecast of ``what_if``, and what the last run found by itself, such as how many slices of a
        function that waits pay at once. Nothing runs. Run the pipeline once before: without
        measurements the costs are guesses, and the answer says so.

        >>> print(ds.recommend())  # doctest: +SKIP
        .with_options(executor='processes')  -46% expected: functions run on all cores
        rests on  the last run for 100% of the work; may be off by +-20%
        """
        from dml.api import recommendation

        return recommendation.recommend(self._node, self._settings, self._last_events)

    @door
    def profile(self, train: Train | None = None, *, upper_bound: bool = False) -> RunProfile:
        """Run the next epoch once, and return whether the training loop waits, and for what.

        ``train`` is a training loop: a function that is called with an iterable of the elements of
        one epoch, which it may read once. Without it, the pipeline runs alone, as fast as it can.
        With ``upper_bound``, the loop then runs again on as many copies of the first element, which
        shows its speed if the input took no time: a loop whose steps are at most 2 % longer is not
        input bound. Arrays are not copied, so a loop that writes into them sees what it wrote.

        The answer names the operator and the resource that limit the pipeline itself, as
        ``what_if`` foresees it from the measurements of this run. It does not count as an epoch.
        Raise PlanError without an element, if the loop reads the elements twice, and without
        ``train`` for a pipeline without end or with ``upper_bound``.

        >>> print(ds.profile(loop, upper_bound=True))  # doctest: +SKIP
        profile   782 steps in 9.80 s
        step      12.5 ms, of which 4.31 ms (34%) wait for the input
        bound     8.2 ms with one element repeated
        verdict   input bound: the loop waits
        limit     MapRows(decode) (98% of 2 cores)
        """
        from dml.api import run_profile

        run_profile.check(train, upper_bound=upper_bound)
        if train is None:
            self._must_end("profile")
        opened = running(self._settings).run
        with opened(self._node, self._settings, self._coming, lambda _: None) as elements:
            clock = run_profile.measured(elements, train)
        self._ran(self._node, elements.report)
        bound_s = run_profile.bound_s(clock, train) if upper_bound and train is not None else None
        limit = self.what_if(step_s=0).bottleneck
        return run_profile.RunProfile.of(clock, bound_s, limit, trained=train is not None)

    @door
    def memory_report(self) -> MemoryReport:
        """Return how ``memory_limit`` is divided, and how much of it the last iteration used.

        ``print`` it for a readable table; its attributes and ``to_dict()`` are for programs. It
        shows for every stage the reserved memory, the memory of its slices and the peak, and for
        the run the bytes spilled to disk. For comparison it shows the system's figures: the memory
        that ``memory_limit`` limits, the resident memory, and that of the control group.
        ``it.memory_report()`` returns the same for a running iterator. Before the first iteration,
        only the division is known.
        """
        found: MemoryReport = (
            wiring().memory(self._node, self._settings, self._coming)
            if self._run is None
            else self._run()
        )
        return found

    @door
    def streaming_split(
        self,
        n: int | None = None,
        *,
        equal: str | None = None,
        job_name: str | None = None,
        rank: int | None = None,
        address: str | None = None,
    ) -> Any:
        """Return ``n`` iterables over one run, for ``n`` ranks: element g goes to rank g mod n.

        No row is dropped: the first ranks get one element more if n does not divide their number.
        ``equal="drop"`` truncates all ranks to the shortest one; ``"pad"`` appends a copy of the
        stream's last element to short ranks. Each iteration of a rank is its part of the next
        epoch. A slow rank delays the other ranks once 1,024 elements, or a tenth of the memory
        limit, wait for it. ``state_dict()`` of a rank is the state of all ranks after the same
        number of steps: after a restart, every rank of a split into any number of ranks loads a
        state of the same step. A rank that is closed, or whose iterator is dropped, loses the rest
        of its share of that epoch.

        Without ``job_name`` the ranks are threads of this process, and a list is returned. With
        ``job_name``, they are processes that all make this call, and each gets its own iterable:
        ``rank`` and ``n`` are read from RANK and WORLD_SIZE if not given. Rank 0 runs its own
        pipeline, ignores those of the other ranks, and serves them: on one host through loopback,
        on several at ``address="host:port"`` of rank 0, with the same secret in DML_TOKEN on all
        hosts. A reader acknowledges an element by asking for the next one; elements that a dead
        reader has not acknowledged go to the process that takes its rank after it. Rank 0 ends, or
        its ``close()`` returns, once every connected reader, however slow, has read its share to
        the end or has closed it.

        Raise PlanError if the ranks are not known, or if one thread reads several ranks and would
        wait forever. Raise ResumeMismatchError for states of different steps. Raise WorkerLostError
        if rank 0, or a rank that others wait for, has died; ``close()`` of rank 0 also raises it if
        its own share has ended but that of a rank without a reader has not.
        """
        ways, known = splitting(), self._settings.watchdog_s
        if job_name is None:
            return ways.parts(n, self._dealt, equal, known, rank=rank, address=address)
        asked = {"n": n, "rank": rank, "address": address, "epoch": self._pinned}
        return ways.member(job_name, self._dealt, equal, known, **asked)

    def _dealt(self) -> Elements:
        """Return the next epoch's iterator for ranks, which computes elements only on request."""
        return iter(self).when_asked()

    @door
    def to_torch(self, **options: Any) -> Any:
        """Return a ``torch.utils.data.IterableDataset`` of the elements as tensors (needs torch).

        Options are those of ``dml.interop.torch.to_torch``, which also accepts a rank of a split.
        """
        from dml.interop import torch

        return torch.to_torch(self, **options)

    @door
    def to_jax(
        self,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        sharding: Any = None,
        objects: str = "list",
    ) -> Any:
        """Return an iterable of the elements as dicts of ``jax.Array`` (needs jax).

        It has ``state_dict`` and ``load_state_dict``. Options are those of
        ``dml.interop.jax.to_jax``, which also accepts a rank of a split.
        """
        from dml.interop import jax

        return jax.to_jax(
            self, batch_size=batch_size, drop_last=drop_last, sharding=sharding, objects=objects
        )

    @door
    def to_tf(self, *, batch_size: int | None = None, drop_last: bool = False) -> Any:
        """Return a ``tf.data.Dataset`` of the elements as dicts of tensors (needs tensorflow).

        ``batch_size=`` and ``drop_last=`` are those of ``batch``; see ``dml.interop.tensorflow``.
        """
        from dml.interop import tensorflow

        batches = self._node.batched
        return tensorflow.to_tf(self, batches=batches, batch_size=batch_size, drop_last=drop_last)
