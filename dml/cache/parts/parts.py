"""Read parts of entries from the store, or make and commit them.

Leases are advice, and the commit decides: the first record of a part is valid, even if other
processes make the same part. An unusable store costs a warning and the work, never the rows.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dml.cache.eviction import janitor, quarantine
from dml.cache.eviction.quota_eviction import Quota
from dml.cache.eviction.uses import PartUses
from dml.cache.parts.blobs import Blobs, Draft, PartRows
from dml.cache.parts.entries import Entries, Known
from dml.cache.parts.part_fill import PartFilling, PartSource
from dml.cache.parts.records import PartRecord, Unread, written
from dml.cache.store import layout
from dml.cache.store.health import Standing, StoreWarning
from dml.cache.store.leases import Lease, Leases
from dml.cache.store.local_copies import LocalCopies
from dml.cache.store.primitives import StorePlace, UnwritableError
from dml.cache.store.tiers import LATER, StoreTiers

__all__ = ["FILL_TTL_S", "PartFilling", "PartRows", "PartSource", "PartStore", "StoreWarning"]

FILL_TTL_S = 10.0  # seconds without a heartbeat until a lease expires: longer than usual pauses
REST_S, HASTY_S = 0.5, 60.0  # longest rest to wait for; then seconds without waits
PATIENCE_S = 600.0  # seconds of waiting for a lease after which a thread makes the part itself
POLLS, POLL_S = 50, 0.25  # polls in a ttl, and seconds between polls at most


class PartStore:
    """The parts of all entries in one place, for all threads of a process."""

    def __init__(
        self,
        place: StorePlace,
        *,
        ttl_s: float = FILL_TTL_S,
        patience_s: float = PATIENCE_S,
        quota_bytes: int | None = None,
        copies: LocalCopies | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place, self.blobs, self.standing = place, Blobs(place), Standing()
        self.tiers = StoreTiers(place, self.blobs, copies)
        self.leases, self.uses = Leases(place, ttl_s, clock), PartUses(place, clock)
        self.quota = None
        if quota_bytes is not None:
            self.quota = Quota(place, quota_bytes, self.uses, ttl_s=ttl_s)
        self._patience_s, self._clock = patience_s, clock
        self._entries = Entries(place, self.standing)
        self._fillings = weakref.WeakValueDictionary[tuple[str, int], PartFilling]()
        self._hasty: dict[str, float] = {}  # time until which no thread waits for resting parts
        self._distrusted = set[str]()  # folders of entries that this process quarantined
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------------ reading

    @property
    def failed_s(self) -> float:
        """Seconds since the place or its local copies failed; 0 if neither has."""
        copies = self.tiers.copies
        return max(self.standing.failed_s, 0.0 if copies is None else copies.standing.failed_s)

    def part(
        self,
        fingerprint: str,
        part: int,
        most_bytes: int = sys.maxsize,
        later: float = LATER,
        *,
        had: bool = False,
    ) -> PartRows | None:
        """Return the rows of a stored part, or None if they are missing or damaged.

        No folder is listed. Return None, too, for rows of more than ``most_bytes`` that would be
        loaded into memory. ``later`` is the expected number of later reads. If ``had``, the part
        counts only if it is in a file on a local disk that this process has read before.
        """
        place = layout.entry(fingerprint), part, most_bytes, later
        return self.standing.answer(partial(self._find_part, *place, anew=False, had=had))

    def fill(
        self,
        fingerprint: str,
        part: int,
        most_bytes: int = sys.maxsize,
        later: float = LATER,
    ) -> PartRows | PartFilling | None:
        """Return the rows of a part, or a ``PartFilling`` to which the caller writes them.

        Wait if another process or thread is making the part. Return None if the caller must make
        the rows without the store. Raise PlanError if ``fingerprint`` is not a fingerprint.
        """
        folder = layout.entry(fingerprint)
        until = self._clock() + self._patience_s
        while self.standing.unusable is None:
            with self.standing.failing():
                found = self._find_part(folder, part, most_bytes, later, anew=True)
                if found is not None or self.standing.unwritable or self._in_vain(folder, part):
                    return found
                if self._distrusts(self._entries.get_memoized(folder)):
                    known = self._entries.viewed(folder)  # its quarantine may have ended, by hand
                    if self._distrusts(known):
                        return None
                filling = self._turn(folder, part, until, later)
                if filling is not None:
                    return None if isinstance(filling, Unread) else filling
        return None

    def close(self) -> None:
        """Write the use counts of this process, and give back room for local copies."""
        if self.standing.whole:
            self.uses.close()
        if self.tiers.copies is not None:
            self.tiers.copies.close()

    # ----------------------------------------------------------------------------- whole entries

    def describe(self, fingerprint: str, about: Mapping[str, Any]) -> None:
        """Write ``about``, as JSON, as the description of an entry that has none."""
        folder = layout.entry(fingerprint)
        if self.standing.whole:
            with self.standing.failing():
                self._entries.describe(folder, about)

    def described(self, fingerprint: str) -> dict[str, Any] | None:
        """Return the description of an entry; None if it has none."""
        return self.standing.answer(partial(self._entries.described, layout.entry(fingerprint)))

    def records(self, fingerprint: str) -> dict[int, PartRecord]:
        """Return the records of the stored parts of an entry, by part; no rows are read."""
        return self.standing.answer(partial(self._entries.records, layout.entry(fingerprint))) or {}

    def copied_bytes(self, fingerprint: str) -> int:
        """Return the bytes of an entry's parts that are copied to a disk of this machine."""
        copies = self.tiers.copies
        return 0 if copies is None else copies.used_bytes(fingerprint)

    def remove(self, fingerprint: str) -> None:
        """Remove all parts of an entry; raise UnusableError if that is impossible."""
        if self.tiers.copies is not None:
            self.tiers.copies.remove(fingerprint)
        folder = layout.entry(fingerprint)
        try:
            janitor.remove(self.place, fingerprint)
        except UnwritableError:
            view = self._entries.viewed(folder).view
            if view.live or view.quarantined:  # there are parts to end
                raise
        self._distrusted.discard(folder)
        self._entries.viewed(folder)

    def quarantine(self, fingerprint: str, told: Mapping[str, Any]) -> bool:
        """Stop all reads and writes of an entry; return False if it was quarantined before.

        ``told`` is the reason, which is stored. If the store cannot be written to, the quarantine
        holds for this process alone.
        """
        folder = layout.entry(fingerprint)
        first = folder not in self._distrusted
        self._distrusted.add(folder)
        if self.standing.whole:
            with self.standing.failing():
                first = quarantine.put(self.place, fingerprint, told)
                if self._entries.viewed(folder).view.quarantined:
                    self._distrusted.discard(folder)  # removing it by hand ends the quarantine
        return first

    def quarantined(self, fingerprint: str) -> dict[str, Any] | None:
        """Return why an entry is quarantined, {} if unknown; None if it is not quarantined."""
        folder = layout.entry(fingerprint)
        if self.standing.unusable is None:
            with self.standing.failing():
                return quarantine.read_finding(self.place, folder)
        return {} if folder in self._distrusted else None

    def trusts(self, fingerprint: str) -> bool:
        """Return True if this process knows of no quarantine of an entry."""
        distrusted = False
        with self.standing.failing():
            distrusted = self._distrusts(self._entries.get_memoized(layout.entry(fingerprint)))
        return not distrusted

    def first(self, fingerprint: str, who: str) -> bool:
        """Return True if this call is the first to mark an entry with ``who``; False on failure."""
        name = f"{layout.entry(fingerprint)}/first.{who}"
        if self.standing.whole:
            with self.standing.failing():
                return self.place.put_if_absent(name, b"")
        return False

    # ------------------------------------------------------------------------------------- inside

    def _committed(self, filling: PartFilling, about: Mapping[str, Any]) -> PartSource:
        """Commit a part, unless another process was first; return the origin of its rows."""
        folder, part, draft = filling.folder, filling.part, filling.draft
        record = draft.end(filling.cost_s, about)
        known = self._entries.now(folder, part)
        winner = self._entries.record(known, part)
        filling.version = _version(known, part)
        if self._distrusts(known):
            return PartSource.UNKEPT
        if winner is None:
            if not self._published(filling, record.size):
                return PartSource.UNKEPT
            self.uses.used(folder.rpartition("/")[2], part)
            if self.place.put_if_absent(known.view.record(part), written(record)):
                known.records[part, filling.version[1]] = record
                draft.settle()
                return PartSource.MADE
            known = self._entries.viewed(folder)
            winner = self._entries.record(known, part)
            if isinstance(winner, PartRecord) and winner.blob == record.blob:
                draft.settle()
                return PartSource.MADE  # the reply was lost, and the request repeated
            self.place.delete(record.blob)
        same = isinstance(winner, PartRecord) and winner.schema == record.schema
        return PartSource.ADOPTED if same else PartSource.UNKEPT

    def _published(self, filling: PartFilling, nbytes: int) -> bool:
        """Publish the blob of a filling, if there is room; return True if so."""
        if self.quota is None:
            filling.draft.publish()
            return True
        lease = self.quota.announced(nbytes, filling.announced)
        if lease is not None:
            with lease.hold():
                filling.draft.publish()
        return lease is not None

    def _find_part(
        self,
        folder: str,
        part: int,
        most_bytes: int,
        later: float,
        *,
        anew: bool,
        had: bool = False,
    ) -> PartRows | None:
        """Return a stored part, or None; remove a damaged one.

        With ``anew``, parts stored since the entry was last read are found, too.
        """
        entries, entry = self._entries, folder.rpartition("/")[2]
        known = entries.get_memoized(folder)
        if anew and (part, known.view.version(part)) not in known.records:
            known = entries.now(folder, part)
        for _ in range(2):
            record = None if self._distrusts(known) else entries.record(known, part)
            if not isinstance(record, PartRecord) or (had and not self.tiers.had(record)):
                return None
            rows = self._near(entry, known, part, record)
            if rows is None and record.size > most_bytes and not self.place.maps:
                rows = self.tiers.through(entry, record, later, most_bytes)
                if rows is None:
                    return None
            rows = rows or self.tiers.far(entry, record, later)
            if rows is not None:
                self.uses.used(entry, part)
                return rows
            seen, known = _version(known, part), entries.viewed(folder)
            if part in known.view.live and _version(known, part) == seen:
                entries.retire(known, part, record)
                return None
        return None

    def _near(self, entry: str, known: Known, part: int, record: PartRecord) -> PartRows | None:
        """Return a part from its local copy, if the store still has the record of the part."""
        rows = self.tiers.near(entry, record)
        if rows is None or self.place.stamp(known.view.record(part)) is not None:
            return rows
        if self.tiers.copies is not None:
            self.tiers.copies.drop(entry, record.blob)
        return None

    def _turn(
        self, folder: str, part: int, until: float, later: float
    ) -> PartFilling | Unread | None:
        """Return a filling for a missing part; None if the caller must look for the part again.

        Return NEWER if a later version of dml has stored the part, which is then left alone.
        """
        known = self._entries.get_memoized(folder)  # read a moment ago
        if (part, known.view.version(part)) in known.records:
            return Unread.NEWER
        if self._clock() > until:
            return self._filling(folder, part, None, later)
        lease = self.leases.take(known.view, part, listed=False)
        if isinstance(lease, str):
            known = self._entries.viewed(folder)
            lease = self.leases.take(known.view, part)
        if isinstance(lease, str):
            self._wait(lease, folder, part, until)
            return None
        filling = self._filling(folder, part, lease, later)
        if self._entries.record(known, part) is None:
            return filling
        filling.drop()  # the part was committed between looking and taking
        return None

    def _filling(self, folder: str, part: int, lease: Lease | None, later: float) -> PartFilling:
        draft = Draft(self.place, self.tiers.beside(folder.rpartition("/")[2], later))
        found = PartFilling(
            (folder, part),
            draft,
            lease,
            standing=self.standing,
            quota=self.quota,
            publish=self._committed,
            clock=self._clock,
        )
        with self._lock:
            self._fillings[folder, part] = found
        return found

    def _distrusts(self, known: Known) -> bool:
        """Return True if this process has seen that an entry is quarantined."""
        return known.view.quarantined or known.view.folder in self._distrusted

    def _in_vain(self, folder: str, part: int) -> bool:
        """Return True if waiting for the part would not help: this process makes it itself.

        That holds if the current thread makes the part, or if its maker has paused for long. After
        a long pause, no thread waits for paused parts of that entry: their consumer is slow, and
        may even wait for the current thread.
        """
        now = self._clock()
        with self._lock:
            found = self._fillings.get((folder, part))
            hasty = now < self._hasty.get(folder, now)
        if found is None or not found.alive:
            return False
        if found.rested_s > REST_S:
            self._hasty[folder] = now + HASTY_S
        return found.thread == threading.get_ident() or found.rested_s > (0 if hasty else REST_S)

    def _wait(self, lease: str, folder: str, part: int, until: float) -> None:
        """Wait until ``lease`` has ended, or waiting does not help any more."""
        while not self._in_vain(folder, part) and self._clock() <= until:
            time.sleep(min(self.leases.ttl_s / POLLS, POLL_S))
            if self.leases.ended(lease):
                return


def _version(known: Known, part: int) -> tuple[int, int]:
    return known.view.incarnation, known.view.version(part)
