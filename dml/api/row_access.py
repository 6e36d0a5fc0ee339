"""Verbs that return one, some or all rows in a chosen format are defined here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from dml.api.runs import Results
from dml.base.user_line import door
from dml.errors import PlanError

if TYPE_CHECKING:
    from dml.exec.delivery.iterator import Elements
    from dml.expr.node import Node

S = TypeVar("S")

# Rows per batch where all rows are converted to arrays.
AT_ONCE = 65_536
LIBRARIES = ("pandas", "polars")
FORMATS = ("numpy", "arrow", *LIBRARIES)


class Collecting(Results):
    """Verbs that return elements, rows, batches, arrays or data frames."""

    @door
    def first(self) -> dict[str, Any] | None:
        """Run now and return the first element, or None; this does not count as an epoch."""
        rows = self.take_rows(1)
        return rows[0] if rows else None

    @door
    def show(self, n: int = 20) -> None:
        """Print the first ``n`` rows as a table, with their types; a notebook gets an HTML table.

        Batches are printed as rows, and texts are truncated to 32 letters. Columns in the middle
        are left out where the terminal is too narrow. This does not count as an epoch.
        """
        from dml.api import head_step
        from dml.exec.delivery import row_text

        head_step.check_count("show", n)
        row_text.FirstRows(self._first_rows(n)).show()

    def _first_rows(self, n: int) -> pa.Table:
        """Return the first ``n`` rows as a table, or all rows if there are fewer."""
        from dml.api import head_step

        node = self._node if self._node.batched else head_step.first(self._node, n)
        found, rows = list[pa.RecordBatch](), 0
        with closing(self._batches(node)) as batches:
            for batch in batches if n else ():
                found.append(batch)
                rows += batch.num_rows
                if rows >= n:
                    break
        schema = found[0].schema if found else self._node.schema.to_arrow()
        return pa.Table.from_batches(found, schema=schema).slice(0, min(n, rows))

    @door
    def take_batch(self, n: int = 20, *, batch_format: str = "numpy") -> Any:
        """Run now, and return the first ``n`` rows as one batch in the given ``batch_format``.

        A batch is a dict of arrays, or a table as in ``iter_batches``. It has fewer rows if the
        pipeline has fewer, possibly none. It is collected in memory. This does not count as an
        epoch. Raise PlanError after ``batch``.
        """
        from dml.api import head_step
        from dml.exec.delivery import tables

        check_format("take_batch", batch_format)
        asked = head_step
        node = asked.batches(asked.first(self._node, n), n)
        if batch_format != "numpy":
            return tables.FORMS[batch_format].form(self._first_rows(n))
        with self._quietly(node) as made:
            for batch in made:
                return batch
        return tables.nothing(self._node.schema)

    @door
    def iter_rows(self) -> Elements:
        """Iterate as ``iter(ds)`` over rows (dicts). Raise PlanError after ``batch``."""
        if self._node.batched:
            raise PlanError(
                "iter_rows after batch",
                why="elements are batches from there on",
                try_="iter_rows before .batch(n), or for batch in ds",
            )
        return self.__iter__()

    @door
    def as_numpy_iterator(self) -> Elements:
        """Iterate as ``iter(ds)``: batches are dicts of NumPy arrays. The name is tf.data's."""
        return self.__iter__()

    @door
    def iter_batches(
        self, batch_size: int = 256, *, drop_last: bool = False, batch_format: str = "numpy"
    ) -> Any:
        """Iterate over the next epoch as ``iter(ds.batch(batch_size, drop_last=drop_last))`` does.

        A batch is a dict of arrays; with ``batch_format="arrow"`` a ``pyarrow.Table``, with
        ``"pandas"`` or ``"polars"`` a ``DataFrame`` of that library; in these three, integers may
        be null. A state saved in one format can be loaded in another. One batch is in memory in
        addition to the memory limit of the run. ``stats()`` reports only iterations over arrays.
        """
        check_format("iter_batches", batch_format)
        node = self._batched_as(batch_size, drop_last)
        if batch_format == "numpy":
            return self._iterated(node)
        return self._tabled(node, batch_format)

    def _tabled(self, node: Node, batch_format: str) -> Elements:
        """Open the next epoch of ``node``, with each batch as a table in ``batch_format``."""
        from dml.api import driver_runs

        epoch = self._coming
        opened = driver_runs.tabled
        made: Elements = opened(node, self._settings, epoch, self._restored, batch_format)
        self._next_epoch = epoch + 1
        self._run = made.told_of_memory
        return made

    def _batched_as(self, n: int, drop_last: object) -> Node:
        """Return the node of ``batch``; cached, so that epochs share measured costs."""
        from dml.api import head_step

        head_step.check_count("iter_batches", n, least=1)
        key = n, bool(drop_last)
        if key not in self._grouped:
            made: Node = head_step.batches(self._node, n, drop_last=key[1])
            self._grouped = {key: made.placed(self._node.where)}
        return self._grouped[key]

    @door
    def to_numpy(self) -> dict[str, np.ndarray]:
        """Return all rows as a dict of arrays; the peak memory is twice the size of the rows."""
        from dml.api import head_step

        self._must_end("to_numpy")
        whole = self._node.batched
        node = self._node if whole else head_step.batches(self._node, AT_ONCE)
        parts = list(self._quietly(node))
        if not parts:
            from dml.exec.delivery import tables

            return tables.nothing(self._node.schema)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    @door
    def to_pandas(self) -> Any:
        """Return all rows as a pandas ``DataFrame`` (needs pandas).

        The peak memory is twice the size of the rows: once as Arrow, once as pandas. Integers with
        nulls become floats, and texts Python objects; ``to_arrow`` keeps types.
        """
        from dml.exec.delivery import tables

        tables.with_library("pandas", "to_pandas")
        return tables.FORMS["pandas"].form(self.to_arrow())

    @door
    def to_polars(self) -> Any:
        """Return all rows as a Polars ``DataFrame`` (needs polars); they are in memory once."""
        from dml.exec.delivery import tables

        tables.with_library("polars", "to_polars")
        return tables.FORMS["polars"].form(self.to_arrow())

    @door
    def to_dict(self) -> dict[str, list[Any]]:
        """Return all rows as a dict of lists of Python values; twice the rows' size in memory."""
        found: dict[str, list[Any]] = self.to_arrow().to_pydict()
        return found

    @door
    def to_list(self) -> list[dict[str, Any]]:
        """Run now, and return all elements as a list; does not count as an epoch."""
        self._must_end("to_list")
        with self._quietly() as elements:
            return list(elements)

    @door
    def reduce(self, initial: S, fn: Callable[[S, dict[str, Any]], S]) -> S:
        """Fold elements: ``fn(fn(initial, first), second)`` and so on, in order, in this thread.

        Only the running result and some elements are in memory. Errors of ``fn`` are raised
        unchanged. This does not count as an epoch.
        """
        self._must_end("reduce")
        state = initial
        with self._quietly() as elements:
            for element in elements:
                state = fn(state, element)
        return state


def check_format(verb: str, batch_format: str) -> None:
    """Raise PlanError for an unknown ``batch_format``, or if its library is missing."""
    if batch_format not in FORMATS:
        raise PlanError(
            f"{verb} has no batch_format {batch_format!r}",
            why=f"formats are {', '.join(FORMATS)}",
            try_='batch_format="numpy"',
        )
    if batch_format in LIBRARIES:
        from dml.exec.delivery import tables

        tables.with_library(batch_format, f"{verb} with {batch_format=!s}")
