"""This file fills a part while its rows flow on to whoever asked: nothing is held, nobody waits.

Its lease is beaten by work, and by no thread: whoever hangs, or is stopped for want of memory,
loses it, and another makes the part, too. The first to commit is the one that counts.
"""

from __future__ import annotations

import _thread
import dataclasses
import enum
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from dml.exec.store.blobs import Draft
from dml.exec.store.leases import Lease
from dml.exec.store.primitives import OvertakenError, UnusableError


class Source(enum.Enum):
    """Where the rows of a part came from."""

    MADE = "made"
    """They were made here, and are there now."""
    ADOPTED = "adopted"
    """They were made here and by another, who was first: these are that one's."""
    UNKEPT = "unkept"
    """They were made here, and are in no store."""

    @property
    def kept(self) -> bool:
        """Whether the store has them."""
        return self is not Source.UNKEPT


class Keeper(Protocol):
    """What a filling is committed to."""

    @property
    def unasked_bytes(self) -> int:
        """What may be written before there must be room for it."""

    def room(self, nbytes: int, before: Lease | None) -> Lease | None:
        """Room for so many bytes, instead of ``before``; None if there is none."""

    def give_up(self, error: UnusableError) -> None:
        """The place has failed."""

    def committed(self, filling: Filling, about: Mapping[str, Any]) -> Source:
        """Let everybody see it, unless another was first; raises UnusableError."""


class Filling:
    """One part that is being made: batches of one schema are added, and committed at the end.

    For one thread at a time, which may change. Nothing is raised for the store's sake: then it is
    void, takes what comes, and keeps nothing. Whoever forgets it, drops it.
    """

    def __init__(
        self,
        keeper: Keeper,
        key: tuple[str, int],
        draft: Draft,
        lease: Lease | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keeper, self._clock = keeper, clock
        self.folder, self.part = key
        self._held = _Held(draft, lease, os.getpid(), threading.get_ident())
        self._room_bytes = keeper.unasked_bytes
        self.version = 0, 0
        """Incarnation and version in it, once it is committed."""
        self._begun = self._beaten = clock()
        self._apart_s = 0.0
        self._rests: float | None = None
        self._void = False
        self._drop = weakref.finalize(self, self._held.forgotten, weakref.ref(self))

    @property
    def thread(self) -> int:
        """The one that worked last."""
        return self._held.thread

    @property
    def draft(self) -> Draft:
        """What has been written."""
        return self._held.draft

    @property
    def lease(self) -> Lease | None:
        """What says that somebody works on it; None after too long a wait for another's."""
        return self._held.lease

    @property
    def announced(self) -> Lease | None:
        """What says that there must be room for it."""
        return self._held.room

    @property
    def resting(self) -> bool:
        """Whether its owner says that nobody works on it, so that nobody of this process waits."""
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
        """Seconds since its owner left it; 0 while somebody works on it."""
        return 0.0 if self._rests is None else self._clock() - self._rests

    @property
    def cost_s(self) -> float:
        """Seconds of work so far, without rests and without writing."""
        until = self._clock() if self._rests is None else self._rests
        return max(until - self._begun - self._apart_s, 0.0)

    @property
    def alive(self) -> bool:
        """Whether it is neither committed nor dropped."""
        return self._drop.alive

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows that follow those before; they are written now, and not held."""
        self._held.thread = threading.get_ident()
        if self._void or not self.alive:
            return
        with self._apart(), self._failing():
            if self._has_room(self.draft.coming(batch)):
                self.draft.add(batch)
            else:
                self._end()

    def commit(self, about: Mapping[str, Any] | None = None) -> Source:
        """Let everybody see it: MADE, ADOPTED if another was first, or UNKEPT."""
        done = Source.UNKEPT
        try:
            if not self._void and self.alive:
                with self._failing():
                    done = self._keeper.committed(self, about or {})
        finally:
            self.drop()
        return done

    def drop(self) -> None:
        """Give the lease back, and leave nothing."""
        if self._drop.detach() is not None:
            self._held.end()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Time of writing is not that of making; the lease is beaten at the end of it."""
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
        """What fails makes it void."""
        try:
            yield
        except (OvertakenError, pa.ArrowException):
            self._end()
        except UnusableError as error:
            self._end()
            self._keeper.give_up(error)

    def _has_room(self, nbytes: int) -> bool:
        """Whether so many bytes may be written in all: some more are asked for at a time."""
        for asked in (2 * nbytes, nbytes):
            if nbytes <= self._room_bytes:
                break
            self._held.room = self._keeper.room(asked, self._held.room)
            self._room_bytes = asked if self._held.room else 0
        return nbytes <= self._room_bytes

    def _end(self) -> None:
        """Keep nothing, and leave the lease: its rows are still being made."""
        self._void = True
        self.draft.drop()
        if self._held.room is not None:
            self._held.room.give_back()


@dataclasses.dataclass
class _Held:
    """What a filling has, and others see."""

    draft: Draft
    lease: Lease | None
    process: int
    thread: int
    room: Lease | None = None

    def forgotten(self, owner: weakref.ref[Filling]) -> None:
        """Nobody has it any more, or the process ends while somebody does.

        A thread that collects another's garbage by chance does not wait for a network: the answer
        may have to come from it. No locks are taken, as it may hold them.
        """
        mine = self.thread == threading.get_ident()
        if mine or self.draft.near or owner() is not None:
            self.end()
        else:
            _thread.start_new_thread(self.end, ())

    def end(self) -> None:
        """Nothing of it is left, unless another process has it."""
        if os.getpid() == self.process:
            self.draft.drop()
            for each in (self.room, self.lease):
                if each is not None:
                    each.give_back()
