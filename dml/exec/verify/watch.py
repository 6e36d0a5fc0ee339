"""This file looks at the rows of a run on their way: at samples of them, before they go on.

What both plans make of a sample is made here, once its first rows arrive. What arrives must be,
atom by atom, what the chosen plan's stages made of it here; and that, carried through the rest of
the plan, must be what the plan as written makes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from dml.exec.budget import calls_bytes
from dml.exec.verify.apart import Made, Span, Where, span_from, stepped, turns_of
from dml.exec.verify.compare import difference, part
from dml.exec.verify.sample import Sample, both, failure, inconclusive, settled
from dml.exec.work import Piece
from dml.expr.block import Block
from dml.expr.delivery import finished
from dml.expr.flow import At, nobody_counts, nothing_kept

if TYPE_CHECKING:
    from dml.exec.job import Job
    from dml.exec.stream import Streaming
    from dml.exec.verify.guard import Guard
    from dml.plan import Plan


# What rows are held in, of what a comparison may hold: those of each plan, and in its operators.
PARTS = 4


class Watch:
    """One opening of the stages of ``run``, at ``epoch``; ``drawn`` are the samples, in order."""

    def __init__(
        self,
        guard: Guard,
        run: Streaming,
        job: Job,
        epoch: int,
        drawn: list[list[Where]],
    ) -> None:
        self.guard, self.run, self.job, self.epoch = guard, run, job, epoch
        self.pending = drawn
        # What must still arrive of samples, by atom, in order; and how much of the first has.
        self.expected: dict[Where, tuple[Made, Sample]] = {}
        self.arrived = 0

    def __call__(self, pieces: Sequence[Piece]) -> None:
        """Compare what the partition has of samples; VerificationError where it differs."""
        if not pieces or not (self.pending or self.expected):
            return
        last = pieces[-1]
        while self.pending and _reached(self.pending[0][0], last):
            atoms = self.pending.pop(0)
            if last.error is None or atoms[0] <= (last.place, last.atom):
                self._compare(atoms)
        while self.expected and _reached(next(iter(self.expected)), last):
            where = next(iter(self.expected))
            whole = last.stops or where < (last.place, last.atom)
            self._follow(where, pieces, whole=whole)
            if not whole:
                return
            del self.expected[where]
            self.arrived = 0

    def _compare(self, atoms: Sequence[Where]) -> None:
        """Hold both plans to each other on ``atoms``."""
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
        """Hold what arrived of an atom to what was made of it here."""
        made, sample = self.expected[where]
        mine = [piece for piece in pieces if (piece.place, piece.atom) == where]
        given = [piece.block for piece in mine if piece.block is not None]
        if made.error is not None or any(piece.error is not None for piece in mine):
            return
        start = self.arrived
        self.arrived += sum(block.n for block in given)
        wanted = part(made.blocks, start, None if whole else self.arrived)
        what = difference(given, wanted, batched=False)
        if what:
            what = f"what came is not what the same plan makes here, {what}"
            found = dataclasses.replace(sample, naive=Made(wanted), chosen=Made(given), what=what)
            raise self.guard.differs(found)

    def _spans(self, atoms: Sequence[Where]) -> list[Span]:
        """The sample, and the first atoms of every source beside it."""
        at = self._at(self.run.at)
        first, *others = cast("Plan", self.guard.scope.chosen).all
        spans = [Span(first, at, atoms)]
        for plan in others:
            whole = Span(plan, at, ())
            spans.append(Span(plan, at, span_from(whole.reading(self.epoch), (0, 0))))
        return spans

    def _refusal(self, spans: Sequence[Span]) -> str:
        """Why the sample cannot be compared, "" if it can."""
        held_bytes = sum(each.held_bytes(self.epoch) for each in spans)
        nodes = cast("Plan", self.guard.scope.naive).operators
        calling = max((calls_bytes(node) for node in nodes if node.inputs), default=0)
        if held_bytes + calling > self.guard.most_bytes:
            return "it does not fit into what memory_limit leaves for comparing"
        return ""

    def _sample(self, atoms: Sequence[Where]) -> Sample | str:
        """What both plans make of the atoms; why that cannot be said."""
        scope, spans = self.guard.scope, self._spans(atoms)
        if reason := self._refusal(spans):
            return reason
        naive, chosen = cast("Plan", scope.naive), cast("Plan", scope.chosen)
        at = self._at(self.run.at)
        known = settled(naive, chosen, at)
        at_naive = dataclasses.replace(at, compute=self.guard.compute, schemas=known)
        turns = turns_of(naive, self.epoch), turns_of(chosen, self.epoch)
        stages = self._stages(spans[0], chosen, at)
        one, two = both(
            *((naive, chosen), (at_naive, at), spans, turns, self.guard.epoch),
            given=(self.epoch, _together(list(stages.values()))),
        )
        what = "" if one.error or two.error else self._difference(one, two, naive)
        sample = Sample(
            *(naive, chosen, at_naive, at, spans, turns, self.guard.epoch, self.epoch, one, two),
            what=failure(one, two) or what,
        )
        if scope.on_blocks:
            self.expected |= {where: (made, sample) for where, made in stages.items()}
        return sample

    def _stages(self, span: Span, chosen: Plan, at: At) -> dict[Where, Made]:
        """What the stages of the chosen plan make of each atom."""
        found: dict[Where, Made] = {}
        blocks = span.chosen_by_atom(self.epoch)
        for where in span.atoms:
            mine = partial(_at_hand, blocks.get(where, []))
            made = stepped(mine, chosen.on_blocks[1:], at, self.epoch)
            found[where] = Made([self._done(block) for block in made.blocks], made.error)
        return found

    def _done(self, block: Block) -> Block:
        """As stages give it, where they give columns as they are delivered."""
        return finished(block) if self.job.finishing and self.guard.scope.on_blocks else block

    def _difference(self, one: Made, two: Made, naive: Plan) -> str:
        blocks = [[self._done(block) for block in made.blocks] for made in (two, one)]
        return difference(*blocks, batched=naive.batched)

    def _at(self, at: At) -> At:
        """As in the run, within what comparing may hold; nothing is kept, nobody counts losses."""
        held = self.guard.most_bytes // PARTS
        return dataclasses.replace(
            at,
            epoch=self.guard.epoch,
            schemas=at.schemas.copy(),
            budget=held,
            hold_bytes=held,
            keep=nothing_kept,
            lost=nobody_counts,
        )


def _reached(where: Where, last: Piece) -> bool:
    """True if a partition that ends with ``last`` goes as far as the atom, or beyond."""
    return where <= (last.place, last.atom) or (last.stops and where[0] == last.place)


def _at_hand(blocks: list[Block], _epoch: int) -> list[Block]:
    return blocks


def _together(stages: Sequence[Made]) -> Made:
    """Several atoms, up to the first error."""
    blocks: list[Block] = []
    for made in stages:
        blocks += made.blocks
        if made.error is not None:
            return Made(blocks, made.error)
    return Made(blocks)
