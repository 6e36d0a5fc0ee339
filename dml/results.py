"""This file holds what makes a pipeline run and hands over what comes out: the eager verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dml.errors import PlanError
from dml.expr.doors import door, users_line
from dml.expr.node import Node
from dml.expr.ops.batch import Batch
from dml.expr.ops.take import Take
from dml.expr.sources.source import Source
from dml.settings import Settings

if TYPE_CHECKING:
    from types import ModuleType

    from dml.exec.deliver import Elements, Report
    from dml.fleet.report import RunTable


def wiring() -> ModuleType:
    """What wires the rooms, loaded by the first run: writing a pipeline needs none of it."""
    from dml import session  # noqa: PLC0415 - half of the import budget, spent when it is needed

    return session


class Results:
    """The half of a Dataset that computes: iteration, collecting, accounts of runs."""

    def __init__(
        self, node: Node, settings: Settings | None = None, pinned: int | None = None
    ) -> None:
        self._node = node if node.where else node.placed(users_line())
        self._settings = settings or Settings()
        self._pinned = pinned
        self._next_epoch = 0
        self._last: Report | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: not the account of the last run here."""
        return {**self.__dict__, "_last": None}

    @door
    def __iter__(self) -> Elements:
        epoch = self._next_epoch if self._pinned is None else self._pinned
        made: Elements = wiring().run(self._node, self._settings, epoch, self._restored)
        self._next_epoch, self._last = epoch + 1, made.report
        return made

    def _restored(self, epoch: int) -> None:
        self._next_epoch = epoch + 1

    def _quietly(self, node: Node | None = None) -> Elements:
        """An iterator over ``node`` (this one) that does not count as an epoch."""
        chosen = self._node if node is None else node
        run: Elements = wiring().run(chosen, self._settings, self._pinned or 0, lambda _: None)
        return run

    @door
    def take_rows(self, n: int) -> list[dict[str, Any]]:
        """The first ``n`` elements, now."""
        with self._quietly(Take(self._node, n)) as elements:
            return list(elements)

    @door
    def count(self) -> int:
        """How many elements there are; reads them unless the source knows."""
        if isinstance(self._node, Source) and self._node.row_count is not None:
            return self._node.row_count
        self._must_end("count")
        return sum(1 for _ in self._quietly())

    @door
    def to_numpy(self) -> dict[str, np.ndarray]:
        """All rows as a dict of arrays; holds everything in memory."""
        self._must_end("to_numpy")
        batched = self._node if self._node.batched else Batch(self._node, 65536, drop_last=False)
        parts = list(self._quietly(batched))
        names = self._node.schema.names if not parts else parts[0]
        return {n: np.concatenate([p[n] for p in parts]) if parts else np.zeros(0) for n in names}

    @door
    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table; holds everything in memory."""
        self._must_end("to_arrow")
        found: pa.Table = wiring().table(self._node, self._settings, self._pinned or 0)
        return found

    def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame; holds everything in memory."""
        rows = self.to_arrow()
        try:
            return rows.to_pandas()
        except ModuleNotFoundError:
            raise PlanError(
                "to_pandas needs pandas", why="it is not installed", try_="pip install pandas"
            ) from None

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
        """What each operator did in the last iteration: rows, bytes, seconds."""
        if self._last is None:
            raise PlanError(
                "no run to tell about yet",
                why="this dataset has not been iterated",
                try_="for batch in ds: ..., then ds.stats() of the same ds",
            )
        found: RunTable = wiring().stats(self._last.so_far())
        return found
