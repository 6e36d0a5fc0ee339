"""This file lets a rank wait for others: not silently, and not for those who cannot come."""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING

from dml.errors import DmlError, PlanError, WorkerLostError

if TYPE_CHECKING:
    from dml.exec.split.shared import Seat, Split

# Ranks that garbage collection closed tell nobody: whoever waits looks again after so long.
LOOK_S = 0.1
TRY = "draw all ranks at once, each in a thread or process of its own; close() one that is done"

_log = logging.getLogger("dml")


class Patience:
    """One wait of ``seat``; counts the time during which nothing moved anywhere in the split."""

    def __init__(self, seat: Seat, split: Split) -> None:
        self.seat, self.split = seat, split
        self.moves, self.since = split.moves, 0.0

    def wait(self) -> None:
        """Wait a little; with the lock. Raises when nobody can end the wait."""
        split, now = self.split, monotonic()
        if split.moves != self.moves or not self.since or self.seat.run.pulling:
            self.moves, self.since = split.moves, now
        if now - self.since > split.watchdog_s:
            self._look(now - self.since)
            self.since = now
        split.changed.wait(min(LOOK_S, split.watchdog_s))

    def _look(self, waited_s: float) -> None:
        """Say who is waited for; raise if none of them will ever draw."""
        slow = self._slow()
        names = ", ".join(f"rank {seat.rank}" for seat in slow) or "the epoch before"
        if not slow or not all(map(self._gone, slow)):
            _log.warning("Stalled: rank %d waits for %s since %.0f s", *self._told(names, waited_s))
            return
        raise self._error(slow, names, waited_s)

    def _told(self, names: str, waited_s: float) -> tuple[int, str, float]:
        return self.seat.rank, names, waited_s

    def _slow(self) -> list[Seat]:
        """Who must draw, or leave, before this rank can go on."""
        before = self.split.before(self.seat.run)
        open_ = [seat for run in before for seat in run.seats if not (seat.closed or seat.done)]
        mine = self.seat.rank
        return [seat for seat in (*self.split.holders(), *open_) if seat.rank != mine]

    def _gone(self, seat: Seat) -> bool:
        holder = seat.holder
        return holder is None or holder is threading.current_thread() or not holder.is_alive()

    def _error(self, slow: list[Seat], names: str, waited_s: float) -> DmlError:
        what = f"rank {self.seat.rank} cannot go on, as {names} takes nothing"
        why = f"nothing moved for {waited_s:.0f} s, and what may wait for slow ranks is made"
        if any(seat.holder is threading.current_thread() for seat in slow):
            return PlanError(what, why=f"{why}; they are drawn by this very thread", try_=TRY)
        return WorkerLostError(
            what, why=f"{why}; whoever drew there is gone, or never came", try_=TRY
        )
