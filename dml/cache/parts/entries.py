"""Read and memoize entries in this process, and read them again when they are outdated.

A version of a part, and an incarnation of an entry, can only end, and a file with a known name
records that. So the check whether memoized data is current looks for two files, and lists no entry
again.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping
from typing import Any

from dml.cache.parts.records import PartRecord, Unread, about_in, checked, keyed, read
from dml.cache.store import layout
from dml.cache.store.health import Standing
from dml.cache.store.layout import EntryView
from dml.cache.store.primitives import StorePlace

MOST = 1 << 12  # most entries that a process remembers
ABOUT = "ABOUT.json"


@dataclasses.dataclass
class Known:
    """The memoized data of an entry."""

    view: EntryView
    records: dict[tuple[int, int], PartRecord | Unread] = dataclasses.field(default_factory=dict)
    """Records by part and version."""
    described: bool = False


class Entries:
    """The entries of a place, for all threads of a process; methods raise UnusableError."""

    def __init__(self, place: StorePlace, standing: Standing) -> None:
        self._place, self._standing = place, standing
        self._known: dict[str, Known] = {}
        self._lock = threading.Lock()

    def get_memoized(self, folder: str) -> Known:
        """Return an entry as it was last read; read it if that has not happened yet."""
        return self._known.get(folder) or self.viewed(folder)

    def now(self, folder: str, part: int) -> Known:
        """Return an entry, read again if the memoized entry or version of ``part`` has ended."""
        known = self._known.get(folder)
        if known is None:
            return self.viewed(folder)
        ends = known.view.end, known.view.tomb(part)
        if any(self._place.get(name) is not None for name in ends):
            return self.viewed(folder)
        return known

    def viewed(self, folder: str) -> Known:
        """List the files of an entry; return the entry with the memoized records still valid."""
        known = Known(layout.viewed(folder, self._place.names(folder)))
        with self._lock:
            before = self._known.get(folder)
            if before and before.view.incarnation == known.view.incarnation:
                known.described = before.described
                # a copy, which is made at once: other threads may add records meanwhile
                for (part, version), record in before.records.copy().items():
                    if known.view.live.get(part) == version:
                        known.records[part, version] = record
            elif len(self._known) >= MOST:
                self._known.clear()
            self._known[folder] = known
        return known

    def record(self, known: Known, part: int) -> PartRecord | Unread | None:
        """Return the record of the current version of a part, or None; a damaged one is removed."""
        view = known.view
        key = part, view.version(part)
        if key not in known.records:
            text = self._place.get(view.record(part))
            if text is None:
                return None
            found = read(text)
            if found is Unread.DAMAGED:
                self.retire(known, part, None)
                return None
            known.records[key] = found
        return known.records[key]

    def retire(self, known: Known, part: int, record: PartRecord | None) -> None:
        """End the version of a damaged part, remove its files, and read the entry again."""
        if self._standing.unwritable:
            return
        self._place.put_if_absent(known.view.tomb(part), b"damaged")
        self._place.delete(known.view.record(part))
        if record is not None:
            self._place.delete(record.blob)
        self.viewed(known.view.folder)

    def describe(self, folder: str, about: Mapping[str, Any]) -> None:
        """Write ``about`` as the description of an entry that has none; once in a process."""
        known = self.get_memoized(folder)
        if not known.described:
            if self.described(folder) is None:
                self._place.delete(f"{folder}/{ABOUT}")  # if it was damaged
                secret = self._place.get(layout.SECRET)
                told = json.loads(keyed(json.dumps(dict(about)), secret))
                self._place.put_if_absent(f"{folder}/{ABOUT}", checked({"about": told}))
            known.described = True

    def described(self, folder: str) -> dict[str, Any] | None:
        """Return the description of an entry; None if it is missing or unreadable."""
        return about_in(self._place.get(f"{folder}/{ABOUT}") or b"")

    def records(self, folder: str) -> dict[int, PartRecord]:
        """Return the records of the parts that are stored now, by part."""
        known = self.viewed(folder)
        records = {part: self.record(known, part) for part in sorted(known.view.live)}
        return {part: each for part, each in records.items() if isinstance(each, PartRecord)}
