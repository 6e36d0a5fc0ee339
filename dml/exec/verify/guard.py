"""This file watches a run that checks itself, and decides what becomes of it.

Where the two plans of a pipeline differ on a sample, nothing of it goes on: the run is begun again
as it was written, or ends with an error where rows of the epoch are gone already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from dml.errors import VerificationError, VerificationWarning
from dml.events import Verified
from dml.exec.job import Job
from dml.exec.stream import START, Streaming
from dml.exec.verify.sample import Sample, samples
from dml.exec.verify.scope import Scope
from dml.exec.verify.watch import Watch
from dml.exec.work import Piece
from dml.expr.delivery import finished
from dml.expr.doors import warn

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import Compute, Flow, Position

NAME = "PlansDiffer"


class Guard:
    """What is watched in one run: at most ``samples`` of a pass over the first source.

    ``compute`` are the kernels that the plan as written is compared with, ``fallback`` makes the
    run as it was written; ``report`` writes down a difference and says where it is to be found.
    ``most_bytes`` is what a comparison may hold.
    """

    def __init__(  # noqa: PLR0917 (each is named where it is made)
        self,
        scope: Scope,
        samples: int,
        most_bytes: int,
        compute: Compute,
        fallback: Callable[[], Streaming],
        report: Callable[[Sample], str],
    ) -> None:
        self.scope, self.samples, self.most_bytes = scope, samples, most_bytes
        self.compute, self.fallback, self.report = compute, fallback, report
        self.hear: Callable[[str, str], None] = _unheard
        self.fallen: Streaming | None = None
        self.epoch = 0
        self.verified = self.differing = 0
        self.passed_over: dict[str, int] = {}

    def event(self, run: str, at: float) -> Verified:
        """What was done so far."""
        reasons = [f"{reason} ({n} times)" for reason, n in self.passed_over.items()]
        return Verified(
            run=run,
            at=at,
            verified=self.verified,
            differing=self.differing,
            scope=self.scope.text(),
            unverified="; ".join(reasons),
        )

    def told(self, hear: Callable[[str, str], None]) -> None:
        """Tell ``hear`` of differences, by a name and a text."""
        self.hear = hear

    def running(self, run: Streaming) -> Streaming:
        """``run``, or the one that it has become."""
        return self.fallen or run

    def watch(
        self, run: Streaming, job: Job, epoch: int, start: Position | None
    ) -> Callable[[Sequence[Piece]], None] | None:
        """Looks at the partitions of a stage that is opened at ``epoch``; None if there is no need.

        Raises VerificationError for a partition with a sample that differs.
        """
        if self.scope.chosen is None or self.fallen is not None:
            return None
        began = start or START
        drawn = samples(job, self.samples, began, run.at.seed, epoch)
        return Watch(self, run, job, epoch, drawn) if drawn else None

    def guarded(
        self, open_: Callable[[], Flow], epoch: int, position: Position | None, *, finishing: bool
    ) -> Flow:
        """The flow that ``open_`` gives of ``epoch``, or, if it differs, the plan's as written.

        ``finishing`` is true if columns are to be as they are delivered.
        """
        self.epoch = epoch
        return _Guarded(self, open_, fresh=position is None, finishing=finishing)

    def differs(self, sample: Sample) -> VerificationError:
        """Write down a difference; gives the error that it is once rows are gone."""
        self.differing += 1
        try:
            where = self.report(sample)
        except Exception as error:  # noqa: BLE001 - the report must not cost the run
            where = f"no report, which ended in {type(error).__name__}"
        return VerificationError(
            "the optimized plan makes other rows than the plan as written",
            at=sample.place,
            why=f"of a sample, {sample.what}; see {where}",
            try_=".with_options(optimize=False), and report this with that folder",
        )


def _unheard(_name: str, _text: str) -> None:
    """Nobody listens."""


class _Guarded:
    """A flow that goes over to the plan as written while nothing was given.

    A position of the chosen plan is none of the plan as written: what is resumed is not ``fresh``.
    """

    def __init__(
        self, guard: Guard, open_: Callable[[], Flow], *, fresh: bool, finishing: bool
    ) -> None:
        self.guard, self.fresh, self.finishing = guard, fresh, finishing
        self.flow: Flow | None = None
        try:
            self.flow = open_()
        except VerificationError as error:
            self._fall(error)

    def pull(self, most: int) -> Block | None:
        """As the flow does."""
        flow = cast("Flow", self.flow)
        try:
            block = flow.pull(most)
        except VerificationError as error:
            block = self._fall(error).pull(most)
        self.fresh = False
        fallen = self.guard.fallen is not None and self.finishing
        return finished(block) if fallen and block is not None else block

    def _fall(self, error: VerificationError) -> Flow:
        """Go over to the plan as written; raises ``error`` if that is too late."""
        what = "the epoch is begun again as written" if self.fresh else "the run ends"
        text = f"{error.what}: {error.why}; {what}"
        self.guard.hear(NAME, text)
        warn(text, VerificationWarning)
        if not self.fresh:
            raise error
        if self.flow is not None:
            self.flow.close()
        self.guard.fallen = self.guard.fallback()
        self.flow = self.guard.fallen.flow(self.guard.epoch, None)
        return self.flow

    def position(self) -> Position:
        """As the flow does; None before anything was given, when it may become another."""
        return cast("Position", None) if self.fresh else cast("Flow", self.flow).position()

    def close(self) -> None:
        """As the flow does."""
        if self.flow is not None:
            self.flow.close()
