"""End parts and entries of the store, and remove leftover files.

To end a part is to write a tomb, a file that marks it as removed, and then to remove the part's
files: a reader that lists the names in between sees the tomb. Rows that a process has mapped stay
readable; a reader that finds a blob missing makes the part again. Ages come from the clock of the
storage, and never decide about correctness.
"""

from __future__ import annotations

import dataclasses

from dml.cache.parts.records import PartRecord, Unread, read
from dml.cache.store import layout
from dml.cache.store.layout import EntryView
from dml.cache.store.primitives import ListedName, StorePlace

GRACE_S = 600.0  # blobs without a record stay for so long: their writers may be slow


@dataclasses.dataclass(frozen=True)
class Swept:
    """Counts of the removed files."""

    temporary: int = 0
    names: int = 0
    """Records and leases of ended parts."""
    blobs: int = 0
    nbytes: int = 0
    """Bytes of the removed blobs."""


def views(place: StorePlace) -> dict[str, tuple[EntryView, list[str]]]:
    """Return every entry by fingerprint: its view, and the names below its folder."""
    below: dict[str, list[str]] = {}
    for name in place.names(layout.ENTRIES):
        _, _, rest = name.partition("/")
        fingerprint, _, inside = rest.partition("/")
        if inside:
            below.setdefault(fingerprint, []).append(inside)
    return {
        fingerprint: (
            layout.viewed(f"{layout.ENTRIES}/{fingerprint[:2]}/{fingerprint}", names),
            names,
        )
        for fingerprint, names in below.items()
    }


def record_of(place: StorePlace, view: EntryView, part: int) -> PartRecord | None:
    """Return the record of a stored part; None if it is missing or unreadable."""
    text = place.get(view.record(part))
    found = read(text) if text is not None else None
    return found if isinstance(found, PartRecord) else None


def evict(place: StorePlace, fingerprint: str, part: int, why: str = "evicted") -> bool:
    """End one part; return True if this call ended it, False if another process was first."""
    folder = layout.entry(fingerprint)
    view = layout.viewed(folder, place.names(folder))
    if part not in view.live:
        return False
    record = record_of(place, view, part)
    first = place.put_if_absent(view.tomb(part), why.encode())
    place.delete(view.record(part))
    if record is not None:
        place.delete(record.blob)
    return first


def remove(
    place: StorePlace, fingerprint: str, why: str = "removed", *, keeping_names: bool = False
) -> bool:
    """End an entry, also for parts that are committed later; return True if this call ended it.

    With ``keeping_names``, the files that describe the whole entry stay.
    """
    folder = layout.entry(fingerprint)
    names = place.names(folder)
    view = layout.viewed(folder, names)
    blobs = [record_of(place, view, part) for part in view.live]
    first = place.put_if_absent(view.end, why.encode())
    for name in names:
        if not name.startswith("TOMB.") and ("/" in name or not keeping_names):
            place.delete(f"{folder}/{name}")
    for record in blobs:
        if record is not None:
            place.delete(record.blob)
    return first


def sweep(place: StorePlace, *, ttl_s: float, grace_s: float = GRACE_S) -> Swept:
    """Remove temporary files older than ``ttl_s`` s, files of ended parts, and lost blobs.

    Lost blobs are those that no record names and that were not written for ``grace_s`` seconds. A
    writer that sleeps for longer between a blob and its record commits a record without rows: that
    part is found damaged and made again. Readers, writers and other janitors may run meanwhile.
    """
    temporary = place.clear(ttl_s)
    old = [each for each in place.list_files(layout.BLOBS) if each.age_s > grace_s]
    entries = views(place)  # after the blobs: includes parts committed meanwhile
    gone = 0
    for view, names in entries.values():
        for name in layout.dead(view, names):
            place.delete(f"{view.folder}/{name}")
            gone += 1
    lost = _unmarked(place, entries, old) if old else []
    for each in lost:
        place.delete(f"{layout.BLOBS}/{each.name}")
    return Swept(temporary, gone, len(lost), sum(each.size for each in lost))


def _unmarked(
    place: StorePlace, entries: dict[str, tuple[EntryView, list[str]]], old: list[ListedName]
) -> list[ListedName]:
    """Return the blobs in ``old`` that no record names; none if a record has a newer version."""
    marked = set()
    for view, _ in entries.values():
        for part in view.live:
            text = place.get(view.record(part))
            found = read(text) if text is not None else None
            if isinstance(found, PartRecord):
                marked.add(found.blob)
            elif found is Unread.NEWER:
                return []
    return [each for each in old if f"{layout.BLOBS}/{each.name}" not in marked]
