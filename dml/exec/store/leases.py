"""This file keeps two processes from making one part at the same time, as far as advice can.

A lease is a name with a generation; its owner beats. Whoever has seen the stamp of the highest one
unchanged for the ttl, on their own monotonic clock, makes the next generation: one of them is
first. Nobody is held to it: what counts is who commits.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from dml.exec.store.layout import View
from dml.exec.store.primitives import Place, UnusableError

BEATS = 4  # in a ttl: three may be lost
REMEMBERED = 1 << 14  # leases of others; then all are watched anew


class Lease:
    """A name that says this process lives: somebody beats it, and gives it back."""

    def __init__(self, place: Place, name: str, every_s: float, later: str | None = None) -> None:
        self._place, self.name, self.every_s, self._later = place, name, every_s, later

    def beat(self) -> None:
        """Say so once more; nothing if the name is gone."""
        with suppress(UnusableError):  # whoever makes the part will be told when it is committed
            self._place.beat(self.name)

    def give_back(self) -> None:
        """Nobody has it; if another took it over meanwhile, its name stays below theirs."""
        with suppress(UnusableError):  # else others wait for the ttl, and the janitor comes
            if self._later is None or self._place.stamp(self._later) is None:
                self._place.delete(self.name)

    @contextmanager
    def beaten(self) -> Iterator[None]:
        """A thread beats it while the block runs; without threads others may do the same work."""
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
    def held(self) -> Iterator[None]:
        """The same, and then it is given back."""
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
    """What this process has seen of the leases of others."""

    def __init__(
        self, place: Place, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self.ttl_s, self._clock = place, ttl_s, clock
        self._seen: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self.taken_over = 0

    def take(self, view: View, part: int, *, listed: bool = True) -> Lease | str:
        """A lease on a part that is not there; the name of the one that is in the way.

        Without a listing of just now, only the first generation can be taken: whoever has a later
        one leaves it and all before it where they are.
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
        """Whether a lease is gone, as it was given back, or its owner is."""
        return self._place.stamp(name) is None or self._dead(name)

    def _dead(self, name: str) -> bool:
        """Whether a lease that is there has not beaten for the ttl, as far as was seen here."""
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
