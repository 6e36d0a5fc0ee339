"""This file tells what a store keeps, entry by entry, and checks it; it makes and reads no rows.

Whoever only looks writes nothing, so that a root that can just be read can be looked at.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dml.errors import CacheError
from dml.exec.store import janitor, layout, pins, quarantine
from dml.exec.store.blobs import Blobs
from dml.exec.store.bucket import Bucket
from dml.exec.store.disk import Disk
from dml.exec.store.entries import ABOUT
from dml.exec.store.layout import View
from dml.exec.store.primitives import Found, Place, UnusableError
from dml.exec.store.records import Record, Unread, read, unchecked
from dml.exec.store.uses import Key, Uses
from dml.exec.store.worth import Use


@dataclasses.dataclass(frozen=True)
class Entry:
    """What is kept under one fingerprint, and what is known of it."""

    fingerprint: str
    parts: int
    """That are there."""
    of: int | None
    """Parts of the whole; None while nobody has said how many there are."""
    rows: int
    nbytes: int
    cost_s: float
    """What it took to make these parts."""
    uses: float
    """Decayed count: one that is six hours old counts half."""
    used_s: float | None
    """Seconds since a process that used it said so last; None if none is known."""
    pinned: bool
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """What made it: ``operators``, ``schema``, ``dml``, ``created`` ..., where that was written."""
    quarantined: str = ""
    """Why nobody reads or fills it, in words: its rows were not those that are computed."""

    @property
    def whole(self) -> bool:
        """Whether all of its parts are there."""
        return self.of is not None and self.parts >= self.of


@dataclasses.dataclass(frozen=True)
class Verified:
    """What a check of all bytes found."""

    parts: int
    nbytes: int
    damaged: tuple[Key, ...]
    """Fingerprint and part of what was not what was written; it has been cleared away."""
    newer: int
    """Parts that a later version of this program wrote: they were not looked at."""


def place_at(root: str, namespace: str) -> Place:
    """The namespace of a store that is there; CacheError if it is not, or cannot be opened."""
    below = layout.namespace(namespace)
    if "://" in root:
        return Bucket(root, below)
    if not os.path.isdir(root):  # opening would make it
        raise CacheError(
            "there is no store",
            at=root,
            why="there is no such folder",
            try_="the folder of cache_dir= or of a snapshot, once a run has kept rows there",
        )
    return Disk(root, below)


def store_in(root: str) -> str:
    """Where the store is that ``root`` means: there, or in ``store`` below, as in a cache folder.

    It is below if nothing is kept in ``root`` itself.
    """
    below = f"{root.rstrip('/')}/store"
    if "://" not in root:
        kept = any(Path(root, layout.FORMAT).glob(f"*/{layout.ENTRIES}"))
        return below if os.path.isdir(below) and not kept else root
    if root.rstrip("/").endswith("/store") or Bucket(root, layout.FORMAT).holds():
        return root
    return below if Bucket(below, layout.FORMAT).holds() else root


class Seen(Uses):
    """What all processes told of their uses, without telling anything."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.ages: dict[str, float] = {}
        self.counts: dict[str, float] = {}
        with suppress(UnusableError):  # without them, none is known
            for (fingerprint, _), use in self.gathered()[0].items():
                self.counts[fingerprint] = self.counts.get(fingerprint, 0.0) + use.count

    def flush(self) -> None:
        """Nothing was used here."""

    def _told(self) -> Iterator[Found]:
        """The same, and whatever is old stays."""
        yield from self._place.found(layout.USES, looking=True)

    def _add(
        self, body: dict[str, object], age_s: float, uses: dict[Key, Use], epochs: dict[str, float]
    ) -> None:
        mine: dict[Key, Use] = {}
        super()._add(body, age_s, mine, epochs)
        for key, use in mine.items():
            uses[key] = uses.get(key, Use()) | use
            self.ages[key[0]] = min(age_s, self.ages.get(key[0], age_s))


