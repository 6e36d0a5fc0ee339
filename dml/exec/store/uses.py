"""This file counts how parts are used, in one small file of each process, which only it writes.

All of it is advice: what is lost or damaged of it costs a worse choice, and no rows. Counts of
processes that are gone decay; what they had announced to ask for counts no longer.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

from dml.exec.store import layout
from dml.exec.store.primitives import Found, Place, UnusableError
from dml.exec.store.records import Unread, checked, unchecked
from dml.exec.store.worth import HALF_LIFE_S, Use

FLUSH_S = 30.0  # between writes of the file
SILENT_S = 600.0  # since the last one: then what was announced counts no longer
MOST = 1 << 16  # parts that one process remembers

Key = tuple[str, int]
"""A fingerprint and a part."""


class Uses:
    """What this process has used, and what it knows of others."""

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._clock = place, clock
        self._name = f"{layout.USES}/{uuid.uuid4().hex}.json"
        self._uses: dict[Key, tuple[Use, float]] = {}
        self._epochs: dict[str, float] = {}
        self._lock, self._flushed = threading.Lock(), clock()
        self._untold = False  # whether anything came since others were told
        self.floor = 0.0

    def used(self, fingerprint: str, part: int) -> None:
        """A part was found or made."""
        now, key = self._clock(), (fingerprint, part)
        with self._lock:
            use, then = self._uses.pop(key, (Use(floor=self.floor), now))
            self._uses[key] = use.after(now - then).used(self.floor), now
            self._untold = True
            if len(self._uses) > MOST:
                del self._uses[next(iter(self._uses))]
            due = now - self._flushed >= FLUSH_S
        if due:
            with suppress(UnusableError):  # whoever writes rows will say so
                self.flush()

    def announce(self, fingerprint: str, epochs: float) -> None:
        """A running job will ask for all parts of an entry ``epochs`` times more."""
        with self._lock:
            self._epochs[fingerprint] = epochs
            self._untold = True
        with suppress(UnusableError):
            self.flush()

    def flush(self) -> None:
        """Let others know."""
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
        """Let others know, and that nothing more is announced; nothing is written if they do."""
        with self._lock:
            untold = self._untold or bool(self._epochs)
            self._epochs.clear()
        if untold:
            with suppress(UnusableError):
                self.flush()

    def gathered(self) -> tuple[dict[Key, Use], dict[str, float]]:
        """Uses by part and announced epochs by fingerprint, of all processes."""
        self.flush()
        uses: dict[Key, Use] = {}
        epochs: dict[str, float] = {}
        for each in self._told():
            body = unchecked(self._place.get(f"{layout.USES}/{each.name}") or b"")
            if isinstance(body, Unread):
                continue
            with suppress(KeyError, TypeError, ValueError):
                self._add(body, each.age_s, uses, epochs)
        return uses, epochs

    def _told(self) -> Iterator[Found]:
        """What each process has told; that of which nothing is left after so long is removed."""
        for each in self._place.found(layout.USES):
            if each.age_s <= 16 * HALF_LIFE_S:
                yield each
            else:
                self._place.delete(f"{layout.USES}/{each.name}")

    def elsewhere(self, fingerprint: str) -> float:
        """How often jobs of other processes have said that they will still ask for an entry."""
        epochs: dict[str, float] = {}
        with suppress(UnusableError, KeyError, TypeError, ValueError):
            for each in self._place.found(layout.USES):
                name = f"{layout.USES}/{each.name}"
                if name != self._name and each.age_s < SILENT_S:
                    body = unchecked(self._place.get(name) or b"")
                    if not isinstance(body, Unread):
                        self._add({**body, "uses": []}, each.age_s, {}, epochs)
        return epochs.get(fingerprint, 0.0)

    def _add(
        self, body: dict[str, object], age_s: float, uses: dict[Key, Use], epochs: dict[str, float]
    ) -> None:
        """What one process has told."""
        told, announced = body["uses"], body["epochs"]
        if not isinstance(told, list) or not isinstance(announced, dict):
            return
        for fingerprint, part, count, floor in told:
            use = Use(float(count), float(floor)).after(age_s)
            uses[fingerprint, part] = uses.get((fingerprint, part), Use()) | use
        self.floor = max(self.floor, float(str(body["floor"])))
        if age_s < SILENT_S:
            for fingerprint, count in announced.items():
                epochs[fingerprint] = epochs.get(fingerprint, 0.0) + float(count)
