"""Rank 0 of a split over processes runs the pipeline and serves the other ranks.

A *reader* is the process of another rank. Rank 0 holds each batch until the reader acknowledges it,
when its training loop takes the next one. The successor of a lost reader gets held batches first.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import socket
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any

from dml.errors import DmlError, PlanError, ResumeMismatchError, WorkerLostError
from dml.exec.process.exception_codec import shipped
from dml.ranks.connection import (
    LOST,
    REFUSED,
    RankPlace,
    Wire,
    announced,
    called,
    listening,
    met,
    withdrawn,
)
from dml.ranks.shared_run import RankSeat, RankSplit

PROBE_S, PAUSE_S = 2.0, 0.05

_log = logging.getLogger("dml")


class RankSession:
    """The connection of another rank, its seat (share of a run) and its unacknowledged replies."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # one request at a time, even from two readers of one rank
        self.wire: Wire | None = None
        self.reader: threading.Thread | None = None  # the thread that serves the reader
        self.seat: RankSeat | None = None  # None once the reader knows that its share is over
        self.acked = 0
        self.state: dict[str, Any] = {}  # of the last acknowledged step
        self.kept: deque[tuple[int, Any]] = deque()  # (step, reply) that may be sent again
        self.fresh = True  # the reader has not begun to iterate

    def replace_reader(self, wire: Wire) -> threading.Thread | None:
        """Replace the rank's process by that on ``wire``; return the old one's thread, or None."""
        before, self.reader = self.reader, threading.current_thread()
        if self.wire is not None:
            self.wire.hang_up()
        self.wire, self.fresh = wire, True
        return before

    def begin(self, seat: RankSeat) -> None:
        """Start an iteration with the share ``seat``; forget the replies of the previous one."""
        self.seat, self.acked, self.state = seat, 0, seat.state_dict()
        self.kept.clear()

    def acknowledge(self, step: int) -> None:
        """Drop the replies up to element ``step``, which the rank's process has received."""
        self.acked = max(self.acked, step)
        while self.kept and self.kept[0][0] <= step:
            reply = self.kept.popleft()[1]
            self.state = reply[1] if reply[0] in {"batch", "end"} else self.state

    def connected(self) -> bool:
        """Return True while the rank's process is served and its last reply was not an error."""
        failed = bool(self.kept) and self.kept[-1][1][0] == "error"
        return self.reader is not None and self.reader.is_alive() and not failed

    def start_position(self, seat: RankSeat) -> Any:
        """Return the reply that tells a rank where it starts: epoch, acknowledged step, state."""
        return ("seat", seat.epoch, self.acked, self.state)