class Catalogue:
    """What one namespace of a store keeps. All raise UnusableError if it cannot be read."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def view(self, fingerprint: str) -> View:
        """What the names below an entry say: one folder is listed, and nothing is read."""
        folder = layout.entry(fingerprint)
        return layout.viewed(folder, self.place.names(folder))

    def counted(self, view: View) -> tuple[int, int | None]:
        """How many parts of an entry are there, of how many; at most two small files are read."""
        if not view.live:
            return 0, None
        told = self.about(view).get("parts")
        if not isinstance(told, int):  # of a stream, whose last part says that it is the last
            end = max(view.live)
            record = janitor.record_of(self.place, view, end)
            told = end + 1 if record is not None and record.about.get("last") is True else None
        return len(view.live), told

    def about(self, view: View) -> dict[str, Any]:
        """What was said of an entry; nothing if that cannot be read."""
        body = unchecked(self.place.get(f"{view.folder}/{ABOUT}") or b"")
        told = body.get("about") if isinstance(body, dict) else None
        return told if isinstance(told, dict) else {}

    def quarantined(self, view: View) -> dict[str, Any] | None:
        """What was found to be wrong with an entry; None of any other."""
        return quarantine.told(self.place, view.folder) if view.quarantined else None

    def entry(self, fingerprint: str) -> Entry | None:
        """All that is known of one entry; None if no part of it is there, nor a quarantine."""
        view = self.view(fingerprint)
        return (
            self._entry(fingerprint, view, Seen(self.place), self._pinned())
            if view.live or view.quarantined
            else None
        )

    def entries(self) -> Iterator[Entry]:
        """Every entry of which a part is there, or that is quarantined, by fingerprint."""
        seen, pinned = Seen(self.place), self._pinned()
        for fingerprint, (view, _) in sorted(janitor.views(self.place).items()):
            if view.live or view.quarantined:
                yield self._entry(fingerprint, view, seen, pinned)

    def begin_with(self, prefix: str) -> list[str]:
        """The fingerprints that begin so; the first two letters of it lead to a folder."""
        folder = f"{layout.ENTRIES}/{prefix[:2]}"
        names = {name.partition("/")[0] for name in self.place.names(folder)}
        return sorted(name for name in names if name.startswith(prefix))

    def verify(self, fingerprint: str | None = None) -> Verified:
        """Read every byte that is kept, and clear away what is not what was written."""
        blobs, damaged = Blobs(self.place), list[Key]()
        parts = nbytes = newer = 0
        for each, view in self._views(fingerprint):
            for part in sorted(view.live):
                text = self.place.get(view.record(part))
                if text is None:
                    continue
                record = read(text)
                if record is Unread.NEWER:
                    newer += 1
                    continue
                parts += 1
                if isinstance(record, Record) and blobs.read(record) is not None:
                    nbytes += record.size
                elif janitor.evict(self.place, each, part, "damaged"):
                    damaged.append((each, part))
        return Verified(parts, nbytes, tuple(damaged), newer)

    # ------------------------------------------------------------------------------------- inside

    def _views(self, fingerprint: str | None) -> Iterator[tuple[str, View]]:
        if fingerprint is not None:
            yield fingerprint, self.view(fingerprint)
            return
        for each, (view, _) in sorted(janitor.views(self.place).items()):
            yield each, view

    def _pinned(self) -> set[str]:
        """The fingerprints that somebody keeps by hand; those of running jobs are no pins here."""
        names = (name.partition("/") for name in self.place.names(layout.PINS))
        return {fingerprint for fingerprint, _, who in names if who == pins.FOREVER}

    def _entry(self, fingerprint: str, view: View, seen: Seen, pinned: set[str]) -> Entry:
        found = [janitor.record_of(self.place, view, part) for part in view.live]
        records = [each for each in found if each is not None]
        return Entry(
            fingerprint,
            *self.counted(view),
            rows=sum(each.rows for each in records),
            nbytes=sum(each.size for each in records),
            cost_s=sum(each.cost_s for each in records),
            uses=seen.counts.get(fingerprint, 0.0),
            used_s=seen.ages.get(fingerprint),
            pinned=fingerprint in pinned,
            about=self.about(view),
            quarantined=quarantine.words(self.quarantined(view)),
        )
