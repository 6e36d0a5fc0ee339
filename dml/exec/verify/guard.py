"""This file watches a run: some of its atoms, on their way, are made again by the plan as written.

What a stage gives of such an atom stops here until both plans have made the same of it. If they
have not, nothing of it goes on: the run is begun again as it was written, or ends with an error
where rows of the epoch are gone already.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from dml.errors import (
    MemoryContractError,
    SourceError,
    VerificationError,
    VerificationWarning,
    WorkerLostError,
)
from dml.events import Verified
from dml.exec.budget import calls_bytes
from dml.exec.job import Job
from dml.exec.stream import START, Streaming
from dml.exec.verify.apart import Atom, Made, apart, stepped, turns_of
from dml.exec.verify.compare import difference
from dml.exec.verify.scope import Scope
from dml.exec.work import Piece
from dml.expr.block import Block
from dml.expr.delivery import finished
from dml.expr.fingerprint import digest
from dml.expr.flow import At, nobody_counts, nothing_kept, untyped

if TYPE_CHECKING:
    from dml.expr.flow import Compute, Flow, Position
    from dml.expr.schema import Schema
    from dml.plan import Plan

NAME = "PlansDiffer"
# Blocks of an atom that exist at one time: as read, as both plans made it, and on the way.
COPIES = 6
# Errors that say nothing of rows.
OUTER = (MemoryContractError, SourceError, WorkerLostError)

_log = logging.getLogger("dml")


class Rows(Protocol):
    """The rows of an atom, wherever they are kept; None where there are none."""

    def read(self, epoch: int) -> Block | None:
        """With every column."""

    def read_chosen(self, epoch: int) -> Block | None:
        """As the chosen plan reads them."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """An atom of every source, what both plans made of them, and where that differs.

    ``delivered`` says that the chosen plan's rows were on their way to the user, and not made here.
    """

    naive_plan: Plan
    chosen_plan: Plan
    at_naive: At
    at_chosen: At
    atoms: Sequence[Atom]
    turns: tuple[tuple[int, ...], tuple[int, ...]]
    epoch: int
    stage_epoch: int
    naive: Made
    chosen: Made
    what: str
    delivered: bool


class Guard:
    """What is watched in one run: at most ``samples`` atoms of a pass over the first source.

    ``compute`` are the kernels that the plan as written is compared with, ``fallback`` makes the
    run as it was written; ``report`` writes down a difference and says where
    it is to be found. ``most_bytes`` is what a comparison may hold.
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
        return _Watch(self, run, job, epoch, drawn) if drawn else None

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
            where = f"no report: {type(error).__name__}: {error}"
        return VerificationError(
            "the optimized plan makes other rows than the plan as written",
            at=sample.atoms[0].unit(sample.stage_epoch).place,
            why=f"of a sampled atom, {sample.what}; see {where}",
            try_=".with_options(optimize=False), and report this with that folder",
        )


def _unheard(_name: str, _text: str) -> None:
    """Nobody listens."""


def samples(job: Job, count: int, start: Position, seed: int, epoch: int) -> list[tuple[int, int]]:
    """Places and atoms that are compared: the first that is read, others drawn by the seed.

    Of an open unit, whose atoms nobody has counted, it is the first.
    """
    reading, found = job.reading, {(int(start["unit"]), int(start["atom"]))}
    if start["unit"] >= reading.places:
        return []
    for number in range(1, count):
        draw = int.from_bytes(digest("verified", seed, epoch, number), "little")
        place = draw % reading.places
        atoms = reading.unit_at(place).atoms or 1
        found.add((place, (draw >> 64) % atoms))
    return sorted(each for each in found if each >= (start["unit"], start["atom"]))


