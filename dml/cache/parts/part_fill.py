"""Fill a part while its rows flow on to the consumer: no rows are held, and no thread waits.

The thread that makes the rows sends the heartbeats of the part's lease: a worker that hangs or runs
out of memory loses the lease, and another worker makes the same part. The first commit counts.
"""

from __future__ import annotations

import _thread
import dataclasses
import enum
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dml.cache.eviction.quota_eviction import Quota
from dml.cache.parts.blobs import Draft
from dml.cache.store.health import Standing
from dml.cache.store.leases import Lease
from dml.cache.store.primitives import OvertakenError, UnusableError

UNASKED_BYTES = 16 << 20  # bytes that are written before room is reserved: reserving takes time


class PartSource(enum.Enum):
    """The origin of the rows of a part."""

    MADE = "made"
    """Made here and committed."""
    ADOPTED = "adopted"
    """Made here, but another process committed first: these rows are from that process."""
    UNKEPT = "unkept"
    """Made here, and stored nowhere."""

    @property
    def is_stored(self) -> bool:
        """True if the rows are in the store."""
        return self is not PartSource.UNKEPT


class PartFilling:
    """An unfinished part: batches of one schema are added, and committed at the end.

    One thread at a time uses it. Failures of the store raise nothing: they are recorded in
    ``standing``, and the filling becomes void, accepts batches and stores none. A filling that is
    garbage collected is dropped. ``publish`` publishes the part, unless another process was first.
    """

    def __init__(
        self,
        key: tuple[str, int],
        draft: Draft,
        lease: Lease | None,
        *,
        standing: Standing,
        quota: Quota | None,
        publish: Callable[[PartFilling, Mapping[str, Any]], PartSource],
        clock: Callable[[], float],
    ) -> None:
        self._standing, self._quota, self._publish, self._clock = standing, quota, publish, clock
        self.folder, self.part = key
        self.draft, self.lease = draft, lease
        """The rows written so far, and the lease that marks the part as being made.

        The lease is None after too long a wait for another's.
        """
        self._held = _Held(draft, lease, os.getpid(), threading.get_ident())
        self._room_bytes = min(UNASKED_BYTES, quota.most_bytes) if quota else sys.maxsize
        self.version = 0, 0
        """Incarnation, and version within it, once committed."""
        self._begun = self._beaten = clock()
        self._apart_s = 0.0
        self._rests: float | None = None
        self._void = False
        self._drop = weakref.finalize(self, self._held.forgotten, weakref.ref(self))

    @property
    def thread(self) -> int:
        """The identifier of the thread that worked last on the part."""
        return self._held.thread

    @property
    def announced(self) -> Lease | None:
        """The lease that reserves room for the part, or None."""
        return self._held.room

    @property
    def resting(self) -> bool:
        """True if the owner is not working on the part, so that no thread waits for it."""
        return self._rests is not None

    @resting.setter
    def resting(self, value: bool) -> None:
        if value and self._rests is None:
            self._rests = self._clock()
        elif not value and self._rests is not None:
            self._apart_s += self._clock() - self._rests
            self._rests = None

    @property
    def rested_s(self) -> float:
        """Seconds since the owner began to rest; 0 while the owner works."""
        return 0.0 if self._rests is None else self._clock() - self._rests

    @property
    def cost_s(self) -> float:
        """Seconds of work so far, without pauses of the owner and without writing."""
        until = self._clock() if self._rests is None else self._rests
        return max(until - self._begun - self._apart_s, 0.0)

    @property
    def alive(self) -> bool:
        """True if the part is neither committed nor dropped."""
        return self._drop.alive

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the rows of ``batch`` now; none of them stay in memory."""
        self._held.thread = threading.get_ident()
        if self._void or not self.alive:
            return
        with self._apart(), self._failing():
            if self._has_room(self.draft.coming(batch)):
                self.draft.add(batch)
            else:
                self._end()

    def commit(self, about: Mapping[str, Any] | None = None) -> PartSource:
        """Publish the part; return MADE, ADOPTED if another process was first, or UNKEPT."""
        done = PartSource.UNKEPT
        try:
            if not self._void and self.alive:
                with self._failing():
                    done = self._publish(self, about or {})
        finally:
            self.drop()
        return done

    def drop(self) -> None:
        """Give the lease back, and remove all data that was written but not published."""
        if self._drop.detach() is not None:
            self._held.end()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Exclude the time of the ``with`` block from the cost, then send due heartbeats."""
        begun = self._clock()
        try:
            yield
        finally:
            now = self._clock()
            self._apart_s += now - begun
            if self.lease is not None and now - self._beaten >= self.lease.every_s:
                self._beaten = now
                for each in filter(None, (self.lease, self.announced)):
                    each.beat()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Make the filling void, so that it stores no more, if the ``with`` block fails."""
        try:
            yield
        except (OvertakenError, pa.ArrowException):
            self._end()
        except UnusableError as error:
            self._end()
            self._standing.give_up(error)

    def _has_room(self, nbytes: int) -> bool:
        """Return True if the part may have ``nbytes``; reserve up to twice as much at a time."""
        for asked in (2 * nbytes, nbytes):
            if self._quota is None or nbytes <= self._room_bytes:
                break
            self._held.room = self._quota.announced(asked, self._held.room)
            self._room_bytes = asked if self._held.room else 0
        return nbytes <= self._room_bytes

    def _end(self) -> None:
        """Store no more rows, but keep the lease, since the rows are still being made."""
        self._void = True
        self.draft.drop()
        if self._held.room is not None:
            self._held.room.give_back()


@dataclasses.dataclass
class _Held:
    """The state of a filling that its finalizer needs."""

    draft: Draft
    lease: Lease | None
    process: int
    thread: int
    room: Lease | None = None

    def forgotten(self, owner: weakref.ref[PartFilling]) -> None:
        """End a filling that was garbage collected, or that is alive when the process ends.

        A thread that happens to collect another thread's garbage must not wait for a network: the
        answer may depend on that other thread. No locks are taken, since that thread may hold them.
        """
        mine = self.thread == threading.get_ident()
        if mine or self.draft.near or owner() is not None:
            self.end()
        else:
            _thread.start_new_thread(self.end, ())

    def end(self) -> None:
        """Remove all data and leases, unless another process owns them."""
        if os.getpid() == self.process:
            self.draft.drop()
            for each in (self.room, self.lease):
                if each is not None:
                    each.give_back()
