"""Verbs that compute statistics of columns, and verbs that need no data, are defined here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dml.api.runs import Results, running
from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.node import Node

if TYPE_CHECKING:
    from types import ModuleType

    from dml.api.recommendation import Recommendations
    from dml.api.run_profile import RunProfile, Train
    from dml.verify.simulate.answer import WhatIf


def foresight() -> ModuleType:
    """Return the module that forecasts runs; it is loaded by the first forecast."""
    from dml.api import what_if as foreseeing

    return foreseeing


class SummaryVerbs(Results):
    """Verbs that return statistics; none of them counts as an epoch.

    Statistics are exact and rounded once, so they have the same bits with any executor, number of
    workers and partition size. Nulls are ignored; NaN is a value. One batch is in memory at a time.
    """

    @door
    def min(self, column: str) -> Any:
        """Return the least value of ``column``; NaN if any is NaN, None if all are null.

        The column has numbers, texts, bytes, dates or times; raise SchemaError for other types.
        """
        return self._figure("min", column)

    @door
    def max(self, column: str) -> Any:
        """Return the greatest value of ``column``; None, NaN and errors are as in ``min``."""
        return self._figure("max", column)

    @door
    def sum(self, column: str) -> Any:
        """Return the sum of ``column``: an int for integers and booleans; else a float.

        An int has any size. The sum of no values is 0. Raise SchemaError for other types.
        """
        return self._figure("sum", column)

    @door
    def mean(self, column: str) -> float | None:
        """Return the exact mean of ``column``, None without values; errors are as in ``sum``."""
        found: float | None = self._figure("mean", column)
        return found

    @door
    def std(self, column: str) -> float | None:
        """Return the sample standard deviation of ``column``, computed with the divisor n - 1.

        Return None for fewer than two values. Otherwise as ``mean``.
        """
        found: float | None = self._figure("std", column)
        return found

    @door
    def describe(self) -> dict[str, dict[str, Any]]:
        """Describe columns of integers or floats in one pass: a dict of figures for each column.

        The figures are count (of values that are not null), null_count, mean, std, min and max.
        """
        from dml.exec.delivery import column_figures

        self._must_end("describe")
        schema = self._node.schema
        named = tuple(n for n, kind in schema.items() if column_figures.measured(kind))
        if schema.known and not named:
            return {}
        node = self._only("describe", *named) if schema.known else self._node
        with closing(self._batches(node)) as rows:
            found: dict[str, dict[str, Any]] = column_figures.described(rows, node.schema)
            return found

    @door
    def unique(self, column: str) -> list[Any]:
        """Return the distinct values of ``column``, null included, in order of first appearance.

        All NaNs are one value, as are 0.0 and -0.0, returned as the one that comes first. The
        distinct values and one batch are in memory. Raise MemoryContractError if the values exceed
        their share of ``memory_limit``; raise SchemaError for lists, structs and tensors.
        """
        from dml.exec.delivery import column_figures

        found: list[Any] = column_figures.listed(self._distinct("unique", column))
        return found

    @door
    def value_counts(self, column: str, *, name: str = "count") -> pa.Table:
        """Return a table of the distinct values of ``column`` and their counts, in column ``name``.

        The most frequent values come first, ties by first appearance. Otherwise as ``unique``.
        """
        if name == column:
            raise PlanError(
                f"value_counts of {column!r} into a column {name!r}",
                why="a table has a name once",
                try_='name="n"',
            )
        found: pa.Table = self._distinct("value_counts", column).table(name)
        return found

    def _figure(self, verb: str, column: str) -> Any:
        self._must_end(verb)
        node = self._only(verb, column)
        with closing(self._batches(node)) as rows:
            from dml.exec.delivery import column_figures

            return column_figures.figure(rows, node.schema, column, verb)

    def _distinct(self, verb: str, column: str) -> Any:
        from dml.exec.delivery import column_figures, tables

        self._must_end(verb)
        node = self._only(verb, column)
        epoch = self._pinned or 0
        streaming, resources = self._streamed(node, epoch)
        most = resources.budget.ahead_bytes
        with closing(tables.record_batches(streaming, epoch)) as rows:
            return column_figures.distinct(rows, node.schema, column, most)

    def _only(self, verb: str, *columns: str) -> Node:
        """Return this pipeline with only ``columns``."""
        for column in columns:
            if not isinstance(column, str):
                raise PlanError(
                    f"{verb} needs the name of a column, got {column!r}",
                    why=f"it is of type {type(column).__name__}",
                    try_=f'.{verb}("x")',
                )
            if self._node.schema.known:
                self._node.schema.require(column, verb)
        from dml.api import head_step

        made: Node = head_step.only(self._node, columns)
        return made.placed(self._node.where)

    # ------------------------------------------------------------------- without reading, if known

    def cardinality(self) -> int | float | None:
        """Return the number of elements; ``math.inf`` if endless, None if it must be counted."""
        from dml.exec.delivery import known_length

        found: int | float | None = known_length.counted(self._node)
        return found

    def __len__(self) -> int:
        """Return ``cardinality()``. Raise TypeError unless it is a finite number."""
        known = self.cardinality()
        if known is None or known == math.inf:
            why = "it is endless" if known else "only reading its rows would tell"
            way = ".take(n) ends it" if known else "ds.count() reads them"
            raise TypeError(f"this pipeline has no known length: {why}; {way}")
        return int(known)

    def __bool__(self) -> bool:
        """Return True, however many elements the pipeline has."""
        return True

    @door
    def size_bytes(self) -> int:
        """Return the bytes that the values of all rows take in memory, without masks and padding.

        Nothing is read if the number of rows is known and all types have a fixed size (no texts, no
        lists); else all rows are read, one batch in memory at a time.
        """
        from dml.exec.delivery import column_figures

        self._must_end("size_bytes")
        each = column_figures.row_bytes(self._node.schema)
        rows = None if self._node.batched else self.cardinality()
        if each is not None and rows is not None:
            return int(rows) * int(each)
        with closing(self._batches()) as batches:
            found: int = column_figures.size_of(batches)
            return found

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
    ) -> WhatIf:
        """Forecast a run with other resources: its time, its bottleneck, and a lower bound.

        Arguments not given are as in the settings. Each worker beyond the present ones brings its
        own core; ``gpus`` and ``resources`` are those of all workers together; ``storage_gbps`` is
        the storage bandwidth in Gbit/s, a limit in addition to the measured reading time; a
        training loop takes ``step_s`` seconds per element (None: as in the last run here). With
        ``rows_per_s``, find the number of workers that reaches this rate.

        Nothing runs, and no epoch is counted. The scheduler of real runs schedules simulated tasks
        on a hypothetical cluster; the answer also gives a bound that no schedule could beat. Costs
        are those of the last iteration of this pipeline in this process, else of earlier runs, else
        guesses; the answer says which. docs/what_if.md lists what is not modelled. Raise PlanError
        for invalid numbers, needed resources that no worker has, and a cluster without
        ``workers=``.
        """
        asked = (workers, memory, gpus, resources, storage_gbps, step_s, rows_per_s)
        last = self._node.memo.get("report")
        events = [] if last is None else last.so_far()
        made: WhatIf = foresight().what_if(self._node, self._settings, asked, events)
        return made

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

        last = self._node.memo.get("report")
        events = [] if last is None else last.so_far()
        return recommendation.recommend(self._node, self._settings, events)

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
        again = run_profile.repeated(clock) if upper_bound and train is not None else None
        bound = None if again is None else run_profile.measured(again, train).each()[0]
        limit = self.what_if(step_s=0).bottleneck
        seconds, trained = clock.ended - clock.begun, train is not None
        return run_profile.RunProfile(
            clock.steps, seconds, *clock.each(), bound, limit, trained=trained
        )

    @door
    def input_files(self) -> list[str]:
        """Return the paths of the files that the sources read, in reading order; empty if none."""
        from dml.exec.delivery import known_length

        found: list[str] = known_length.files_of(self._node)
        return found
