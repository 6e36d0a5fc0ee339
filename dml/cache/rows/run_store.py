"""The cache entries of a run: where each stored step keeps its rows, and the levels over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dml.exec.tasks.levels import Level
from dml.exec.tasks.steps import Steps
from dml.expr.flow import NothingStored
from dml.expr.node import Node

if TYPE_CHECKING:
    from dml.exec.delivery.meter import Tallies
    from dml.exec.tasks.job import Job
    from dml.exec.tasks.slices import Driven, PartitionFeed


from dml.cache.rows import cached_scan, stored_columns
from dml.cache.rows.entry import EntryName, StoredEntry, entry_of
from dml.cache.rows.stored_rows import StoredLevel


class StoredLevels(NothingStored):
    """The levels over cache entries, and the partitions that entries hold as they are."""

    def served(
        self, job: Job, place: int, atom: int, tallies: Tallies, driven: Driven
    ) -> PartitionFeed:
        """Return the partitions of ``job`` from a position on, of stored units or of a driver."""
        return cached_scan.served(job, place, atom, tallies, driven)

    def level(self, entry: StoredEntry, steps: Steps, first: int, below: Level | None) -> Level:
        """Return the level of ``steps``; ``entry`` keeps the rows of the last step."""
        made = StoredLevel if entry.asked is None else stored_columns.Reusing
        return made(steps, first, below, entry)

    def looking(self, entry: StoredEntry, steps: Steps, first: int, below: Level | None) -> Level:
        """Return the level of ``steps``, which store nothing; other entries may hold their rows."""
        return stored_columns.Looking(steps, first, below, entry)


@dataclasses.dataclass(frozen=True)
class Storing(StoredLevels):
    """The names of a run's stored steps by digest and root; it can be sent to other processes."""

    names: Mapping[tuple[bytes, str], EntryName]

    def __call__(self, node: Node, epoch: int) -> StoredEntry | None:
        """Return the entry of ``node`` in ``epoch``, or None if its rows are not cached."""
        named = self.names.get((node.digest, node.root))
        return None if named is None else entry_of(named.of(node, epoch))

    @property
    def looks(self) -> bool:  # type: ignore[override]
        """True if other entries held rows of this run when it began."""
        return any(named.looks for named in self.names.values())
