"""This file gives parts of entries: from the store if they are there, else made and put there.

Leases are advice, commit is law: a part is what its first record says, whoever else made it. A
store that cannot be used costs a warning and the work, never the rows.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from dml.exec.store import janitor, layout, quarantine
from dml.exec.store.blobs import Blobs, Rows
from dml.exec.store.copies import Copies
from dml.exec.store.entries import Entries, Known
from dml.exec.store.filling import Filling, Source
from dml.exec.store.leases import Lease, Leases
from dml.exec.store.primitives import OvertakenError, Place, UnusableError, UnwritableError
from dml.exec.store.quota import Quota
from dml.exec.store.records import Record, Unread, written
from dml.exec.store.standing import Standing, StoreWarning
from dml.exec.store.tiers import LATER, Tiers
from dml.exec.store.uses import Uses

__all__ = ["FILL_TTL_S", "Filling", "PartStore", "Rows", "Source", "StoreWarning"]

FILL_TTL_S = 10.0  # without a beat: longer than a process stands still that is not dead
REST_S, HASTY_S = 0.5, 60.0  # for so long a part may rest that is waited for; for so long none may
PATIENCE_S = 600.0  # whoever waits longer for another's lease makes the part, too
POLLS, POLL_S = 50, 0.25  # in a ttl, and seconds at most, while another makes the part
UNASKED_BYTES = 16 << 20  # of a part, that are written before there must be room for them


class PartStore:
    """The parts in one place, for all threads of a process."""

    def __init__(
        self,
        place: Place,
        *,
        ttl_s: float = FILL_TTL_S,
        patience_s: float = PATIENCE_S,
        quota_bytes: int | None = None,
        copies: Copies | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place, self.blobs, self.standing = place, Blobs(place), Standing()
        self.tiers = Tiers(place, self.blobs, copies)
        self.leases, self.uses = Leases(place, ttl_s, clock), Uses(place, clock)
        self.quota = None
        if quota_bytes is not None:
            self.quota = Quota(place, quota_bytes, self.uses, ttl_s=ttl_s)
        self._patience_s, self._clock = patience_s, clock
        self._entries = Entries(place, self.standing)
        self._fillings = weakref.WeakValueDictionary[tuple[str, int], Filling]()
        self._hasty: dict[str, float] = {}  # until when nobody waits for parts that rest
        self._distrusted = set[str]()  # folders of entries that this process quarantined
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------------ reading

    @property
    def failed_s(self) -> float:
        """Seconds since the place failed, or copies of it; 0 while neither has."""
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
    ) -> Rows | None:
        """The rows of a part if they are there and whole; nothing is listed to know that.

        None also for one of more than ``most_bytes`` that would lie in memory. It will be asked for
        ``later`` so often. If ``had``, only a file on this disk that this process has had before.
        """
        folder = layout.entry(fingerprint)
        if self.standing.unusable is None:
            try:
                return self._found(folder, part, most_bytes, later, anew=False, had=had)
            except OvertakenError:
                return None
            except UnusableError as error:
                self.give_up(error)
        return None

    def fill(
        self,
        fingerprint: str,
        part: int,
        most_bytes: int = sys.maxsize,
        later: float = LATER,
    ) -> Rows | Filling | None:
        """The rows of a part if another has made them, for whom this waits; else make them.

        None if that is to be done without the store. PlanError if the name is no fingerprint.
        """
        return self._taken(layout.entry(fingerprint), part, most_bytes, later)

    def close(self) -> None:
        """Tell others how parts were used."""
        if self.standing.whole:
            self.uses.close()
        if self.tiers.copies is not None:
            self.tiers.copies.close()

    def forget(self) -> None:
        """Read anew what was read of all entries."""
        self._entries.forget()

    # ----------------------------------------------------------------------------- whole entries

    def describe(self, fingerprint: str, about: Mapping[str, Any]) -> None:
        """Say what an entry is, in JSON, if nobody has."""
        folder = layout.entry(fingerprint)
        if self.standing.whole:
            try:
                self._entries.describe(folder, about)
            except OvertakenError:
                return
            except UnusableError as error:
                self.give_up(error)

    def described(self, fingerprint: str) -> dict[str, Any] | None:
        """What has been said of an entry; None if nothing has."""
        folder = layout.entry(fingerprint)
        if self.standing.unusable is None:
            try:
                return self._entries.described(folder)
            except UnusableError as error:
                self.give_up(error)
        return None

    def records(self, fingerprint: str) -> dict[int, Record]:
        """What is said of the parts of an entry that are there; no rows are read."""
        folder = layout.entry(fingerprint)
        if self.standing.unusable is None:
            try:
                return self._entries.records(folder)
            except UnusableError as error:
                self.give_up(error)
        return {}

    def copied_bytes(self, fingerprint: str) -> int:
        """Bytes of parts of an entry that lie on a disk of this machine, too."""
        copies = self.tiers.copies
        return 0 if copies is None else copies.used_bytes(fingerprint)

    def remove(self, fingerprint: str) -> None:
        """End an entry: its parts are gone, and made again if somebody asks; or UnusableError."""
        if self.tiers.copies is not None:
            self.tiers.copies.remove(fingerprint)
        folder = layout.entry(fingerprint)
        try:
            janitor.remove(self.place, fingerprint)
        except UnwritableError:
            view = self._entries.viewed(folder).view
            if view.live or view.quarantined:  # there was something to end
                raise
        self._distrusted.discard(folder)
        self._entries.viewed(folder)

    def quarantine(self, fingerprint: str, told: Mapping[str, Any]) -> bool:
        """Nobody reads an entry any more, nor fills it; False if another has said so before.

        Where nothing can be written, this process alone leaves it.
        """
        folder = layout.entry(fingerprint)
        first = folder not in self._distrusted
        self._distrusted.add(folder)
        if self.standing.whole:
            try:
                first = quarantine.put(self.place, fingerprint, told)
                if self._entries.viewed(folder).view.quarantined:
                    self._distrusted.discard(folder)  # who removes it by hand, removes that, too
            except OvertakenError:
                return first
            except UnusableError as error:
                self.give_up(error)
        return first

    def quarantined(self, fingerprint: str) -> dict[str, Any] | None:
        """What was said of an entry that nobody reads; None of any other."""
        folder = layout.entry(fingerprint)
        if self.standing.unusable is None:
            try:
                return quarantine.told(self.place, folder)
            except UnusableError as error:
                self.give_up(error)
        return {} if folder in self._distrusted else None

    def trusts(self, fingerprint: str) -> bool:
        """Whether this process knows nothing against an entry."""
        try:
            return not self._distrusts(self._entries.known(layout.entry(fingerprint)))
        except UnusableError as error:
            self.give_up(error)
            return True

    def first(self, fingerprint: str, who: str) -> bool:
        """Whether nobody has said ``who`` of an entry before; False if that cannot be written."""
        try:
            name = f"{layout.entry(fingerprint)}/first.{who}"
            return self.standing.whole and self.place.put_if_absent(name, b"")
        except OvertakenError:
            return False
        except UnusableError as error:
            self.give_up(error)
            return False

    # ------------------------------------------------------------------------- what a filling asks

    @property
    def unasked_bytes(self) -> int:
        """What a filling may write before it asks for room: asking takes longer than so little."""
        return min(UNASKED_BYTES, self.quota.most_bytes) if self.quota else sys.maxsize

    def room(self, nbytes: int, before: Lease | None) -> Lease | None:
        """Room for what is being written."""
        return self.quota.announced(nbytes, before) if self.quota else None

    def give_up(self, error: UnusableError) -> None:
        """Ask nothing of the place any more, or write nothing, and say so once."""
        self.standing.give_up(error)

    def committed(self, filling: Filling, about: Mapping[str, Any]) -> Source:
        """Put a part there, unless another was first."""
        folder, part, draft = filling.folder, filling.part, filling.draft
        record = draft.end(filling.cost_s, about)
        known = self._entries.now(folder, part)
        winner = self._entries.record(known, part)
        filling.version = _version(known, part)
        if self._distrusts(known):
            return Source.UNKEPT
        if winner is None:
            if not self._published(filling, record.size):
                return Source.UNKEPT
            self.uses.used(folder.rpartition("/")[2], part)
            if self.place.put_if_absent(known.view.record(part), written(record)):
                known.records[part, filling.version[1]] = record
                draft.settle()
                return Source.MADE
            known = self._entries.viewed(folder)
            winner = self._entries.record(known, part)
            if isinstance(winner, Record) and winner.blob == record.blob:
                draft.settle()
                return Source.MADE  # the answer was lost, and asked for again
            self.place.delete(record.blob)
        same = isinstance(winner, Record) and winner.schema == record.schema
        return Source.ADOPTED if same else Source.UNKEPT

    # ------------------------------------------------------------------------------------- inside

    def _published(self, filling: Filling, nbytes: int) -> bool:
        """Whether there was room for a blob, which then is there."""
        if self.quota is None:
            filling.draft.publish()
            return True
        with self.quota.room(nbytes, filling.announced) as room:
            if room:
                filling.draft.publish()
        return room

    def _found(
        self,
        folder: str,
        part: int,
        most_bytes: int,
        later: float,
        *,
        anew: bool,
        had: bool = False,
    ) -> Rows | None:
        """A part that is there; what is damaged of it is cleared away."""
        entries, entry = self._entries, folder.rpartition("/")[2]
        known = entries.known(folder)
        if anew and (part, known.view.version(part)) not in known.records:
            known = entries.now(folder, part)
        for _ in range(2):
            record = None if self._distrusts(known) else entries.record(known, part)
            if not isinstance(record, Record) or (had and not self.tiers.had(record)):
                return None
            rows = self._near(entry, known, part, record)
            if rows is None and record.size > most_bytes and not self.place.maps:
                rows = self.tiers.through(entry, record, later, most_bytes)
                if rows is None:
                    return None
            rows = rows or self.tiers.far(entry, record, later)
            if rows is not None:
                self.uses.used(entry, part)
                return self.tiers.counted(rows)
            seen, known = _version(known, part), entries.viewed(folder)
            if part in known.view.live and _version(known, part) == seen:
                entries.retire(known, part, record)
                return None
        return None

    def _near(self, entry: str, known: Known, part: int, record: Record) -> Rows | None:
        """A part from its copy, if the store still has it: by its record, which goes first."""
        rows = self.tiers.near(entry, record)
        if rows is None or self.place.stamp(known.view.record(part)) is not None:
            return rows
        if self.tiers.copies is not None:
            self.tiers.copies.drop(entry, record.blob)
        return None

    def _taken(
        self, folder: str, part: int, most_bytes: int, later: float
    ) -> Rows | Filling | None:
        """A part that another has made, or is making; else a filling, None without the store."""
        until = self._clock() + self._patience_s
        while self.standing.unusable is None:
            try:
                found = self._found(folder, part, most_bytes, later, anew=True)
                if found is not None or self.standing.unwritable or self._in_vain(folder, part):
                    return found
                if self._distrusts(self._entries.known(folder)):
                    known = self._entries.viewed(folder)  # somebody may have removed it by hand
                    if self._distrusts(known):
                        return None
                filling = self._turn(folder, part, until, later)
            except OvertakenError:
                continue
            except UnusableError as error:
                self.give_up(error)
                continue
            if filling is not None:
                return None if isinstance(filling, Unread) else filling
        return None

    def _turn(self, folder: str, part: int, until: float, later: float) -> Filling | Unread | None:
        """A filling of a part that was not there; None to look again, NEWER to leave it alone."""
        known = self._entries.known(folder)  # looked at a moment ago
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
        filling.drop()  # it was committed between looking and taking
        return None

    def _filling(self, folder: str, part: int, lease: Lease | None, later: float) -> Filling:
        draft = self.blobs.begin(self.tiers.beside(folder.rpartition("/")[2], later))
        found = Filling(self, (folder, part), draft, lease, self._clock)
        with self._lock:
            self._fillings[folder, part] = found
        return found

    def _distrusts(self, known: Known) -> bool:
        """Whether an entry was quarantined, as far as this process has seen."""
        return known.view.quarantined or known.view.folder in self._distrusted

    def _in_vain(self, folder: str, part: int) -> bool:
        """Whether whoever makes a part does so in this process, and does not while this waits.

        Between two pieces of work a moment passes. Once it was long, nobody waits for a moment any
        more where parts of that entry rest: their taker is slow, and may even wait for this one.
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
        """Until another's lease has ended, or waiting for it is in vain."""
        while not self._in_vain(folder, part) and self._clock() <= until:
            time.sleep(min(self.leases.ttl_s / POLLS, POLL_S))
            if self.leases.ended(lease):
                return


def _version(known: Known, part: int) -> tuple[int, int]:
    return known.view.incarnation, known.view.version(part)
