"""This file gives parts of entries: from the store if they are there, else made and put there.

Leases are advice, commit is law: a part is what its first record says, whoever else made it. A
store that cannot be used costs a warning and the work, never the rows.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from dml.exec.store import janitor, layout
from dml.exec.store.aligned import cut
from dml.exec.store.blobs import Blobs, Rows, schema_digest
from dml.exec.store.entries import Entries, Known
from dml.exec.store.filling import Filling, Source
from dml.exec.store.leases import Lease, Leases
from dml.exec.store.primitives import OvertakenError, Place, UnusableError
from dml.exec.store.quota import Quota
from dml.exec.store.records import (
    Manifest,
    Record,
    Unread,
    manifest_read,
    manifest_written,
    written,
)
from dml.exec.store.standing import Standing, StoreWarning
from dml.exec.store.uses import Uses

__all__ = ["FILL_TTL_S", "Filling", "Part", "PartStore", "Rows", "Source", "StoreWarning"]

FILL_TTL_S = 10.0  # without a beat: longer than a process stands still that is not dead
REST_S, HASTY_S = 0.5, 60.0  # for so long a part may rest that is waited for; for so long none may
PATIENCE_S = 600.0  # whoever waits longer for another's lease makes the part, too
POLLS, POLL_S = 50, 0.25  # in a ttl, and seconds at most, while another makes the part
UNASKED_BYTES = 16 << 20  # of a part, that are written before there must be room for them

Compute = Callable[[], pa.Table]


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of one part, and where they came from."""

    table: pa.Table
    source: Source
    version: tuple[int, int] = (0, 0)
    """Incarnation and version in it."""


@dataclasses.dataclass(frozen=True)
class _Found:
    """A part that is there."""

    rows: Rows
    version: tuple[int, int]

    @property
    def table(self) -> pa.Table:
        batches = self.rows.batches
        return pa.Table.from_batches(batches, schema=None if batches else pa.schema([]))


