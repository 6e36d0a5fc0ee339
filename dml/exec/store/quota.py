"""This file keeps the bytes of a namespace within its quota, and evicts what is worth least.

Who is about to write announces the bytes under a name, and then counts: what is announced first,
what is there second. Of two who do so at once, the later counts both, so that together they never
write more than there is room for. Nobody evicts from another namespace.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from dml.exec.store import janitor, layout, pins
from dml.exec.store.leases import BEATS, Lease
from dml.exec.store.primitives import Place
from dml.exec.store.records import Record
from dml.exec.store.uses import Uses
from dml.exec.store.worth import Candidate, Use, least

ANNOUNCED = "announced"


class Room:
    """At most ``most_bytes`` in a place; announcements beat, and hold for ``ttl_s``."""

    def __init__(self, place: Place, most_bytes: int, *, ttl_s: float) -> None:
        self._place, self.most_bytes, self._ttl_s = place, most_bytes, ttl_s
        self.evicted = 0

    def used_bytes(self) -> int:
        """Bytes that are there, or announced by the living."""
        total = 0
        for each in self._place.found(ANNOUNCED):  # first: they go when their blob is there
            size = each.name.partition("-")[2]
            if each.age_s < self._ttl_s and size.isdigit():
                total += int(size)
            else:
                self._place.delete(f"{ANNOUNCED}/{each.name}")
        return total + sum(each.size for each in self._place.found(layout.BLOBS))

    @contextmanager
    def room(self, nbytes: int, before: Lease | None = None) -> Iterator[bool]:
        """Whether ``nbytes`` may be written while the block runs; others are evicted for it."""
        lease = self.announced(nbytes, before)
        if lease is None:
            yield False
            return
        with lease.held():
            yield True

    def announced(self, nbytes: int, before: Lease | None = None) -> Lease | None:
        """Room for ``nbytes`` as long as it is beaten, instead of ``before``; None without room."""
        name = f"{ANNOUNCED}/{uuid.uuid4().hex}-{nbytes}"
        lease = Lease(self._place, name, self._ttl_s / BEATS)
        over = nbytes - self.most_bytes
        if over <= 0:
            self._place.put(name, b"")
        if before is not None:
            before.give_back()
        if over <= 0:
            with lease.beaten():
                over = self._over()
        if over > 0 or not self._place.beat(name):  # others took who counted so long for dead
            lease.give_back()
            return None
        return lease

    def _over(self) -> int:
        """Bytes too many, after evicting what may go for them."""
        over = self.used_bytes() - self.most_bytes
        if over > 0:
            self._evict(over)
            over = self.used_bytes() - self.most_bytes
        return over

    def _evict(self, nbytes: int) -> None:
        """Make room of ``nbytes``, if so much may go."""
        raise NotImplementedError


class Quota(Room):
    """That of rows: what goes is worth least."""

    def __init__(self, place: Place, most_bytes: int, uses: Uses, *, ttl_s: float) -> None:
        super().__init__(place, most_bytes, ttl_s=ttl_s)
        self._uses = uses
        self._records: dict[str, Record] = {}

    def _evict(self, nbytes: int) -> None:
        """Make room of ``nbytes``, if so much may go."""
        candidates = list(self._candidates())
        if sum(each.size for each in candidates) < nbytes:
            return
        for each in least(candidates, nbytes):
            if janitor.evict(self._place, each.fingerprint, each.part, "for others"):
                self._uses.floor = max(self._uses.floor, each.worth)
                self.evicted += 1

    def _candidates(self) -> Iterator[Candidate]:
        """Parts that may go: of no entry that is pinned, or that somebody fills right now."""
        kept = pins.held(self._place) | self._filling()
        uses, epochs = self._uses.gathered()
        records: dict[str, Record] = {}
        for fingerprint, (view, _) in janitor.views(self._place).items():
            for part in () if fingerprint in kept else view.live:
                name = view.record(part)
                record = self._records.get(name) or janitor.record_of(self._place, view, part)
                if record is None:
                    continue
                records[name] = record
                use = uses.get((fingerprint, part), Use())
                asked = epochs.get(fingerprint, 0.0)
                yield Candidate(fingerprint, part, record.size, record.cost_s, use, asked)
        self._records = records

    def _filling(self) -> set[str]:
        """Entries with a lease that is alive."""
        return {
            each.name.split("/")[1]
            for each in self._place.found(layout.ENTRIES)
            if "/lease." in each.name and each.age_s < self._ttl_s
        }
