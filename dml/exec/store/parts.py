"""This file gives parts of entries: from the store if they are there, else made and put there.

Leases are advice, commit is law: a part is what its first record says, whoever else made it. A
store that cannot be used costs a warning and the work, never the rows.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pyarrow as pa

from dml.exec.store import layout
from dml.exec.store.blobs import Blobs, Laid, schema_digest
from dml.exec.store.layout import View
from dml.exec.store.leases import Lease, Leases
from dml.exec.store.primitives import OvertakenError, Place, UnusableError, UnwritableError
from dml.exec.store.quota import Quota
from dml.exec.store.records import (
    Manifest,
    Record,
    Unread,
    manifest_read,
    manifest_written,
    read,
    written,
)
from dml.exec.store.uses import Uses

TTL_S = 30.0  # without a beat: longer than a process stands still that is not dead
PATIENCE_S = 600.0  # whoever waits longer for another's lease makes the part, too
POLLS, POLL_S = 50, 0.25  # in a ttl, and seconds at most, while another makes the part
ENTRIES = 1 << 12  # entries that a process remembers

Compute = Callable[[], pa.Table]


class StoreWarning(UserWarning):
    """The store cannot be used, and the run goes on without it."""


class Source(enum.Enum):
    """Where the rows of a part came from."""

    FOUND = "found"
    """They were there."""
    MADE = "made"
    """They were made here, and are there now."""
    ADOPTED = "adopted"
    """They were made here and by another, who was first: these are that one's."""
    UNKEPT = "unkept"
    """They were made here, and are in no store."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of one part, and where they came from."""

    table: pa.Table
    source: Source
    version: tuple[int, int] = (0, 0)
    """Incarnation and version in it."""


@dataclasses.dataclass
class _Known:
    """What this process has read of an entry."""

    view: View
    records: dict[tuple[int, int], Record | Unread] = dataclasses.field(default_factory=dict)


