"""Verbs that compute statistics of columns, and verbs that need no data, are defined here."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

import pyarrow as pa

from dml.api.runs import Results
from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.node import Node


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

        The dict is displayed as a table. The figures are count (of values that are not null),
        null_count, mean, std, min and max.
        """
        from dml.exec.delivery import column_figures

        self._must_end("describe")
        schema = self._node.schema
        named = tuple(n for n, kind in schema.items() if column_figures.measured(kind))
        if schema.known and not named:
            return column_figures.Description()
        node = self._only("describe", *named) if schema.known else self._node
        with closing(self._batches(node)) as rows:
            return column_figures.described(rows, node.schema)

    @door
    def unique(self, column: str) -> list[Any]:
        """Return the distinct values of ``column``, null included, in order of first appearance.

        All NaNs are one value, as are 0.0 and -0.0, returned as the one that comes first. The
        distinct values and one batch are in memory. Raise MemoryContractError if the values exceed
        their share of ``memory_limit``; raise SchemaError for lists, structs and tensors.
        """
        from dml.exec.delivery import column_figures

        return column_figures.listed(self._distinct("unique", column))

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
        return self._distinct("value_counts", column).table(name)

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

        return known_length.counted(self._node)

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
            return column_figures.size_of(batches)

    @door
    def input_files(self) -> list[str]:
        """Return the paths of the files that the sources read, in reading order; empty if none."""
        from dml.exec.delivery import known_length

        return known_length.files_of(self._node)