class PartStore:
    """The parts in one place, for all threads of a process."""

    def __init__(
        self,
        place: Place,
        *,
        ttl_s: float = FILL_TTL_S,
        patience_s: float = PATIENCE_S,
        quota_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place, self.blobs, self.standing = place, Blobs(place), Standing()
        self.leases, self.uses = Leases(place, ttl_s, clock), Uses(place, clock)
        self.quota = None
        if quota_bytes is not None:
            self.quota = Quota(place, quota_bytes, self.uses, ttl_s=ttl_s)
        self._patience_s, self._clock = patience_s, clock
        self._entries = Entries(place, self.standing)
        self._fillings = weakref.WeakValueDictionary[tuple[str, int], Filling]()
        self._hasty: dict[str, float] = {}  # until when nobody waits for parts that rest
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------------ reading

    def part(self, fingerprint: str, part: int) -> Rows | None:
        """The rows of a part if they are there and whole; nothing is listed to know that."""
        found = self._asked(layout.entry(fingerprint), part, None, anew=False)
        return found.rows if found else None

    def find(
        self, fingerprint: str, part: int, *, schema: pa.Schema | None = None
    ) -> pa.Table | None:
        """The same as a table, of that ``schema`` if it is given; also if it was made anew."""
        found = self._asked(layout.entry(fingerprint), part, schema, anew=True)
        return found.table if found else None

    def fill(self, fingerprint: str, part: int) -> Rows | Filling | None:
        """The rows of a part if another has made them, for whom this waits; else make them.

        None if that is to be done without the store. PlanError if the name is no fingerprint.
        """
        found = self._taken(layout.entry(fingerprint), part, None)
        return found.rows if isinstance(found, _Found) else found

    def get(
        self, fingerprint: str, part: int, compute: Compute, *, schema: pa.Schema | None = None
    ) -> Part:
        """The rows of a part; ``compute`` is called if they are not there, which nobody else does.

        What it raises is raised, and another may try. PlanError if the name is no fingerprint.
        """
        folder = layout.entry(fingerprint)
        found = self._taken(folder, part, schema)
        if isinstance(found, _Found):
            return Part(found.table, Source.FOUND, found.version)
        if found is None:
            return Part(compute(), Source.UNKEPT)
        table, source = self._made(found, compute)
        if source is Source.ADOPTED:
            theirs = self._asked(folder, part, table.schema, anew=False)
            if theirs is None:
                return Part(table, Source.UNKEPT, found.version)
            table = theirs.table
        return Part(table, source, found.version)

    def close(self) -> None:
        """Tell others how parts were used."""
        if self.standing.whole:
            self.uses.close()

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

    def remove(self, fingerprint: str) -> None:
        """End an entry: its parts are gone, and are made again if somebody asks."""
        try:
            janitor.remove(self.place, fingerprint)
            self._entries.viewed(layout.entry(fingerprint))
        except UnusableError as error:
            self.give_up(error)

    def manifest(self, fingerprint: str) -> Manifest | None:
        """What is said of an entry whose parts have all been there; None without one."""
        folder = layout.entry(fingerprint)
        try:
            view = self._entries.viewed(folder).view
            text = self.place.get(view.manifest) if view.complete else None
        except UnusableError as error:
            self.give_up(error)
            return None
        found = manifest_read(text) if text is not None else None
        return found if isinstance(found, Manifest) else None

    def finish(self, fingerprint: str, count: int, about: Mapping[str, Any] | None = None) -> bool:
        """Say that parts 0 to ``count`` are all of an entry, if they are there; True if so."""
        folder = layout.entry(fingerprint)
        try:
            known = self._entries.viewed(folder)
            records = {part: self._entries.record(known, part) for part in range(count)}
            parts = {
                part: (known.view.version(part), record)
                for part, record in records.items()
                if isinstance(record, Record)
            }
            if len(parts) < count:
                return False
            text = manifest_written(Manifest(parts, about or {}))
            self.place.put_if_absent(known.view.manifest, text)
        except UnusableError as error:
            self.give_up(error)
            return False
        return True

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
        if winner is None:
            if not self._published(filling, record.size):
                return Source.UNKEPT
            self.uses.used(folder.rpartition("/")[2], part)
            if self.place.put_if_absent(known.view.record(part), written(record)):
                known.records[part, filling.version[1]] = record
                return Source.MADE
            known = self._entries.viewed(folder)
            winner = self._entries.record(known, part)
            if isinstance(winner, Record) and winner.blob == record.blob:
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

    def _asked(
        self, folder: str, part: int, schema: pa.Schema | None, *, anew: bool
    ) -> _Found | None:
        """A part that is there, if the place can be asked."""
        if self.standing.unusable is None:
            try:
                return self._found(folder, part, schema, anew=anew)
            except OvertakenError:
                return None
            except UnusableError as error:
                self.give_up(error)
        return None

    def _found(
        self, folder: str, part: int, schema: pa.Schema | None, *, anew: bool
    ) -> _Found | None:
        """A part that is there; what is damaged of it is cleared away."""
        entries = self._entries
        known = entries.known(folder)
        if anew and (part, known.view.version(part)) not in known.records:
            known = entries.now(folder, part)
        for _ in range(2):
            record = entries.record(known, part)
            if not isinstance(record, Record):
                return None
            rows = self.blobs.read(record)
            if rows is not None and _fits(record, schema):
                self.uses.used(folder.rpartition("/")[2], part)
                return _Found(rows, _version(known, part))
            seen, known = _version(known, part), entries.viewed(folder)
            if part in known.view.live and _version(known, part) == seen:
                entries.retire(known, part, record)
                return None
        return None

    def _taken(self, folder: str, part: int, schema: pa.Schema | None) -> _Found | Filling | None:
        """A part that another has made, or is making; else a filling, None without the store."""
        until = self._clock() + self._patience_s
        while self.standing.unusable is None:
            try:
                found = self._found(folder, part, schema, anew=True)
                if found or self.standing.unwritable or self._in_vain(folder, part):
                    return found
                filling = self._turn(folder, part, until)
            except OvertakenError:
                continue
            except UnusableError as error:
                self.give_up(error)
                continue
            if filling is not None:
                return None if isinstance(filling, Unread) else filling
        return None

    def _turn(self, folder: str, part: int, until: float) -> Filling | Unread | None:
        """A filling of a part that was not there; None to look again, NEWER to leave it alone."""
        known = self._entries.known(folder)  # looked at a moment ago
        if (part, known.view.version(part)) in known.records:
            return Unread.NEWER
        if self._clock() > until:
            return self._filling(folder, part, None)
        lease = self.leases.take(known.view, part, listed=False)
        if isinstance(lease, str):
            known = self._entries.viewed(folder)
            lease = self.leases.take(known.view, part)
        if isinstance(lease, str):
            self._wait(lease, folder, part, until)
            return None
        filling = self._filling(folder, part, lease)
        if self._entries.record(known, part) is None:
            return filling
        filling.drop()  # it was committed between looking and taking
        return None

    def _filling(self, folder: str, part: int, lease: Lease | None) -> Filling:
        found = Filling(self, (folder, part), self.blobs.begin(), lease, self._clock)
        with self._lock:
            self._fillings[folder, part] = found
        return found

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

    def _made(self, filling: Filling, compute: Compute) -> tuple[pa.Table, Source]:
        """Make a part as a whole; a thread beats meanwhile, as nothing is added."""
        try:
            with filling.beating():
                table = compute()
            for batch in cut(table):
                filling.add(batch)
            return table, filling.commit()
        finally:
            filling.drop()


def _version(known: Known, part: int) -> tuple[int, int]:
    return known.view.incarnation, known.view.version(part)


def _fits(record: Record, schema: pa.Schema | None) -> bool:
    return schema is None or record.schema == schema_digest(schema)