class PartStore:
    """The parts in one place, for all threads of a process."""

    def __init__(
        self,
        place: Place,
        *,
        ttl_s: float = TTL_S,
        patience_s: float = PATIENCE_S,
        quota_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place, self.blobs = place, Blobs(place)
        self.leases, self.uses = Leases(place, ttl_s, clock), Uses(place, clock)
        self.quota = None
        if quota_bytes is not None:
            self.quota = Quota(place, quota_bytes, self.uses, ttl_s=ttl_s)
        self._patience_s, self._clock = patience_s, clock
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()
        self.unusable: UnusableError | None = None
        """Why nothing is asked of the place any more."""
        self.unwritable: UnusableError | None = None
        """Why nothing is written there any more; what is there is still read."""

    # ------------------------------------------------------------------------------------ reading

    def find(
        self, fingerprint: str, part: int, *, schema: pa.Schema | None = None
    ) -> pa.Table | None:
        """The rows of a part if they are there, of that ``schema`` if it is given; else None."""
        folder = layout.entry(fingerprint)
        if self.unusable is None:
            try:
                found = self._found(folder, part, schema)
            except UnusableError as error:
                self._give_up(error)
            else:
                return found.table if found else None
        return None

    def get(
        self, fingerprint: str, part: int, compute: Compute, *, schema: pa.Schema | None = None
    ) -> Part:
        """The rows of a part; ``compute`` is called if they are not there, which nobody else does.

        What it raises is raised, and another may try. PlanError if the name is no fingerprint.
        """
        folder, until = layout.entry(fingerprint), self._clock() + self._patience_s
        found: Part | None = None
        while self.unusable is None:
            try:
                found = self._found(folder, part, schema)
                if found or self.unwritable:
                    break
                lease = self._lease(folder, part, until)
            except OvertakenError:
                continue
            except UnusableError as error:
                self._give_up(error)
                continue
            if isinstance(lease, Lease):
                with lease:
                    made = self._made(folder, part, compute, schema)
                if made:
                    return made
            elif lease is Unread.NEWER or self._clock() > until:
                break
            else:
                time.sleep(min(self.leases.ttl_s / POLLS, POLL_S))
        return found or self._alone(folder, part, compute)

    def manifest(self, fingerprint: str) -> Manifest | None:
        """What is said of an entry whose parts have all been there; None without one."""
        folder = layout.entry(fingerprint)
        try:
            view = self._viewed(folder).view
            text = self.place.get(view.manifest) if view.complete else None
        except UnusableError as error:
            self._give_up(error)
            return None
        found = manifest_read(text) if text is not None else None
        return found if isinstance(found, Manifest) else None

    def finish(self, fingerprint: str, count: int, about: Mapping[str, Any] | None = None) -> bool:
        """Say that parts 0 to ``count`` are all of an entry, if they are there; True if so."""
        folder = layout.entry(fingerprint)
        try:
            known = self._viewed(folder)
            records = {part: self._record(known, part) for part in range(count)}
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
            self._give_up(error)
            return False
        return True

    def close(self) -> None:
        """Tell others how parts were used."""
        if self.unusable is None and self.unwritable is None:
            self.uses.close()

    def forget(self) -> None:
        """Read anew what was read of all entries."""
        with self._lock:
            self._known.clear()

    # ------------------------------------------------------------------------------------- inside

    def _viewed(self, folder: str) -> _Known:
        """An entry as it is now."""
        known = _Known(layout.viewed(folder, self.place.names(folder)))
        with self._lock:
            before = self._known.get(folder)
            if before and before.view.incarnation == known.view.incarnation:
                known.records.update(before.records)
            elif len(self._known) >= ENTRIES:
                self._known.clear()
            self._known[folder] = known
        return known

    def _found(self, folder: str, part: int, schema: pa.Schema | None) -> Part | None:
        """A part that is there; what is damaged of it is cleared away."""
        known = self._known.get(folder)
        if known is None or part not in known.view.live:
            known = self._viewed(folder)
        for _ in range(2):
            record = self._record(known, part)
            if isinstance(record, Record):
                table = self.blobs.read(record)
                if table is not None and _fits(table, schema):
                    self.uses.used(folder.rpartition("/")[2], part)
                    place = known.view.incarnation, known.view.version(part)
                    return Part(table, Source.FOUND, place)
                seen, known = known.view, self._viewed(folder)
                if known.view.live.get(part) == seen.live[part] and _same(known.view, seen):
                    self._retire(known, part, record)
                    return None
        return None

    def _record(self, known: _Known, part: int) -> Record | Unread | None:
        """What is said of a part; damaged text is cleared away."""
        view = known.view
        key = part, view.version(part)
        if part not in view.live:
            return None
        if key not in known.records:
            text = self.place.get(view.record(part))
            if text is None:
                return None
            found = read(text)
            if found is Unread.DAMAGED:
                self._retire(known, part, None)
                return None
            known.records[key] = found
        return known.records[key]

    def _retire(self, known: _Known, part: int, record: Record | None) -> None:
        """End a version of a part."""
        if self.unwritable:
            return
        self.place.put_if_absent(known.view.tomb(part), b"damaged")
        self.place.delete(known.view.record(part))
        if record is not None:
            self.place.delete(record.blob)

    def _lease(self, folder: str, part: int, until: float) -> Lease | Unread | None:
        """A lease on a part that was not there; None to look again, NEWER to leave it alone."""
        known = self._viewed(folder)
        if part in known.view.live:
            return Unread.NEWER if self._record(known, part) is Unread.NEWER else None
        if self._clock() > until:
            return None
        return self.leases.take(known.view, part)

    def _made(
        self, folder: str, part: int, compute: Compute, schema: pa.Schema | None
    ) -> Part | None:
        """Make a part and commit it; None if it is there by now."""
        try:
            if part in self._viewed(folder).view.live:
                return None
        except UnusableError as error:
            self._give_up(error)
            return None
        begun = self._clock()
        table = compute()
        try:
            return self._committed(folder, part, table, self._clock() - begun)
        except OvertakenError:
            return Part(table, Source.UNKEPT)
        except UnusableError as error:
            self._give_up(error)
            return Part(table, Source.UNKEPT)

    def _committed(self, folder: str, part: int, table: pa.Table, cost_s: float) -> Part:
        """Put a part there; the rows of whoever was first."""
        known, laid = self._viewed(folder), Laid(table)
        place = known.view.incarnation, known.view.version(part)
        if part not in known.view.live:
            with self.quota.room(laid.size) if self.quota else nullcontext(True) as room:  # noqa: FBT003
                if not room:
                    return Part(table, Source.UNKEPT)
                record = self.blobs.write(laid, cost_s)
            self.uses.used(folder.rpartition("/")[2], part)
            if self.place.put_if_absent(known.view.record(part), written(record)):
                return Part(table, Source.MADE, place)
            known = self._viewed(folder)
            if self._record(known, part) == record:  # the answer was lost, and asked for again
                return Part(table, Source.MADE, place)
            self.place.delete(record.blob)
        winner = self._record(known, part)
        theirs = self.blobs.read(winner) if isinstance(winner, Record) else None
        if theirs is not None and _fits(theirs, table.schema):
            return Part(theirs, Source.ADOPTED, place)
        return Part(table, Source.UNKEPT, place)

    def _alone(self, folder: str, part: int, compute: Compute) -> Part:
        """Make a part without a lease, since another's does not end, or without the store."""
        begun = self._clock()
        table = compute()
        if self.unusable is None and self.unwritable is None:
            try:
                return self._committed(folder, part, table, self._clock() - begun)
            except UnusableError as error:
                self._give_up(error)
        return Part(table, Source.UNKEPT)

    def _give_up(self, error: UnusableError) -> None:
        """Ask nothing of the place any more, and say so once."""
        with self._lock:
            first = self.unusable is None and self.unwritable is None
            if isinstance(error, UnwritableError):
                self.unwritable = self.unwritable or error
            else:
                self.unusable = self.unusable or error
        if first:
            warnings.warn(f"the run goes on without the store: {error}", StoreWarning, stacklevel=4)


def _same(view: View, other: View) -> bool:
    return view.incarnation == other.incarnation


def _fits(table: pa.Table, schema: pa.Schema | None) -> bool:
    return schema is None or schema_digest(table.schema) == schema_digest(schema)
