"""This file ends what is in the store, and clears away what nobody will look at again.

To end is to write a tomb, and then to remove what it ended: whoever reads the names in between
sees the tomb. Rows that somebody has mapped stay with them; who finds a blob gone makes the part
again. Ages are told by the clock of where the files lie, and never decide what is right.
"""

from __future__ import annotations

import dataclasses

from dml.exec.store import layout
from dml.exec.store.layout import View
from dml.exec.store.primitives import Found, Place
from dml.exec.store.records import Record, Unread, read

GRACE_S = 600.0  # blobs without a record are left for this long: their writers may be slow


@dataclasses.dataclass(frozen=True)
class Swept:
    """What was cleared away."""

    temporary: int = 0
    names: int = 0
    """Records and leases of what has ended."""
    blobs: int = 0
    nbytes: int = 0
    """Of blobs."""


def views(place: Place) -> dict[str, tuple[View, list[str]]]:
    """Every entry, by fingerprint, and the names below it."""
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


def record_of(place: Place, view: View, part: int) -> Record | None:
    """What is said of a part that is there."""
    text = place.get(view.record(part))
    found = read(text) if text is not None else None
    return found if isinstance(found, Record) else None


def evict(place: Place, fingerprint: str, part: int, why: str = "evicted") -> bool:
    """End one part; True if this did, and not another who was first."""
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
    place: Place, fingerprint: str, why: str = "removed", *, keeping_names: bool = False
) -> bool:
    """End an entry, with all that will be committed to it late; True if this did.

    With ``keeping_names``, what is said of the whole entry stays.
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


def sweep(place: Place, *, ttl_s: float, grace_s: float = GRACE_S) -> Swept:
    """Clear away temporary files older than ``ttl_s``, what has ended, and lost blobs.

    Those are the blobs that no record names and that nobody wrote for ``grace_s``. A writer who
    sleeps for longer between a blob and its record commits a record without rows: it is found
    damaged, and the part is made again. Safe beside readers, writers and other janitors.
    """
    temporary = place.clear(ttl_s)
    old = [each for each in place.found(layout.BLOBS) if each.age_s > grace_s]
    entries = views(place)  # after the blobs: what is committed meanwhile is in it
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
    place: Place, entries: dict[str, tuple[View, list[str]]], old: list[Found]
) -> list[Found]:
    """Which of the old blobs no record names; none if some record cannot be read as ours."""
    marked = set()
    for view, _ in entries.values():
        for part in view.live:
            text = place.get(view.record(part))
            found = read(text) if text is not None else None
            if isinstance(found, Record):
                marked.add(found.blob)
            elif found is Unread.NEWER:
                return []
    return [each for each in old if f"{layout.BLOBS}/{each.name}" not in marked]
