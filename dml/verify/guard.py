"""Guard a run that checks itself: detect differences between its two plans, and act on them.

If the plan as written and the chosen plan differ on a sample, its rows are not delivered: the epoch
restarts with the plan as written, or the run ends with an error if rows of the epoch were
delivered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from dml.base.user_line import warn
from dml.data.block import Block
from dml.data.comparison import difference, part
from dml.errors import DmlError, FunctionTimeoutError, VerificationError, VerificationWarning
from dml.events import Verified
from dml.exec.memory.memory_shares import calls_bytes
from dml.exec.streams.stream import START, Streaming
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import Piece
from dml.expr.flow import At, Compute, Flow, Position, nothing_kept
from dml.physical.plan import Plan
from dml.udfs.calling.batch_arrays import finished
from dml.verify.isolated_run import AtomSpan, MadeBlocks, Where, span_from, stepped, turns_of
from dml.verify.sample import Sample, both, failure, inconclusive, samples, settled
from dml.verify.scope import Scope

# A comparison has room for so many copies of its rows: those of each plan, in and out of operators.
PARTS = 4


@dataclasses.dataclass(eq=False)
class SampleWatch:
    """The check of a run's stages, opened at ``epoch``, which is called with each partition.

    ``pending`` has the atoms of each sample that is not compared yet.
    """

    guard: Guard
    run: Streaming
    job: Job
    epoch: int
    plans: tuple[Plan, Plan]
    pending: list[list[Where]]
    # Output of samples that must still arrive, by atom in order; and arrived rows of the first.
    expected: dict[Where, tuple[MadeBlocks, Sample]] = dataclasses.field(default_factory=dict)
    arrived: int = 0

    def __call__(self, pieces: Sequence[Piece]) -> None:
        """Compare the sampled rows of a partition. Raise VerificationError if they differ."""
        if not pieces or not (self.pending or self.expected):
            return
        last = pieces[-1]
        while self.pending and _reaches(self.pending[0][0], last):
            atoms = self.pending.pop(0)
            if last.error is None or atoms[0] <= (last.place, last.atom):
                self._compare(atoms)
        while self.expected and _reaches(next(iter(self.expected)), last):
            where = next(iter(self.expected))
            whole = last.stops or where < (last.place, last.atom)
            self._follow(where, pieces, whole=whole)
            if not whole:
                return
            del self.expected[where]
            self.arrived = 0

    def _compare(self, atoms: Sequence[Where]) -> None:
        """Run both plans on a sample's ``atoms``. Raise VerificationError if their rows differ."""
        guard = self.guard
        try:
            found = self._sample(atoms)
        except Exception as error:  # noqa: BLE001 - a bug here must not cost the run
            found = f"comparing it failed with {type(error).__name__}"
        reason = found if isinstance(found, str) else inconclusive(found)
        if reason:
            guard.passed_over[reason] = guard.passed_over.get(reason, 0) + 1
            for where in atoms:
                self.expected.pop(where, None)
        elif isinstance(found, Sample) and found.what:
            raise guard.differs(found)
        else:
            guard.verified += 1

    def _follow(self, where: Where, pieces: Sequence[Piece], *, whole: bool) -> None:
        """Compare delivered rows of the atom ``where``, in ``pieces``, with expected rows.

        The chosen plan made the expected rows in this process. ``whole`` is True if all rows of the
        atom have arrived with ``pieces``.
        """
        made, sample = self.expected[where]
        mine = [piece for piece in pieces if (piece.place, piece.atom) == where]
        given = [piece.block for piece in mine if piece.block is not None]
        if made.error is not None or any(piece.error is not None for piece in mine):
            return
        if any(loss.timed for piece in pieces for loss in piece.losses):
            return  # rows are missing that another run may have
        start = self.arrived
        self.arrived += sum(block.n for block in given)
        wanted = part(made.blocks, start, None if whole else self.arrived)
        what = difference(given, wanted, batched=False)
        if what:
            what = f"what came is not what the same plan makes here, {what}"
            found = dataclasses.replace(
                sample, naive=MadeBlocks(wanted), chosen=MadeBlocks(given), what=what
            )
            raise self.guard.differs(found)

    def _spans(self, atoms: Sequence[Where]) -> list[AtomSpan]:
        """Return the span of ``atoms``, and a span of the first atoms of every other source."""
        at = self._at()
        first, *others = self.plans[1].all
        spans = [AtomSpan(first, at, atoms)]
        for plan in others:
            whole = AtomSpan(plan, at, ())
            spans.append(AtomSpan(plan, at, span_from(whole.reading(self.epoch), (0, 0))))
        return spans

    def _refusal(self, spans: Sequence[AtomSpan]) -> str:
        """Return why the sample cannot be compared within the memory limit; "" if it can."""
        held_bytes = sum(each.held_bytes(self.epoch) for each in spans)
        nodes = (node for node in self.plans[0].operators if node.inputs)
        calling = max(map(calls_bytes, nodes), default=0)
        if held_bytes + calling > self.guard.most_bytes:
            return "it does not fit into what memory_limit leaves for comparing"
        return ""

    def _sample(self, atoms: Sequence[Where]) -> Sample | str:
        """Run both plans on ``atoms``; return the sample, or why that is impossible."""
        spans = self._spans(atoms)
        if reason := self._refusal(spans):
            return reason
        naive, chosen = self.plans
        at = self._at()
        known = settled(naive, chosen, at)
        ats = dataclasses.replace(at, compute=self.guard.compute, schemas=known), at
        turns = turns_of(naive, self.epoch), turns_of(chosen, self.epoch)
        stages = self._stages(spans[0], chosen, at)
        given = self.epoch, _together(list(stages.values()))
        one, two = both(self.plans, ats, spans, turns, self.guard.epoch, given=given)
        what = "" if one.error or two.error else self._difference(one, two)
        sample = Sample(
            *(self.plans, ats, spans, turns, self.guard.epoch, self.epoch, one, two),
            what=failure(one, two) or what,
        )
        if self.guard.scope.on_blocks:
            self.expected |= {where: (made, sample) for where, made in stages.items()}
        return sample

    def _stages(self, span: AtomSpan, chosen: Plan, at: At) -> dict[Where, MadeBlocks]:
        """Return the output of the chosen plan's stages for each atom of ``span``."""
        found: dict[Where, MadeBlocks] = {}
        blocks = span.chosen_by_atom(self.epoch)
        for where in span.atoms:
            made = stepped(
                partial(list, blocks.get(where, [])), chosen.on_blocks[1:], at, self.epoch
            )
            found[where] = MadeBlocks([self._done(block) for block in made.blocks], made.error)
        return found

    def _done(self, block: Block) -> Block:
        """Return ``block`` in its delivered form, if the stages' output has that form."""
        return finished(block) if self.job.finishing and self.guard.scope.on_blocks else block

    def _difference(self, one: MadeBlocks, two: MadeBlocks) -> str:
        blocks = [[self._done(block) for block in made.blocks] for made in (two, one)]
        return difference(*blocks, batched=self.plans[0].batched)

    def _at(self) -> At:
        """Return the context of the run with the memory limit of a comparison, and no caches."""
        held = self.guard.most_bytes // PARTS
        return dataclasses.replace(
            self.run.at,
            epoch=self.guard.epoch,
            schemas=self.run.at.schemas.copy(),
            budget=held,
            hold_bytes=held,
            keep=nothing_kept,
            lost=_raise_timed,
        )


