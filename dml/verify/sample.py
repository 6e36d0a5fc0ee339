"""Draw samples, and run them through both plans of a pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from dml.base.fingerprint import digest
from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import FunctionTimeoutError, MemoryContractError, SourceError, WorkerLostError
from dml.exec.tasks.job import Job
from dml.expr.flow import At, Position, untyped
from dml.physical.plan import Plan
from dml.verify.isolated_run import AtomSpan, MadeBlocks, Where, apart, span_from, stepped

# Errors that do not depend on rows.
OUTER = (MemoryContractError, SourceError, WorkerLostError, FunctionTimeoutError)


class SampleRows(Protocol):
    """The rows of some atoms, from memory or from a bundle."""

    def read(self, epoch: int) -> Sequence[Block]:
        """Return the rows of ``epoch`` with all columns, a block per atom."""

    def read_chosen(self, epoch: int) -> Sequence[Block]:
        """Return the rows of ``epoch`` as the chosen plan reads them."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Some atoms of every source, the rows that both plans made from them, and their difference.

    In pairs the plan as written comes first: ``plans``, their contexts ``ats``, and ``turns``, the
    sampled passes of each ``repeat``. ``spans`` has the atoms of each source. ``what`` is the
    difference between ``naive`` and ``chosen`` as text, or "".
    """

    plans: tuple[Plan, Plan]
    ats: tuple[At, At]
    spans: Sequence[AtomSpan]
    turns: tuple[tuple[int, ...], tuple[int, ...]]
    epoch: int
    stage_epoch: int
    naive: MadeBlocks
    chosen: MadeBlocks
    what: str

    @property
    def place(self) -> str:
        """The place of the unit of the first atom, as text for messages."""
        span = self.spans[0]
        return span.reading(self.stage_epoch).unit_at(span.atoms[0][0]).place


def samples(job: Job, count: int, start: Position, seed: int, epoch: int) -> list[list[Where]]:
    """Draw at most ``count`` samples, each as a list of atoms, from the position ``start`` on.

    The first sample is the first atom that is read; the others are drawn by ``seed`` and ``epoch``.
    """
    reading, first = job.reading, (int(start["unit"]), int(start["atom"]))
    if first[0] >= reading.places:
        return []
    found = {first}
    for number in range(1, count):
        draw = int.from_bytes(digest("verified", seed, epoch, number), "little")
        place = draw % reading.places
        found.add((place, (draw >> 64) % (reading.unit_at(place).atoms or 1)))
    spans: list[list[Where]] = []
    for each in sorted(each for each in found if each >= first):
        if not spans or each > spans[-1][-1]:
            spans.append(span_from(reading, each))
    return spans


def both(
    plans: tuple[Plan, Plan],
    ats: tuple[At, At],
    spans: Sequence[SampleRows],
    turns: tuple[tuple[int, ...], tuple[int, ...]],
    epoch: int,
    *,
    given: tuple[int, MadeBlocks] | None = None,
) -> tuple[MadeBlocks, MadeBlocks]:
    """Run the plan as written and the chosen plan on ``spans`` alone, and return the rows of each.

    ``given`` is a pair: an epoch, and the output of the chosen plan's stages for the first span in
    that epoch, which is then not computed again. Pairs have the plan as written first.
    """
    naive, chosen = plans

    def as_written(plan: Plan, span: SampleRows) -> Callable[[int], MadeBlocks]:
        def read(epoch: int) -> list[Block]:
            return [block.select(plan.stage.columns) for block in span.read(epoch)]

        return lambda epoch: stepped(partial(read, epoch), plan.on_blocks[1:], ats[0], epoch)

    def as_chosen(plan: Plan, span: SampleRows) -> Callable[[int], MadeBlocks]:
        def read_span(epoch: int) -> MadeBlocks:
            if given is not None and span is spans[0] and given[0] == epoch:
                return given[1]
            return stepped(partial(span.read_chosen, epoch), plan.on_blocks[1:], ats[1], epoch)

        return read_span

    one = map(as_written, naive.all, spans)
    two = map(as_chosen, chosen.all, spans)
    first = apart(naive, ats[0], one, turns[0]).read_elements(epoch)
    return first, apart(chosen, ats[1], two, turns[1]).read_elements(epoch)


def settled(naive: Plan, chosen: Plan, at: At) -> dict[str, Schema]:
    """Return the settled schemas of the chosen plan, by the digests of operators in either plan."""
    found = dict(at.schemas)
    for one, two in zip(naive.all, chosen.all, strict=True):
        known = {
            id(node.calls): at.schemas[node.digest.hex()]
            for node in two.operators
            if node.calls is not None and node.digest.hex() in at.schemas
        }
        found |= {
            node.digest.hex(): known[id(node.calls)]
            for node in one.operators
            if untyped(node, at) and id(node.calls) in known
        }
    return found


def inconclusive(sample: Sample) -> str:
    """Return why the comparison of ``sample`` proves nothing; "" if it proves something."""
    if any(isinstance(made.error, OUTER) for made in (sample.naive, sample.chosen)):
        return "comparing it ended in an error that says nothing of rows"
    return "rows of it raise an error as written" if sample.naive.error is not None else ""


def failure(naive: MadeBlocks, chosen: MadeBlocks) -> str:
    """Return as text the error that only the chosen plan raises; "" if there is none."""
    if chosen.error is None or naive.error is not None or isinstance(chosen.error, OUTER):
        return ""
    return f"{type(chosen.error).__name__} instead of rows"
