"""A cache entry as a run sees it: where its rows are, how to describe them, and its parts."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from dml.base.fingerprint import digest
from dml.expr.node import Node

if TYPE_CHECKING:
    from dml.cache.parts.parts import PartFilling, PartRows, PartStore
    from dml.cache.store.open_stores import Where
    from dml.optimize.fingerprints import StoreQuery


@dataclasses.dataclass(frozen=True)
class EntryName:
    """The store and name of the rows of a cache, with a description for people.

    ``asked`` has the names by which equivalent rows can be found. ``looks`` is True if other
    entries held some of the rows when the run began; it never changes, since it decides how blocks
    are cut. With ``checks``, a sample of the rows is recomputed now and then.
    """

    where: Where
    fingerprint: str
    about: Mapping[str, Any]
    at_ns: int = sys.maxsize
    """Time at which files were inspected to make the name."""
    asked: StoreQuery | None = None
    looks: bool = False
    fills: bool = True
    """False if stored rows are only read."""
    checks: bool = True
    later: float = math.inf
    """The expected number of later reads on this machine; infinite if unknown."""

    def of(self, node: Node, epoch: int) -> EntryName:
        """Return the name for ``epoch``: rows redrawn every few epochs get a name per draw."""
        if node.reuse is None:
            return self
        turn = cast("Any", node).turn(epoch)
        name = digest("drawn", self.fingerprint, turn).hex()
        return dataclasses.replace(self, fingerprint=name, about={**self.about, "draw": turn})


def entry_of(named: EntryName) -> StoredEntry:
    """Open the entry with the name ``named``."""
    from dml.cache.store import open_stores  # noqa: PLC0415 (by runs that store something)

    return StoredEntry(**vars(named), store=open_stores.store_at(named.where))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredEntry(EntryName):
    """The entry of one cache in an open store.

    It has a part for each unit of a source, or parts of a stream that continue each other.
    """

    store: PartStore

    def part(
        self, number: int, most_bytes: int = sys.maxsize, *, had: bool = False
    ) -> PartRows | None:
        """Return the rows of a part; None if not stored, or too large to be loaded into memory.

        If ``had``, return rows only from a local file that this process has read and checked
        before.
        """
        return self.store.part(self.fingerprint, number, most_bytes, self.later, had=had)

    def fill(self, number: int, most_bytes: int = sys.maxsize) -> PartRows | PartFilling | None:
        """Return the rows of a part, or a filling to store them; None if they are not stored."""
        if not self.fills:
            return None
        got = self.store.fill(self.fingerprint, number, most_bytes, self.later)
        if got is not None and not isinstance(got, tuple):
            self.store.describe(self.fingerprint, self.about)
        return got

    def wrong(self, *, lost: bool = False) -> str:
        """Return why a part was not stored, for people; "" if another message tells the reason."""
        standing = self.store.standing
        if not self.store.trusts(self.fingerprint):
            return ""
        failed, told = standing.unusable or standing.unwritable, "rows" if lost else ""
        from dml.cache.store import health  # noqa: PLC0415

        return health.reason(self.store, failed, lost=told)[0]
