"""Count uses of parts in one small file per process, which only that process writes.

The counts are advice: if some are lost or damaged, other parts are evicted than would be best, but
no rows are lost. Counts of ended processes decay; the reads that these processes had announced no
longer count.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

from dml.cache.eviction.eviction_order import HALF_LIFE_S, PartUse
from dml.cache.parts.records import Unread, checked, unchecked
from dml.cache.store import layout
from dml.cache.store.primitives import ListedName, StorePlace, UnusableError

FLUSH_S = 30.0  # seconds between writes of the file
SILENT_S = 600.0  # seconds since the last write from which announced reads no longer count
MOST = 1 << 16  # most parts that one process remembers

Key = tuple[str, int]
"""A fingerprint and a part."""
GatheredUses = tuple[dict[Key, PartUse], dict[str, float]]
"""Uses by part, and announced epochs by fingerprint."""


class PartUses:
    """The uses by this process, and the reported uses of other processes."""

    def __init__(self, place: StorePlace, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._clock = place, clock
        self._name = f"{layout.USES}/{uuid.uuid4().hex}.json"
        self._uses: dict[Key, tuple[PartUse, float]] = {}
        self._epochs: dict[str, float] = {}
        self._lock, self._flushed = threading.Lock(), clock()
        self._untold = False  # whether there are uses since the last write
        self.floor = 0.0

    def used(self, fingerprint: str, part: int) -> None:
        """Count one use of a part, which was read or made."""
        now, key = self._clock(), (fingerprint, part)
        with self._lock:
            use, then = self._uses.pop(key, (PartUse(floor=self.floor), now))
            self._uses[key] = use.after(now - then).used(self.floor), now
            self._untold = True
            if len(self._uses) > MOST:
                del self._uses[next(iter(self._uses))]
            due = now - self._flushed >= FLUSH_S
        if due:
            with suppress(UnusableError):  # the next write of rows reports it
                self.flush()

    def announce(self, fingerprint: str, epochs: float) -> None:
        """Announce that a running job will read all parts of an entry ``epochs`` times more."""
        with self._lock:
            self._epochs[fingerprint] = epochs
            self._untold = True
        with suppress(UnusableError):
            self.flush()

    def flush(self) -> None:
        """Write the uses of this process to its file."""
        now = self._clock()
        with self._lock:
            self._flushed, self._untold = now, False
            uses = [
                [fingerprint, part, use.after(now - then).count, use.floor]
                for (fingerprint, part), (use, then) in self._uses.items()
            ]
            body = {"uses": uses, "epochs": dict(self._epochs), "floor": self.floor}
        self._place.put(self._name, checked(body))

    def close(self) -> None:
        """Write the remaining uses, and withdraw the announcements of this process, if any."""
        with self._lock:
            untold = self._untold or bool(self._epochs)
            self._epochs.clear()
        if untold:
            with suppress(UnusableError):
                self.flush()

    def gathered(self) -> GatheredUses:
        """Return the uses and announcements of all processes."""
        self.flush()
        found: GatheredUses = {}, {}
        for each in self._use_files():
            body = unchecked(self._place.get(f"{layout.USES}/{each.name}") or b"")
            if isinstance(body, Unread):
                continue
            with suppress(KeyError, TypeError, ValueError):
                self._add(body, each.age_s, found)
        return found

    def _use_files(self) -> Iterator[ListedName]:
        """Yield the use file of each process; files older than 16 half-lives are removed."""
        for each in self._place.list_files(layout.USES):
            if each.age_s <= 16 * HALF_LIFE_S:
                yield each
            else:
                self._place.delete(f"{layout.USES}/{each.name}")

    def elsewhere(self, fingerprint: str) -> float:
        """Return how many reads of an entry all processes but this one have announced."""
        epochs: dict[str, float] = {}
        with suppress(UnusableError, KeyError, TypeError, ValueError):
            for each in self._place.list_files(layout.USES):
                name = f"{layout.USES}/{each.name}"
                if name != self._name and each.age_s < SILENT_S:
                    body = unchecked(self._place.get(name) or b"")
                    if not isinstance(body, Unread):
                        self._add({**body, "uses": []}, each.age_s, ({}, epochs))
        return epochs.get(fingerprint, 0.0)

    def _add(self, body: dict[str, object], age_s: float, found: GatheredUses) -> None:
        """Add the uses ``body`` that one process reported ``age_s`` seconds ago to ``found``."""
        uses, epochs = found
        told, announced = body["uses"], body["epochs"]
        if not isinstance(told, list) or not isinstance(announced, dict):
            return
        for fingerprint, part, count, floor in told:
            use = PartUse(float(count), float(floor)).after(age_s)
            uses[fingerprint, part] = uses.get((fingerprint, part), PartUse()) | use
        self.floor = max(self.floor, float(str(body["floor"])))
        if age_s < SILENT_S:
            for fingerprint, count in announced.items():
                epochs[fingerprint] = epochs.get(fingerprint, 0.0) + float(count)