class _Watch:
    """One opening of the stages."""

    def __init__(
        self,
        guard: Guard,
        run: Streaming,
        job: Job,
        epoch: int,
        drawn: list[tuple[int, int]],
    ) -> None:
        self.guard, self.run, self.job, self.epoch = guard, run, job, epoch
        self.pending = drawn

    def __call__(self, pieces: Sequence[Piece]) -> None:
        """Compare what the partition has of the samples, and those that it has passed over."""
        if not pieces or not self.pending:
            return
        last = pieces[-1]
        whole = last.stops
        while self.pending:
            place, atom = first = self.pending[0]
            if first > (last.place, last.atom) and not (whole and place == last.place):
                return
            self.pending.pop(0)
            if last.error is not None and first > (last.place, last.atom):
                continue  # the run ends before it
            mine = [each for each in pieces if (each.place, each.atom) == first]
            complete = whole or first != (last.place, last.atom)
            self._compare(place, atom, _made(mine) if complete else None)

    def _compare(self, place: int, atom: int, given: Made | None) -> None:
        guard = self.guard
        atoms = self._atoms(place, atom)
        reason = self._refusal(atoms, given)
        sample = None if reason else self._sample(atoms, given)
        if sample is not None:
            reason = _inconclusive(sample)
        if reason:
            guard.passed_over[reason] = guard.passed_over.get(reason, 0) + 1
        elif sample is not None and sample.what:
            raise guard.differs(sample)
        else:
            guard.verified += 1

    def _atoms(self, place: int, atom: int) -> list[Atom]:
        """The sample, and the first atom of every source beside it."""
        at = self._at(self.run.at)
        plans = cast("Plan", self.guard.scope.chosen).all
        places = itertools.chain([(place, atom)], itertools.repeat((0, 0)))
        return [Atom(plan, at, 0, *each) for plan, each in zip(plans, places, strict=False)]

    def _refusal(self, atoms: Sequence[Atom], given: Made | None) -> str:
        """Why the sample cannot be compared, "" if it can."""
        if given is not None and isinstance(given.error, OUTER):
            return "it ended in an error that says nothing of rows"
        units = [each.unit(self.epoch) for each in atoms if each.every.source.unit_count]
        sizes = (unit.nbytes // max(1, unit.atoms or 1) for unit in units)
        nodes = cast("Plan", self.guard.scope.naive).operators
        calling = max((calls_bytes(node) for node in nodes if node.inputs), default=0)
        if COPIES * sum(sizes) + calling > self.guard.most_bytes:
            return "it does not fit into what memory_limit leaves for comparing"
        return ""

    def _sample(self, atoms: Sequence[Atom], given: Made | None) -> Sample:
        scope = self.guard.scope
        naive, chosen = cast("Plan", scope.naive), cast("Plan", scope.chosen)
        at = self._at(self.run.at)
        settled = _settled(naive, chosen, at)
        at_naive = dataclasses.replace(at, compute=self.guard.compute, schemas=settled)
        turns = turns_of(naive, self.epoch), turns_of(chosen, self.epoch)
        here = None if given is None or not scope.on_blocks else (self.epoch, given)
        one, two = both((naive, chosen), (at_naive, at), atoms, turns, self.guard.epoch, given=here)
        what = "" if one.error or two.error else self._difference(one, two, naive)
        return Sample(
            *(naive, chosen, at_naive, at, atoms, turns, self.guard.epoch, self.epoch, one, two),
            what=_failure(one, two) or what,
            delivered=here is not None,
        )

    def _difference(self, one: Made, two: Made, naive: Plan) -> str:
        blocks = one.blocks, two.blocks
        if self.job.finishing and self.guard.scope.on_blocks:
            blocks = [finished(b) for b in one.blocks], [finished(b) for b in two.blocks]
        return difference(blocks[1], blocks[0], batched=naive.batched)

    def _at(self, at: At) -> At:
        """As in the run, within what comparing may hold; nothing is kept, nobody counts losses."""
        held = self.guard.most_bytes // 2
        return dataclasses.replace(
            at,
            epoch=self.guard.epoch,
            schemas=at.schemas.copy(),
            budget=held,
            hold_bytes=held,
            keep=nothing_kept,
            lost=nobody_counts,
        )


def _made(pieces: Sequence[Piece]) -> Made:
    blocks = [piece.block for piece in pieces if piece.block is not None]
    return Made(blocks, pieces[-1].error if pieces else None)


def both(
    plans: tuple[Plan, Plan],
    ats: tuple[At, At],
    atoms: Sequence[Rows],
    turns: tuple[tuple[int, ...], tuple[int, ...]],
    epoch: int,
    *,
    given: tuple[int, Made] | None = None,
) -> tuple[Made, Made]:
    """What the plan as written, and the chosen one, make of ``atoms`` alone.

    ``given`` is what the chosen plan's stages have made of the first of them, at which epoch.
    """
    naive, chosen = plans

    def as_written(plan: Plan, atom: Rows) -> Callable[[int], Made]:
        return lambda epoch: stepped(atom.read, plan.on_blocks[1:], ats[0], epoch)

    def as_chosen(plan: Plan, atom: Rows) -> Callable[[int], Made]:
        def made(epoch: int) -> Made:
            if given is not None and atom is atoms[0] and given[0] == epoch:
                return given[1]
            return stepped(atom.read_chosen, plan.on_blocks[1:], ats[1], epoch)

        return made

    one = map(as_written, naive.all, atoms)
    two = map(as_chosen, chosen.all, atoms)
    first = apart(naive, ats[0], one, turns[0]).made(epoch)
    return first, apart(chosen, ats[1], two, turns[1]).made(epoch)


def _settled(naive: Plan, chosen: Plan, at: At) -> dict[str, Schema]:
    """What is known of types in the chosen plan, by the operators of the plan as written."""
    known = {
        id(node.calls): at.schemas[node.digest.hex()]
        for plan in chosen.all
        for node in plan.operators
        if node.calls is not None and node.digest.hex() in at.schemas
    }
    return {
        node.digest.hex(): known[id(node.calls)]
        for plan in naive.all
        for node in plan.operators
        if untyped(node, at) and id(node.calls) in known
    } | dict(at.schemas)


def _inconclusive(sample: Sample) -> str:
    """Why a comparison says nothing, "" if it does."""
    if any(isinstance(made.error, OUTER) for made in (sample.naive, sample.chosen)):
        return "comparing it ended in an error that says nothing of rows"
    return "rows of it raise an error as written" if sample.naive.error is not None else ""


def _failure(naive: Made, chosen: Made) -> str:
    """An error that only the chosen plan raises."""
    if chosen.error is None or naive.error is not None or isinstance(chosen.error, OUTER):
        return ""
    return f"{type(chosen.error).__name__} instead of rows"


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
        warnings.warn(text, VerificationWarning, stacklevel=2)
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
