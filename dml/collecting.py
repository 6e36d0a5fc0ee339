"""This file holds the verbs that hand rows over: one, some or all, in the form asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from dml.errors import PlanError
from dml.expr.doors import door
from dml.results import Results, executing

if TYPE_CHECKING:
    from dml.exec.deliver import Elements
    from dml.expr.node import Node

S = TypeVar("S")

# Rows that are made into arrays at once where all rows are wanted as arrays.
AT_ONCE = 65_536
LIBRARIES = ("pandas", "polars")
FORMATS = ("numpy", "arrow", *LIBRARIES)


class Collecting(Results):
    """Verbs that give elements, rows, batches, arrays, data frames."""

    @door
    def first(self) -> dict[str, Any] | None:
        """The first element, now; None if there is none. Not an epoch; holds one element."""
        rows = self.take_rows(1)
        return rows[0] if rows else None

    @door
    def show(self, n: int = 20) -> None:
        """Print the first ``n`` rows as a table, with their types. Not an epoch; holds ``n`` rows.

        Of batches, their rows. Texts are cut to 32 letters.
        """
        executing("asked").check_count("show", n)
        sys.stdout.write(executing("shown").drawn(self._first_rows(n)))

    def _first_rows(self, n: int) -> pa.Table:
        """At most ``n`` rows."""
        node = self._node if self._node.batched else executing("asked").first(self._node, n)
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
        """The first ``n`` rows, now, as one batch: a dict of arrays, or another ``batch_format``.

        Fewer where there are fewer; arrays of length 0 where there are none. Not an epoch; holds
        the batch. PlanError after ``batch``.
        """
        check_format("take_batch", batch_format)
        asked = executing("asked")
        node = asked.batches(asked.first(self._node, n), n)
        if batch_format != "numpy":
            return executing("tables").FORMS[batch_format].form(self._first_rows(n))
        with self._quietly(node) as made:
            for batch in made:
                return batch
        return executing("tables").nothing(self._node.schema)

    @door
    def iter_rows(self) -> Elements:
        """``iter(ds)`` of rows: dicts, resumable, and the next epoch. PlanError after ``batch``."""
        if self._node.batched:
            raise PlanError(
                "iter_rows after batch",
                why="elements are batches from there on",
                try_="iter_rows before .batch(n), or for batch in ds",
            )
        return self.__iter__()

    @door
    def as_numpy_iterator(self) -> Elements:
        """``iter(ds)``, by the name that tf.data gives it: batches are dicts of NumPy arrays."""
        return self.__iter__()

    @door
    def iter_batches(
        self, batch_size: int = 256, *, drop_last: bool = False, batch_format: str = "numpy"
    ) -> Any:
        """``iter(ds.batch(batch_size, drop_last=drop_last))``: batches, resumable, the next epoch.

        A batch is a dict of arrays; with ``batch_format="arrow"`` a ``pyarrow.Table``, with
        ``"pandas"`` or ``"polars"`` a ``DataFrame`` of theirs, and in these integers may be null.
        States fit each other, whatever the format. Holds a batch beside what the run may hold.
        ``stats()`` tells of batches of arrays alone.
        """
        check_format("iter_batches", batch_format)
        node = self._batched_as(batch_size, drop_last)
        if batch_format == "numpy":
            return self._iterated(node)
        return self._tabled(node, batch_format)

    def _tabled(self, node: Node, batch_format: str) -> Elements:
        """The next epoch of ``node``, whose elements are batches, in a form that has nulls."""
        epoch = self._coming
        opened = importlib.import_module("dml.elsewhere").tabled
        made: Elements = opened(node, self._settings, epoch, self._restored, batch_format)
        self._next_epoch = epoch + 1
        return made

    def _batched_as(self, n: int, drop_last: object) -> Node:
        """The rows in batches; kept, so that epochs share what a run teaches about a program."""
        executing("asked").check_count("iter_batches", n, least=1)
        key = n, bool(drop_last)
        if key not in self._grouped:
            made: Node = executing("asked").batches(self._node, n, drop_last=key[1])
            self._grouped = {key: made.placed(self._node.where)}
        return self._grouped[key]

    @door
    def to_numpy(self) -> dict[str, np.ndarray]:
        """All rows as a dict of arrays; holds them twice while it joins them."""
        self._must_end("to_numpy")
        whole = self._node.batched
        node = self._node if whole else executing("asked").batches(self._node, AT_ONCE)
        parts = list(self._quietly(node))
        if not parts:
            none: dict[str, np.ndarray] = executing("tables").nothing(self._node.schema)
            return none
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    @door
    def to_pandas(self) -> Any:
        """All rows as a pandas ``DataFrame`` (needs pandas); holds them as Arrow and as pandas.

        Integers with nulls become floats there, texts Python objects: ``to_arrow`` keeps types.
        """
        executing("tables").with_library("pandas", "to_pandas")
        return executing("tables").FORMS["pandas"].form(self.to_arrow())

    @door
    def to_polars(self) -> Any:
        """All rows as a Polars ``DataFrame`` (needs polars); holds them once, as Arrow."""
        executing("tables").with_library("polars", "to_polars")
        return executing("tables").FORMS["polars"].form(self.to_arrow())

    @door
    def to_dict(self) -> dict[str, list[Any]]:
        """All rows as a dict of lists of Python values; null is None. Holds them twice."""
        found: dict[str, list[Any]] = self.to_arrow().to_pydict()
        return found

    @door
    def to_list(self) -> list[dict[str, Any]]:
        """All elements as a list, now. Not an epoch; holds them."""
        self._must_end("to_list")
        with self._quietly() as elements:
            return list(elements)

    @door
    def reduce(self, initial: S, fn: Callable[[S, dict[str, Any]], S]) -> S:
        """Fold: ``fn(fn(initial, first), second)`` and so on, in order, here in this thread.

        Holds the state and some elements. What ``fn`` raises comes out as it is. Not an epoch.
        """
        self._must_end("reduce")
        state = initial
        with self._quietly() as elements:
            for element in elements:
                state = fn(state, element)
        return state


def check_format(verb: str, batch_format: str) -> None:
    """PlanError for a form that batches do not have here."""
    if batch_format not in FORMATS:
        raise PlanError(
            f"{verb} has no batch_format {batch_format!r}",
            why=f"formats are {', '.join(FORMATS)}",
            try_='batch_format="numpy"',
        )
    if batch_format in LIBRARIES:
        executing("tables").with_library(batch_format, f"{verb} with {batch_format=!s}")
