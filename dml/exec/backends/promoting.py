"""This file moves a stage from threads to processes where its functions hold Python's lock.

Two threads that run Python take turns: each is on a processor for half of the time that it works.
That is what is measured, on slices long enough to be worth a process, while at least two run. Only
functions that are proven pure may move, since slices that threads had begun are begun again.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Unpack

from dml.exec.backends.crew import CrewFeed
from dml.exec.backends.processes import Processes
from dml.exec.backends.threads import Busy, Threads
from dml.exec.job import Job
from dml.exec.meter import Tallies
from dml.exec.slices import Options, Outcome
from dml.expr.ops.lifted import LiftedNode
from dml.plan import Stage

SLICES, SLICE_S = 4, 0.005  # so many slices are looked at, and are so long on average
SHARE = 0.65  # of the time in which two or more threads work, spent on a processor: 1/2 is Python
WORTH = 8  # tasks that must be left: a process takes a third of a second to start


@dataclasses.dataclass(frozen=True, slots=True)
class Rest(Sequence[Any]):
    """The tasks of a run from number ``first`` on."""

    tasks: Sequence[Any]
    first: int

    def __len__(self) -> int:
        return max(0, len(self.tasks) - self.first)

    def __getitem__(self, i: Any) -> Any:
        return self.tasks[self.first + i]


class PromotingFeed:
    """Partitions from threads, until it shows that processes would be faster; then from those."""

    def __init__(
        self, feed: CrewFeed, busy: Busy, tasks: int, onwards: Callable[[int, bool], CrewFeed]
    ) -> None:
        self.feed, self.busy, self.tasks, self.onwards = feed, busy, tasks, onwards
        self.unsettled, self.watching = True, True

    def next(self) -> Outcome | None:
        """The next partition; None at the end."""
        outcome = self.feed.next()
        if self.watching and outcome is not None and outcome.done:
            self._look(self.feed.at[0] + 1)
        return outcome

    def _look(self, following: int) -> None:
        """Go on in processes from task ``following`` on, if that is worth it."""
        if self.tasks - following < WORTH:
            self.watching = False
        elif self.busy.slices >= SLICES:
            # one look is enough where threads do run side by side
            self.watching = False
            if self.busy.seconds >= SLICES * SLICE_S and self.busy.share < SHARE:
                self.feed.close()
                self.feed = self.onwards(following, self.unsettled)

    def release(self) -> None:
        """The partition given last is not held any more."""
        self.feed.release()

    def settled(self) -> None:
        """Every schema is known."""
        self.unsettled = False
        self.feed.settled()

    def close(self) -> None:
        """Stop."""
        self.feed.close()


class Promoting:
    """Driver of ``executor="auto"``: threads, or processes once they are known to be faster."""

    # Stages that have moved: their next epoch begins in processes.
    moved: ClassVar[weakref.WeakSet[Stage]] = weakref.WeakSet()

    def open(
        self, tasks: Sequence[Any], job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> CrewFeed | PromotingFeed:
        """Begin the tasks of ``job``; for the rest see ``Options``."""
        if job.stage in self.moved:
            return Processes().open(tasks, job, tallies, **options)
        threads = Threads()
        feed = threads.open(tasks, job.starts(tallies.mine), **options)
        if job.links or not movable(job.stage):
            return feed

        def onwards(first: int, unsettled: bool) -> CrewFeed:  # noqa: FBT001
            self.moved.add(job.stage)
            options["settling"] = bool(options.get("settling")) and unsettled
            return Processes().open(Rest(tasks, first), job, tallies, **options)

        return PromotingFeed(feed, threads.busy, len(tasks), onwards)


def movable(stage: Stage) -> bool:
    """True if the stage reads files, calls functions as they are, and all are proven pure."""
    called = [
        node.calls
        for node in stage.steps
        if node.calls is not None and not isinstance(node, LiftedNode)
    ]
    source = stage.source
    if not called or any(fn.purity for fn in called) or not source.unit_count:
        return False
    return source.stored_bytes(source.unit(0), stage.columns) > 0