def _raise_timed(error: DmlError, _rows: int) -> None:
    """Raise the error of a call that took too long: a comparison without its row proves nothing."""
    if isinstance(error, FunctionTimeoutError):
        raise error


def _reaches(where: Where, last: Piece) -> bool:
    """Return True if a partition with the last piece ``last`` reaches the atom ``where``."""
    return where <= (last.place, last.atom) or (last.stops and where[0] == last.place)


def _together(stages: Sequence[MadeBlocks]) -> MadeBlocks:
    """Join the output of several atoms, up to the first error."""
    blocks: list[Block] = []
    for made in stages:
        blocks += made.blocks
        if made.error is not None:
            return MadeBlocks(blocks, made.error)
    return MadeBlocks(blocks)


NAME = "PlansDiffer"


@dataclasses.dataclass(eq=False)
class Guard:
    """The checks of one run: at most ``samples`` samples in a pass over the first source.

    ``scope`` is what can be compared, and ``most_bytes`` the memory limit of one comparison.
    ``compute`` has the kernels for the plan as written, ``fallback`` makes a run of that plan, and
    ``fallen`` is that run once it has replaced the first. ``report`` writes a difference and
    returns its path; ``hear`` is called with the name and text of a difference. ``verified`` and
    ``differing`` count samples; ``passed_over`` counts those that proved nothing, by reason.
    """

    scope: Scope
    samples: int
    most_bytes: int
    compute: Compute
    fallback: Callable[[], Streaming]
    report: Callable[[Sample], str]
    hear: Callable[[str, str], None] = lambda _name, _text: None
    fallen: Streaming | None = None
    epoch: int = 0
    verified: int = 0
    differing: int = 0
    passed_over: dict[str, int] = dataclasses.field(default_factory=dict)

    def event(self, run: str, at: float) -> Verified:
        """Return the results so far as an event."""
        reasons = [f"{reason} ({n} times)" for reason, n in self.passed_over.items()]
        return Verified(
            run=run,
            at=at,
            verified=self.verified,
            differing=self.differing,
            scope=self.scope.text(),
            unverified="; ".join(reasons),
        )

    def report_differences(self, hear: Callable[[str, str], None]) -> None:
        """Report differences from now on by calling ``hear`` with a name and a text."""
        self.hear = hear

    def running(self, run: Streaming) -> Streaming:
        """Return ``run``, or the run that has replaced it."""
        return self.fallen or run

    def watch(
        self, run: Streaming, job: Job, epoch: int, start: Position | None
    ) -> Callable[[Sequence[Piece]], None] | None:
        """Return a check for the partitions of stages opened at ``epoch``; None if not needed.

        ``start`` is the position from which they are read. The check raises VerificationError for a
        partition with a sample that differs.
        """
        plans = self.scope.plans
        if plans is None or self.fallen is not None:
            return None
        drawn = samples(job, self.samples, start or START, run.at.seed, epoch)
        return SampleWatch(self, run, job, epoch, plans, drawn) if drawn else None

    def guarded(
        self, open_: Callable[[], Flow], epoch: int, position: Position | None, *, finishing: bool
    ) -> Flow:
        """Return the flow of ``open_`` for ``epoch``, which restarts as written if samples differ.

        ``finishing`` is True if columns are to be in their delivered form.
        """
        self.epoch = epoch
        return _Guarded(self, open_, fresh=position is None, finishing=finishing)

    def differs(self, sample: Sample) -> VerificationError:
        """Report the difference of ``sample``; return the error to raise if rows were delivered."""
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


class _Guarded:
    """A flow that can switch to the plan as written until it has delivered rows.

    Until then it is ``fresh``. A resumed flow never is: its position fits the chosen plan only.
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
        """Return up to ``most`` rows; switch to the plan as written if a sample differs."""
        flow = cast("Flow", self.flow)
        try:
            block = flow.pull(most)
        except VerificationError as error:
            block = self._fall(error).pull(most)
        self.fresh = False
        fallen = self.guard.fallen is not None and self.finishing
        return finished(block) if fallen and block is not None else block

    def _fall(self, error: VerificationError) -> Flow:
        """Switch to the plan as written. Raise ``error`` if rows were delivered already."""
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
        """Return the flow's position; None before any rows, since the flow may yet be replaced."""
        return cast("Position", None) if self.fresh else cast("Flow", self.flow).position()

    def close(self) -> None:
        """Close the flow."""
        if self.flow is not None:
            self.flow.close()
