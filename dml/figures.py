"""This file holds the verbs that give figures: of columns in a pass, of pipelines without one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dml.errors import PlanError
from dml.expr.doors import door
from dml.expr.node import Node
from dml.results import Results, executing

if TYPE_CHECKING:
    from types import ModuleType

    from dml.exec.twin.answer import WhatIf


def foresight() -> ModuleType:
    """What foresees runs, loaded by the first question."""
    from dml import foreseeing  # noqa: PLC0415 - it brings the optimizer and the scheduler

    return foreseeing


class Figures(Results):
    """Verbs that say how much, how many, how large; none of them counts as an epoch.

    Figures of columns are exact and rounded once, so they have the same bits with any executor,
    number of workers and size of partitions. A missing value (null) is left out; NaN is a value.
    """

    @door
    def min(self, column: str) -> Any:
        """The least value of ``column``, None if it has none; NaN if one is. Holds a batch.

        Of numbers, texts, bytes and moments; SchemaError for others.
        """
        return self._figure("min", column)

    @door
    def max(self, column: str) -> Any:
        """The greatest value of ``column``, as ``min``."""
        return self._figure("max", column)

    @door
    def sum(self, column: str) -> Any:
        """The sum of ``column``: an int of integers, of any size, and of booleans; else a float.

        0 of no values. The exact sum, rounded once, in whatever order rows come. Holds a batch.
        SchemaError if it holds no numbers.
        """
        return self._figure("sum", column)

    @door
    def mean(self, column: str) -> float | None:
        """The exact mean of ``column``, rounded once; None of no values. Otherwise as ``sum``."""
        found: float | None = self._figure("mean", column)
        return found

    @door
    def std(self, column: str) -> float | None:
        """The standard deviation of ``column`` as a sample (divided by n - 1); as ``mean``.

        None of fewer than two values.
        """
        found: float | None = self._figure("std", column)
        return found

    @door
    def describe(self) -> dict[str, dict[str, Any]]:
        """By column of integers or floats: count, null_count, mean, std, min, max, in one pass.

        ``count`` is of values that are not null. As ``mean``, ``std``, ``min``; holds a batch.
        """
        self._must_end("describe")
        schema = self._node.schema
        named = tuple(n for n, kind in schema.items() if executing("measures").measured(kind))
        if schema.known and not named:
            return {}
        node = self._only("describe", *named) if schema.known else self._node
        with closing(self._batches(node)) as rows:
            found: dict[str, dict[str, Any]] = executing("measures").described(rows, node.schema)
            return found

    @door
    def unique(self, column: str) -> list[Any]:
        """The distinct values of ``column``, in order of first appearance; null is one of them.

        All NaNs are one value, and so are 0.0 and -0.0, of which the first is shown. Holds them and
        a batch: MemoryContractError if they do not fit into their part of ``memory_limit``.
        SchemaError for lists, structs and tensors.
        """
        found: list[Any] = executing("measures").listed(self._distinct("unique", column))
        return found

    @door
    def value_counts(self, column: str, *, name: str = "count") -> pa.Table:
        """The distinct values of ``column`` with how often each comes, in the column ``name``.

        The most frequent first, equally frequent ones in order of first appearance. Otherwise as
        ``unique``.
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
            return executing("measures").figure(rows, node.schema, column, verb)

    def _distinct(self, verb: str, column: str) -> Any:
        self._must_end(verb)
        node = self._only(verb, column)
        epoch = self._pinned or 0
        streaming, resources = self._streamed(node, epoch)
        most = resources.budget.ahead_bytes
        with closing(executing("tables").record_batches(streaming, epoch)) as rows:
            return executing("measures").distinct(rows, node.schema, column, most)

    def _only(self, verb: str, *columns: str) -> Node:
        """This pipeline with these columns alone."""
        for column in columns:
            if not isinstance(column, str):
                raise PlanError(
                    f"{verb} needs the name of a column, got {column!r}",
                    why=f"it is of type {type(column).__name__}",
                    try_=f'.{verb}("x")',
                )
            if self._node.schema.known:
                self._node.schema.require(column, verb)
        made: Node = executing("asked").only(self._node, columns)
        return made.placed(self._node.where)

    # ------------------------------------------------------------------- without reading, if known

    def cardinality(self) -> int | float | None:
        """How many elements there are, if that is known without reading: else None.

        ``math.inf`` of an endless stream. ``count()`` reads where it must.
        """
        found: int | float | None = executing("known").counted(self._node)
        return found

    def __len__(self) -> int:
        """``cardinality()`` where it is a number; TypeError otherwise."""
        known = self.cardinality()
        if known is None or known == math.inf:
            why = "it is endless" if known else "only reading its rows would tell"
            way = ".take(n) ends it" if known else "ds.count() reads them"
            raise TypeError(f"this pipeline has no known length: {why}; {way}")
        return int(known)

    def __bool__(self) -> bool:
        """Always true: a pipeline is something, however many elements it has."""
        return True

    @door
    def size_bytes(self) -> int:
        """Bytes that the values of all rows take in memory, without masks and padding.

        Known without reading where the number of rows is, and types have one size (no texts, no
        lists); else reads all, holding a batch.
        """
        self._must_end("size_bytes")
        each = executing("measures").row_bytes(self._node.schema)
        rows = None if self._node.batched else self.cardinality()
        if each is not None and rows is not None:
            return int(rows) * int(each)
        with closing(self._batches()) as batches:
            found: int = executing("measures").size_of(batches)
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
        """How long a run would take elsewhere, what would hold it up, and how good that is.

        What is not given is as settings have it. More ``workers`` come with a core each; ``gpus``
        and ``resources`` are those of all workers; ``storage_gbps`` is what storage gives, in
        Gbit/s, beside what reading has taken so far; a training loop holds each element for
        ``step_s`` (None: as in the last run here). ``rows_per_s`` asks for the workers that such a
        rate needs.

        Nothing is run and no epoch counted. Tasks are tried on a cluster that does not exist, by
        the scheduler of real runs; the answer also says what no schedule could beat. Figures are
        those of the last iteration of this pipeline here, else of earlier runs, else guesses, and
        the answer says which (docs/what_if.md: what is left out). PlanError for numbers that make
        no sense, for resources that the pipeline needs and nobody has, for a cluster without
        ``workers=``. Takes up to a second.
        """
        asked = (workers, memory, gpus, resources, storage_gbps, step_s, rows_per_s)
        last = self._node.__dict__.get("_ran")
        events = [] if last is None else last.so_far()
        made: WhatIf = foresight().what_if(self._node, self._settings, asked, events)
        return made

    def input_files(self) -> list[str]:
        """Paths of the files that the sources read, in reading order; empty if there are none."""
        found: list[str] = executing("known").files_of(self._node)
        return found
