"""Move stages from threads to processes if their functions hold the GIL.

Threads that run Python take turns: together they use the processor time of one thread. This is
measured while at least two slices run that are long enough to be worth a process. Only functions
declared or proven pure may move, since slices that threads have begun are repeated in processes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from dml.exec.delivery.meter import Tallies
from dml.exec.drivers.crew import CrewFeed
from dml.exec.drivers.threads import Threads
from dml.exec.slicing.slice_sizes import TAKING_TURNS
from dml.exec.tasks.job import Job
from dml.exec.tasks.slices import Arriving, Options, Outcome
from dml.expr.node import Node
from dml.ops.row.lifted import LiftedNode
from dml.physical.plan import Stage

if TYPE_CHECKING:
    from dml.exec.drivers.processes import Processes

SLICES, SLICE_S = 4, 0.005  # measured slices, and their least mean duration
WORTH = 8  # least number of tasks left: a process takes a third of a second to start


class PromotingFeed:
    """Partitions from threads, until processes are found to be faster; then from processes.

    The sums are those of ``Outcome``, over slices that ended while others ran.
    """

    def __init__(
        self, feed: CrewFeed, tasks: int, onwards: Callable[[int, bool], CrewFeed]
    ) -> None:
        self.feed, self.tasks, self.onwards = feed, tasks, onwards
        self.unsettled, self.watching = True, True
        self.slices, self.seconds, self.cpu_s, self.share_s = 0, 0.0, 0.0, 0.0

    def next(self) -> Outcome | None:
        """Return the next partition; None if exhausted."""
        outcome = self.feed.next()
        if self.watching and outcome is not None:
            if outcome.beside > 1:
                self.slices += 1
                self.seconds += outcome.seconds
                self.cpu_s += outcome.cpu_s
                self.share_s += outcome.share_s
            if outcome.done:
                self._look(self.feed.at[0] + 1)
        return outcome

    def _look(self, following: int) -> None:
        """Continue in processes from task ``following`` on, if that is worthwhile."""
        if self.tasks - following < WORTH:
            self.watching = False
        elif self.slices >= SLICES:
            # one measurement is enough if threads do run in parallel
            self.watching = False
            low, high = TAKING_TURNS
            turns = low < self.cpu_s / max(self.share_s, 1e-9) < high  # slices that wait use less
            if self.seconds >= SLICES * SLICE_S and turns:
                self.feed.close()
                self.feed = self.onwards(following, self.unsettled)

    def settled(self) -> None:
        """Tell the driver that every schema is known."""
        self.unsettled = False
        self.feed.settled()

    def close(self) -> None:
        """Stop the driver."""
        self.feed.close()


class MovingFeed:
    """Slices of a lane on threads; on processes once their functions are known to hold the GIL.

    Slices in progress end where they run; results are in order until ``unordered`` is called.
    """

    threaded = True

    def __init__(self, feed: CrewFeed, onwards: Callable[[], CrewFeed]) -> None:
        self.feed, self.onwards = feed, onwards
        self.tasks: dict[int, tuple[CrewFeed, int]] = {}
        self.order = dict[int, None]()
        self.count, self.at = 0, (0,)
        self.in_order = True
        self.feeds = [feed]

    def give(self, task: Any) -> int:
        """Add a task, and return its number."""
        number, self.count = self.count, self.count + 1
        self.tasks[number] = self.feed, self.feed.give(task)
        self.order[number] = None
        return number

    def next(self, more: Callable[[], None] | None = None) -> Outcome | None:
        """Return the next partition; if unordered, the next of the feed with the oldest task."""
        first = next(iter(self.order))
        feed, _ = self.tasks[first]
        outcome = feed.next(more)
        if outcome is not None and not self.in_order:
            first = next(n for n in self.order if self.tasks[n] == (feed, feed.at[0]))
        self.at = (first,)
        if outcome is None or outcome.done:
            del self.order[first]
        return outcome

    def forget(self, number: int) -> None:
        """Remove a finished task, and stop threads that have no task left."""
        feed, own = self.tasks.pop(number)
        feed.forget(own)
        if feed is not self.feed and all(other is not feed for other, _ in self.tasks.values()):
            feed.close()

    def unordered(self) -> None:
        """Deliver partitions as they are made, those of threads before those of processes."""
        self.in_order = False
        for feed in self.feeds:
            feed.unordered()

    @property
    def parallel(self) -> int:
        """Number of slices that may run at once."""
        return self.feed.parallel

    def narrow(self, width: int | None) -> None:
        """Run at most ``width`` slices at once from now on; None ends a bound."""
        self.feed.narrow(width)

    def unlocked(self) -> None:
        """Note that slices do not hold the GIL."""
        self.feed.unlocked()

    def alone(self) -> None:
        """Give all further tasks to processes."""
        self.threaded = False
        self.feed = self.onwards()
        self.feeds.append(self.feed)
        if not self.in_order:
            self.feed.unordered()

    @property
    def ready(self) -> bool:
        """Whether ``next`` returns a partition without waiting for a worker."""
        return any(feed.ready for feed in self.feeds)

    @property
    def unfinished(self) -> int:
        """Number of tasks that have not delivered all their partitions."""
        return sum(feed.unfinished for feed in self.feeds)

    def settled(self) -> None:
        """Do nothing: no slice of a lane has to wait until types have settled."""

    def close(self) -> None:
        """Stop all drivers."""
        for feed in self.feeds:
            feed.close()


class Promoting:
    """Driver of ``executor="auto"``: threads, or processes once they are known to be faster."""

    # Stages that have moved, and lanes by the digest of their last operator: their next epoch
    # begins in processes.
    moved: ClassVar[weakref.WeakSet[Stage]] = weakref.WeakSet()
    lanes: ClassVar[set[bytes]] = set()

    def open(
        self,
        tasks: Sequence[Any] | Arriving,
        job: Job,
        tallies: Tallies,
        **options: Unpack[Options],
    ) -> CrewFeed | PromotingFeed | MovingFeed:
        """Begin the tasks of ``job``, and return their feed; see ``Options`` for ``options``."""
        if isinstance(tasks, Arriving):
            return self._slices(tasks, job, tallies, **options)
        if job.stage in self.moved:
            return processes().open(tasks, job, tallies, **options)
        feed = Threads().open(tasks, job.starts(tallies.mine), **options)
        if job.links or not movable(job.stage):
            return feed

        def onwards(first: int, unsettled: bool) -> CrewFeed:  # noqa: FBT001
            self.moved.add(job.stage)
            options["settling"] = bool(options.get("settling")) and unsettled
            rest = [tasks[number] for number in range(first, len(tasks))]
            return processes().open(rest, job, tallies, **options)

        return PromotingFeed(feed, len(tasks), onwards)

    def _slices(
        self, tasks: Arriving, job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> CrewFeed | MovingFeed:
        name = job.stage.steps[-1].digest
        if name in self.lanes:
            return processes().open(tasks, job, tallies, **options)
        feed = Threads().open(tasks, job.starts(tallies.mine), **options)

        def onwards() -> CrewFeed:
            self.lanes.add(name)
            return processes().open(Arriving(), job, tallies, **options)

        return MovingFeed(feed, onwards) if pure(job.stage.steps) else feed


def pure(steps: Sequence[Node]) -> bool:
    """Return whether ``steps`` call functions that were not lifted, and all of these are pure."""
    called = [
        node.calls for node in steps if node.calls is not None and not isinstance(node, LiftedNode)
    ]
    return bool(called) and not any(fn.purity for fn in called)


def movable(stage: Stage) -> bool:
    """Return whether ``stage`` reads files and calls only functions declared or proven pure."""
    source = stage.source
    if not pure(stage.steps) or not source.unit_count:
        return False
    return source.stored_bytes(source.unit(0), stage.columns) > 0


def processes() -> Processes:
    """Return the driver of processes, whose module is loaded when first needed."""
    from dml.exec.drivers.processes import Processes  # noqa: PLC0415

    return Processes()
