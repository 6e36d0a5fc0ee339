"""Count uses of parts in one small file per process, which only that process writes.

The counts are advice: if some are lost or damaged, other parts are evicted than would be best, but
no rows are lost. Counts of ended processes decay; the reads that these processes had announced no
longer count.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from dml.cache.eviction.eviction_order import HALF_LIFE_S, PartUse
from dml.cache.parts.records import Unread, checked, unchecked
from dml.cache.store import layout
from dml.cache.store.primitives import ListedName, StorePlace, UnusableError

FLUSH_S = 30.0  # seconds between writes of the file
SILENT_S = 600.0  # seconds since the last write from which announced reads no longer count
KEPT_S = 16 * HALF_LIFE_S  # older files are removed
FOREIGN = (AttributeError, KeyError, TypeError, ValueError)  # raised by files of other versions
MOST = 1 << 16  # most parts that one process remembers

Key = tuple[str, int]
"""A fingerprint and a part."""
GatheredUses = tuple[dict[Key, PartUse], dict[str, float]]
"""Uses by part, and announced epochs by fingerprint."""
ObservedUses = dict[str, tuple[float, float]]
"""The decayed number of uses, and the seconds since the last report of any, by fingerprint."""


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
        uses, epochs = dict[Key, PartUse](), dict[str, float]()
        for each in self._place.list_files(layout.USES):
            if each.age_s <= KEPT_S:
                self._add(each, epochs, uses)
            else:
                self._place.delete(f"{layout.USES}/{each.name}")
        return uses, epochs

    def elsewhere(self, fingerprint: str) -> float:
        """Return how many reads of an entry all processes but this one have announced."""
        epochs = dict[str, float]()
        with suppress(UnusableError):
            for each in self._place.list_files(layout.USES):
                if f"{layout.USES}/{each.name}" != self._name and each.age_s < SILENT_S:
                    self._add(each, epochs, None)
        return epochs.get(fingerprint, 0.0)

    def _add(
        self, file: ListedName, epochs: dict[str, float], uses: dict[Key, PartUse] | None
    ) -> None:
        """Add the epochs that one process announced in ``file``, and to ``uses`` what it used."""
        body = _reported(self._place, file)
        with suppress(*FOREIGN):
            if uses is not None:
                for key, use in _uses_in(body, file.age_s):
                    uses[key] = uses.get(key, PartUse()) | use
            self.floor = max(self.floor, float(body["floor"]))
            for fingerprint, count in body["epochs"].items() if file.age_s < SILENT_S else ():
                epochs[fingerprint] = epochs.get(fingerprint, 0.0) + float(count)


def observed_uses(place: StorePlace) -> ObservedUses:
    """Return the uses of each entry that all processes have reported; nothing is written."""
    found: ObservedUses = {}
    with suppress(UnusableError):  # without the files, no use is known
        for each in place.list_files(layout.USES, looking=True):
            with suppress(*FOREIGN):
                for (fingerprint, _), use in _uses_in(_reported(place, each), each.age_s):
                    count, since_s = found.get(fingerprint, (0.0, each.age_s))
                    found[fingerprint] = count + use.count, min(since_s, each.age_s)
    return found


def _reported(place: StorePlace, file: ListedName) -> dict[str, Any]:
    """Return the content of a process's file of uses; empty if it cannot be read."""
    body = unchecked(place.get(f"{layout.USES}/{file.name}") or b"")
    return {} if isinstance(body, Unread) else body


def _uses_in(body: Mapping[str, Any], age_s: float) -> Iterator[tuple[Key, PartUse]]:
    """Yield the uses of each part that a process reported ``age_s`` seconds ago, decayed since."""
    for fingerprint, part, count, floor in body["uses"]:
        yield (fingerprint, part), PartUse(float(count), float(floor)).after(age_s)
