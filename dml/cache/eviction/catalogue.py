"""List and check the cache entries of a store, without writing to it and without making rows."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dml.cache.eviction import janitor, pins, quarantine
from dml.cache.eviction.uses import Key, ObservedUses, observed_uses
from dml.cache.parts.blobs import Blobs
from dml.cache.parts.entries import ABOUT
from dml.cache.parts.records import PartRecord, Unread, about_in, read
from dml.cache.store import layout
from dml.cache.store.bucket import Bucket
from dml.cache.store.disk import Disk
from dml.cache.store.layout import EntryView
from dml.cache.store.primitives import StorePlace
from dml.errors import CacheError


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cache entry: its fingerprint, its size, its uses and its state."""

    fingerprint: str
    parts: int
    """The number of stored parts."""
    of: int | None
    """The number of parts of the whole entry; None while that is unknown."""
    rows: int
    nbytes: int
    cost_s: float
    """Seconds that it took to make these parts."""
    uses: float
    """Decayed number of uses: a use that is six hours old counts half."""
    used_s: float | None
    """Seconds since a process last reported a use; None if no use is known."""
    pinned: bool
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """Its origin: ``operators``, ``schema``, ``dml``, ``created`` ..., if that was written."""
    quarantined: str = ""
    """Why it is neither read nor filled: its rows differed from the computed rows."""

    @property
    def whole(self) -> bool:
        """True if all parts are stored."""
        return self.of is not None and self.parts >= self.of


@dataclasses.dataclass(frozen=True)
class VerifiedEntry:
    """The outcome of a check of all bytes of an entry, or of all entries."""

    parts: int
    nbytes: int
    damaged: tuple[Key, ...]
    """Fingerprint and part of each damaged part; these parts have been evicted."""
    newer: int
    """Parts that a later version of this program wrote: they were not checked."""


def place_at(root: str, namespace: str) -> StorePlace:
    """Open a namespace of an existing store; raise CacheError if missing or unusable."""
    below = layout.namespace(namespace)
    if "://" in root:
        return Bucket(root, below)
    if not os.path.isdir(root):  # opening would create it
        raise CacheError(
            "there is no store",
            at=root,
            why="there is no such folder",
            try_="the folder of cache_dir= or of a snapshot, once a run has kept rows there",
        )
    return Disk(root, below)


def store_in(root: str) -> str:
    """Return the root of the store at ``root``: ``root`` itself, or its folder ``store``.

    The folder is returned if it exists and ``root`` itself has no entries, as for a cache folder.
    """
    below = f"{root.rstrip('/')}/store"
    if "://" not in root:
        kept = any(Path(root, layout.FORMAT).glob(f"*/{layout.ENTRIES}"))
        return below if os.path.isdir(below) and not kept else root
    if root.rstrip("/").endswith("/store") or Bucket(root, layout.FORMAT).holds():
        return root
    return below if Bucket(below, layout.FORMAT).holds() else root


class Catalogue:
    """The cache entries of one namespace; methods raise UnusableError if it cannot be read."""

    def __init__(self, place: StorePlace) -> None:
        self.place = place

    def view(self, fingerprint: str) -> EntryView:
        """Return the state of an entry from the names below it: lists one folder, reads no file."""
        folder = layout.entry(fingerprint)
        return layout.viewed(folder, self.place.names(folder))

    def counted(self, view: EntryView) -> tuple[int, int | None]:
        """Return the number of stored parts of an entry, and of all its parts, None if unknown."""
        if not view.live:
            return 0, None
        told = self.about(view).get("parts")
        if not isinstance(told, int):  # an entry of a stream, whose last part is marked
            end = max(view.live)
            record = janitor.record_of(self.place, view, end)
            told = end + 1 if record is not None and record.about.get("last") is True else None
        return len(view.live), told

    def about(self, view: EntryView) -> dict[str, Any]:
        """Return the description of an entry; empty if it cannot be read."""
        return about_in(self.place.get(f"{view.folder}/{ABOUT}") or b"") or {}

    def quarantined(self, view: EntryView) -> dict[str, Any] | None:
        """Return why an entry is quarantined, {} if unreadable; None if it is not quarantined."""
        return quarantine.read_finding(self.place, view.folder) if view.quarantined else None

    def entry(self, fingerprint: str) -> Entry | None:
        """Return one cache entry; None if it has no stored part and no quarantine."""
        view = self.view(fingerprint)
        if not (view.live or view.quarantined):
            return None
        uses, pinned = observed_uses(self.place), pins.list_pinned(self.place)
        return self._entry(fingerprint, view, uses, pinned)

    def entries(self) -> Iterator[Entry]:
        """Yield every entry that has a stored part or is quarantined, by fingerprint."""
        uses, pinned = observed_uses(self.place), pins.list_pinned(self.place)
        for fingerprint, (view, _) in sorted(janitor.views(self.place).items()):
            if view.live or view.quarantined:
                yield self._entry(fingerprint, view, uses, pinned)

    def begin_with(self, prefix: str) -> list[str]:
        """Return the fingerprints with a prefix of two or more digits, ascending."""
        folder = f"{layout.ENTRIES}/{prefix[:2]}"
        names = {name.partition("/")[0] for name in self.place.names(folder)}
        return sorted(name for name in names if name.startswith(prefix))

    def verify(self, fingerprint: str | None = None) -> VerifiedEntry:
        """Read every stored byte of one entry, or of all, and evict the damaged parts."""
        blobs, damaged = Blobs(self.place), list[Key]()
        parts = nbytes = newer = 0
        views = janitor.views(self.place) if fingerprint is None else {}
        if fingerprint is not None:
            views[fingerprint] = self.view(fingerprint), []
        for each, (view, _) in sorted(views.items()):
            for part in sorted(view.live):
                text = self.place.get(view.record(part))
                if text is None:
                    continue
                record = read(text)
                if record is Unread.NEWER:
                    newer += 1
                    continue
                parts += 1
                if isinstance(record, PartRecord) and blobs.read(record) is not None:
                    nbytes += record.size
                elif janitor.evict(self.place, each, part, "damaged"):
                    damaged.append((each, part))
        return VerifiedEntry(parts, nbytes, tuple(damaged), newer)

    # ------------------------------------------------------------------------------------- inside

    def _entry(
        self, fingerprint: str, view: EntryView, observed: ObservedUses, pinned: set[str]
    ) -> Entry:
        found = [janitor.record_of(self.place, view, part) for part in view.live]
        records = [each for each in found if each is not None]
        uses, used_s = observed.get(fingerprint, (0.0, None))
        return Entry(
            fingerprint,
            *self.counted(view),
            rows=sum(each.rows for each in records),
            nbytes=sum(each.size for each in records),
            cost_s=sum(each.cost_s for each in records),
            uses=uses,
            used_s=used_s,
            pinned=fingerprint in pinned,
            about=self.about(view),
            quarantined=quarantine.words(self.quarantined(view)),
        )
