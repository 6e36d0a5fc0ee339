"""Keep the bytes of a namespace within its quota, by evicting the parts of least worth.

A writer first reserves its bytes by a file name, and then counts: reserved bytes first, stored
bytes second. Of two writers at once, the later one counts both, so that together they never write
more than fits. Parts of other namespaces are never evicted.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from dml.cache.eviction import janitor, pins
from dml.cache.eviction.eviction_order import EvictionCandidate, PartUse, least
from dml.cache.eviction.uses import PartUses
from dml.cache.parts.records import PartRecord
from dml.cache.store import layout
from dml.cache.store.leases import BEATS, Lease
from dml.cache.store.primitives import StorePlace

ANNOUNCED = "announced"


class QuotaRoom:
    """Limits a place to ``most_bytes``; a reservation ends ``ttl_s`` after its last heartbeat."""

    def __init__(self, place: StorePlace, most_bytes: int, *, ttl_s: float) -> None:
        self._place, self.most_bytes, self._ttl_s = place, most_bytes, ttl_s
        self.evicted = 0

    def used_bytes(self) -> int:
        """Return the bytes that are stored, or reserved by living processes."""
        total = 0
        for each in self._place.list_files(ANNOUNCED):  # first: removed once the blob is stored
            size = each.name.partition("-")[2]
            if each.age_s < self._ttl_s and size.isdigit():
                total += int(size)
            else:
                self._place.delete(f"{ANNOUNCED}/{each.name}")
        return total + sum(each.size for each in self._place.list_files(layout.BLOBS))

    @contextmanager
    def room(self, nbytes: int, before: Lease | None = None) -> Iterator[bool]:
        """Yield True if ``nbytes`` may be written in the ``with`` block, after evicting parts."""
        lease = self.announced(nbytes, before)
        if lease is None:
            yield False
            return
        with lease.hold():
            yield True

    def announced(self, nbytes: int, before: Lease | None = None) -> Lease | None:
        """Reserve ``nbytes`` while the lease has heartbeats, in place of lease ``before``.

        Return the lease; None if there is no room.
        """
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
        if over > 0 or not self._place.beat(name):  # expired while counting
            lease.give_back()
            return None
        return lease

    def _over(self) -> int:
        """Evict parts if needed, and return by how many bytes the limit is still exceeded."""
        over = self.used_bytes() - self.most_bytes
        if over > 0:
            self._evict(over)
            over = self.used_bytes() - self.most_bytes
        return over

    def _evict(self, nbytes: int) -> None:
        """Free ``nbytes``, if that much may be evicted; else evict nothing."""
        raise NotImplementedError


class Quota(QuotaRoom):
    """The quota of cached rows, which evicts the parts of least worth."""

    def __init__(self, place: StorePlace, most_bytes: int, uses: PartUses, *, ttl_s: float) -> None:
        super().__init__(place, most_bytes, ttl_s=ttl_s)
        self._uses = uses
        self._records: dict[str, PartRecord] = {}

    def _evict(self, nbytes: int) -> None:
        """Free ``nbytes``, if that much may be evicted; else evict nothing."""
        candidates = list(self._candidates())
        if sum(each.size for each in candidates) < nbytes:
            return
        for each in least(candidates, nbytes):
            if janitor.evict(self._place, each.fingerprint, each.part, "for others"):
                self._uses.floor = max(self._uses.floor, each.worth)
                self.evicted += 1

    def _candidates(self) -> Iterator[EvictionCandidate]:
        """Yield the parts of entries that are neither pinned nor being filled."""
        kept = pins.list_pinned(self._place) | self._filling()
        uses, epochs = self._uses.gathered()
        records: dict[str, PartRecord] = {}
        for fingerprint, (view, _) in janitor.views(self._place).items():
            for part in () if fingerprint in kept else view.live:
                name = view.record(part)
                record = self._records.get(name) or janitor.record_of(self._place, view, part)
                if record is None:
                    continue
                records[name] = record
                use = uses.get((fingerprint, part), PartUse())
                asked = epochs.get(fingerprint, 0.0)
                yield EvictionCandidate(fingerprint, part, record.size, record.cost_s, use, asked)
        self._records = records

    def _filling(self) -> set[str]:
        """Return the fingerprints of entries with a live lease."""
        return {
            each.name.split("/")[1]
            for each in self._place.list_files(layout.ENTRIES)
            if "/lease." in each.name and each.age_s < self._ttl_s
        }