class Server:
    """Serves elements of ``split`` to the processes of ranks 1 to n-1, until it is closed."""

    def __init__(self, split: RankSplit, place: RankPlace, pinned: int | None) -> None:
        self.split, self.pinned = split, pinned
        self.desks = {rank: RankSession() for rank in range(1, split.n)}
        self.greeting = threading.Lock()
        self.last_word = time.monotonic()
        self.closing = self.stopped = False
        _refuse_second(place)
        self.socket = _opened(place)
        self.place = announced(place, self.socket.getsockname()[1])
        threading.Thread(target=self._accept, name="dml-split", daemon=True).start()
        # At exit, runs release their engines (weakref.finalize) after this server has served them:
        # functions registered last are called first.
        weakref.finalize(self, int)
        atexit.register(self.close)

    def _accept(self) -> None:
        while not self.stopped:
            try:
                end, _ = self.socket.accept()
            except OSError:  # a peer that is gone already, or too many open files
                time.sleep(PAUSE_S)
                continue
            name = "dml-split-reader"
            threading.Thread(target=self._serve, args=(end,), name=name, daemon=True).start()

    def _serve(self, end: Any) -> None:
        """Serve the process at socket ``end``, from its authentication until it disconnects."""
        try:
            wire = Wire(end, self.place.secret, serving=True)
        except REFUSED:
            return
        try:
            rank = self._greet(wire)
            while rank is not None:
                message = wire.receive()
                self.last_word = time.monotonic()
                reply = self._answered(self.desks[rank], wire, message)
                if reply is not None:
                    wire.send(reply)
        except LOST:
            pass  # its successor gets the unacknowledged elements
        finally:
            wire.close()

    def _greet(self, wire: Wire) -> int | None:
        """Return the rank of a process, None if it asks for another split or this server stops."""
        _, rank, n, pinned = wire.receive()
        error: DmlError | None = None
        if n != self.split.n or rank not in self.desks:
            error = PlanError(
                f"rank {rank} of {n} cannot join a split into {self.split.n}",
                why="all processes of a job must agree on the number of ranks",
                try_="the same n= in every process, or leave it to WORLD_SIZE",
            )
        elif pinned != self.pinned:
            error = PlanError(
                f"rank {rank} is pinned to epoch {pinned}, rank 0 to {self.pinned}",
                why="all ranks of a split are in the same epoch",
                try_=".epoch(k) with one k in every process, or nowhere",
            )
        if error is not None or self.stopped:
            wire.send(("closing",) if error is None else ("error", shipped(error)))
            return None
        with self.greeting:
            before = self.desks[rank].replace_reader(wire)
        wire.send(("welcome",))
        if before is not None:
            before.join()  # until all messages of the old reader are handled
        return int(rank)

    def _answered(self, desk: RankSession, wire: Wire, message: Any) -> Any:
        with desk.lock:
            if desk.wire is not wire:
                return self._overheard(desk, *message)
            try:
                return getattr(self, f"_{message[0]}")(desk, *message[1:])
            except Exception as error:  # noqa: BLE001 - raised where the reader waits
                return ("error", shipped(error))

    def _overheard(self, desk: RankSession, word: str, *message: Any) -> None:
        """Apply a late message from a process that was replaced as the rank; send no reply."""
        if word == "get":
            desk.acknowledge(message[1])
        elif word == "done":
            self._done(desk)

    def _iter(self, desk: RankSession, rank: int) -> Any:
        """Start the rank's next iteration, or continue one for a new process; return the reply."""
        if desk.seat is None or not desk.fresh:
            desk.begin(self.split.join(rank))
        desk.fresh = False
        assert desk.seat is not None  # noqa: S101 - it has just begun
        return desk.start_position(desk.seat)

    def _get(self, desk: RankSession, want: int, acked: int) -> Any:
        """Acknowledge elements up to ``acked``; return the reply with element ``want`` (from 1)."""
        desk.acknowledge(acked)
        for step, reply in desk.kept:
            if step == want:
                return reply
        reply = self._drawn(desk)
        desk.kept.append((want, reply))
        return reply

    def _drawn(self, desk: RankSession) -> Any:
        seat = desk.seat
        if seat is None:
            return ("end", desk.state, desk.acked)
        try:
            element = seat.draw()
        except StopIteration:
            return ("end", seat.state_dict(), seat.step)
        except Exception as error:  # noqa: BLE001 - raised where the reader waits
            return ("error", shipped(error))
        return ("batch", seat.state_dict(), element)

    def _load(self, desk: RankSession, state: dict[str, Any]) -> Any:
        """Resume from ``state``; in a run that has started, only acknowledge the state's step."""
        seat = desk.seat
        assert seat is not None  # noqa: S101 - only asked of a rank that iterates
        step = seat.step_of(state) if seat.step else None
        if step is None:
            seat.load_state_dict(state)
            desk.state = seat.state_dict()
        elif desk.acked <= step <= seat.step:
            desk.acknowledge(step)
        else:
            raise ResumeMismatchError(
                f"rank {seat.rank} cannot go back to step {step} alone",
                why=f"it had {desk.acked} elements, and the other ranks went on",
                try_="restart all ranks from states of the same step",
            )
        return desk.start_position(seat)

    def _close(self, desk: RankSession) -> Any:
        """Give up the rest of the rank's share; return the reply."""
        if desk.seat is not None:
            desk.seat.close()
            desk.seat = None
        return ("closed",)

    def _done(self, desk: RankSession) -> None:
        """Record that the rank's process has received the end of its share."""
        desk.seat = None

    def busy(self) -> list[int]:
        """Return the ranks that have not finished every iteration that rank 0 has begun."""
        begun = self.split.numbers
        return [
            rank
            for rank, desk in self.desks.items()
            if desk.seat is not None or begun[rank] < begun[0]
        ]

    def close(self) -> None:
        """Serve the readers to the end of their shares, then stop.

        Wait for connected readers without limit, and log a warning every ``watchdog_s`` seconds. If
        all missing readers are gone, or never came, stop once no message came for that long. Do not
        wait if this process ends by an error. Raise WorkerLostError if rank 0 has received its
        whole share and elements for another rank are left.
        """
        if self.closing:
            return
        self.closing = True
        atexit.unregister(self.close)
        if not hasattr(sys, "last_value"):
            self._serve_on()
        self._stop()
        left = sorted({seat.rank for seat in self.split.holders()} - {0})
        if left and not hasattr(sys, "last_value"):
            self._tell(left)

    def _serve_on(self) -> None:
        told = time.monotonic()
        while busy := self.busy():
            here = [rank for rank in busy if self.desks[rank].connected()]
            if not here and not self._spoken_lately():
                return
            if time.monotonic() - max(told, self.last_word) > self.split.watchdog_s:
                told = time.monotonic()
                _log.warning(
                    "Stalled: rank 0 ends once %s has its share, or closes it", _list(here)
                )
            time.sleep(0.02)

    def _stop(self) -> None:
        self.stopped = True
        withdrawn(self.place)
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # a thread in ``accept`` would keep it open
        self.socket.close()
        for desk in self.desks.values():
            if desk.wire is not None:
                desk.wire.hang_up()

    def _tell(self, left: list[int]) -> None:
        """Raise an error for ranks ``left`` with unread elements; log it if rank 0 ended early."""
        error = WorkerLostError(
            f"{_list(left)} did not read the whole share",
            why=f"nobody reads there, and nobody came for {self.split.watchdog_s:.0f} s",
            try_="start the rank again while rank 0 runs; close() a rank that is done early",
        )
        if self.split.ended(0):
            raise error
        _log.warning("%s", error)

    def _spoken_lately(self) -> bool:
        return time.monotonic() - self.last_word < self.split.watchdog_s


def _list(ranks: list[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)


def _opened(place: RankPlace) -> socket.socket:
    try:
        return listening(place.host, place.port)
    except OSError as error:
        raise PlanError(
            f"rank 0 cannot listen at {place.host}:{place.port}",
            why=error.strerror or str(error),
            try_="address= of the host that rank 0 runs on, with a port that is free",
        ) from error


def _refuse_second(place: RankPlace) -> None:
    """Raise PlanError if another rank 0 of this job runs on this host: ranks could join either."""
    known = met(place)
    if place.file is None or known is None:
        return
    try:
        called(known.host, known.port, known.secret, PROBE_S).close()
    except REFUSED:
        return
    raise PlanError(
        f"job {place.name!r} has a rank 0 already",
        why=f"it listens on port {known.port} of this host",
        try_="another job_name=, one for each split",
    )
