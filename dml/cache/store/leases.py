"""Keep two processes from making one part at the same time, as far as leases can do that.

A lease is a file whose name ends with a generation and whose owner sends heartbeats. A process that
has seen no change of the highest generation's stamp for the ttl, on its own monotonic clock, makes
the next generation: only one process succeeds. Leases bind no process: the first commit counts.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from dml.cache.store.layout import EntryView
from dml.cache.store.primitives import StorePlace, UnusableError

BEATS = 4  # heartbeats in a ttl: three may be lost
REMEMBERED = 1 << 14  # most leases of other processes; beyond that all are watched anew


class Lease:
    """A name whose heartbeats tell other processes that its owner lives, until it is given back."""

    def __init__(
        self, place: StorePlace, name: str, every_s: float, later: str | None = None
    ) -> None:
        self._place, self.name, self.every_s, self._later = place, name, every_s, later

    def beat(self) -> None:
        """Send a heartbeat; do nothing if the name is gone."""
        with suppress(UnusableError):  # the commit of the part will report it
            self._place.beat(self.name)

    def give_back(self) -> None:
        """Remove the lease, unless another process has taken it over with a later generation."""
        with suppress(UnusableError):  # else it expires after the ttl, and is swept
            if self._later is None or self._place.stamp(self._later) is None:
                self._place.delete(self.name)

    @contextmanager
    def beaten(self) -> Iterator[None]:
        """Send heartbeats from a thread during the ``with`` block; none if no thread can start."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended,), name="dml-lease", daemon=True)
        with suppress(RuntimeError):
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if thread.is_alive():
                thread.join()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Send heartbeats during the ``with`` block, and then give the lease back."""
        try:
            with self.beaten():
                yield
        finally:
            self.give_back()

    def _beat(self, ended: threading.Event) -> None:
        with suppress(UnusableError):
            while not ended.wait(self.every_s) and self._place.beat(self.name):
                pass


class Leases:
    """The leases of other processes, as this process has seen them."""

    def __init__(
        self, place: StorePlace, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self.ttl_s, self._clock = place, ttl_s, clock
        self._seen: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self.taken_over = 0

    def take(self, view: EntryView, part: int, *, listed: bool = True) -> Lease | str:
        """Take a lease on a missing part, or return the name of the lease of another process.

        If ``view`` was not ``listed`` just now, only the first generation can be taken: the owner
        of a later one leaves that and all earlier ones in place.
        """
        generation = view.leased.get((part, view.version(part)), -1) if listed else -1
        if generation >= 0 and not self._dead(view.lease(part, generation)):
            return view.lease(part, generation)
        name = view.lease(part, generation + 1)
        if not self._place.put_if_absent(name, uuid.uuid4().hex.encode()):
            return name
        self.taken_over += generation >= 0
        later = view.lease(part, generation + 2)
        return Lease(self._place, name, self.ttl_s / BEATS, later)

    def ended(self, name: str) -> bool:
        """Return True if the lease ``name`` was given back or has expired."""
        return self._place.stamp(name) is None or self._dead(name)

    def _dead(self, name: str) -> bool:
        """Return True if this process has seen no heartbeat of an existing lease for the ttl."""
        stamp, now = self._place.stamp(name), self._clock()
        if stamp is None:
            return False
        with self._lock:
            known, since = self._seen.get(name, ("", now))
            if known != stamp:
                if len(self._seen) >= REMEMBERED:
                    self._seen.clear()
                self._seen[name] = stamp, now
                return False
            return now - since >= self.ttl_s
