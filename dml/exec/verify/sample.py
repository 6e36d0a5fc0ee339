"""This file draws samples, and makes what both plans of a pipeline make of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from dml.errors import MemoryContractError, SourceError, WorkerLostError
from dml.exec.job import Job
from dml.exec.verify.apart import Made, Span, Where, apart, span_from, stepped
from dml.expr.block import Block
from dml.expr.fingerprint import digest
from dml.expr.flow import At, untyped

if TYPE_CHECKING:
    from dml.expr.flow import Position
    from dml.expr.schema import Schema
    from dml.plan import Plan

# Errors that say nothing of rows.
OUTER = (MemoryContractError, SourceError, WorkerLostError)


class Rows(Protocol):
    """The rows of some atoms, wherever they are kept."""

    def read(self, epoch: int) -> Sequence[Block]:
        """With every column."""

    def read_chosen(self, epoch: int) -> Sequence[Block]:
        """As the chosen plan reads them."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Some atoms of every source, what both plans made of them here, and where that differs."""

    naive_plan: Plan
    chosen_plan: Plan
    at_naive: At
    at_chosen: At
    spans: Sequence[Span]
    turns: tuple[tuple[int, ...], tuple[int, ...]]
    epoch: int
    stage_epoch: int
    naive: Made
    chosen: Made
    what: str

    @property
    def place(self) -> str:
        """Where the sample was read."""
        span = self.spans[0]
        return span.reading(self.stage_epoch).unit_at(span.atoms[0][0]).place


def samples(job: Job, count: int, start: Position, seed: int, epoch: int) -> list[list[Where]]:
    """Atoms that are compared: the first that are read, others drawn by the seed."""
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
    spans: Sequence[Rows],
    turns: tuple[tuple[int, ...], tuple[int, ...]],
    epoch: int,
    *,
    given: tuple[int, Made] | None = None,
) -> tuple[Made, Made]:
    """What the plan as written, and the chosen one, make of ``spans`` alone.

    ``given`` is what the chosen plan's stages have made of the first of ``spans``, at which epoch.
    """
    naive, chosen = plans

    def as_written(plan: Plan, span: Rows) -> Callable[[int], Made]:
        return lambda epoch: stepped(span.read, plan.on_blocks[1:], ats[0], epoch)

    def as_chosen(plan: Plan, span: Rows) -> Callable[[int], Made]:
        def made(epoch: int) -> Made:
            if given is not None and span is spans[0] and given[0] == epoch:
                return given[1]
            return stepped(span.read_chosen, plan.on_blocks[1:], ats[1], epoch)

        return made

    one = map(as_written, naive.all, spans)
    two = map(as_chosen, chosen.all, spans)
    first = apart(naive, ats[0], one, turns[0]).made(epoch)
    return first, apart(chosen, ats[1], two, turns[1]).made(epoch)


def settled(naive: Plan, chosen: Plan, at: At) -> dict[str, Schema]:
    """What is known of types in the chosen plan, by the operators of the plan as written."""
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
    """Why a comparison says nothing, "" if it does."""
    if any(isinstance(made.error, OUTER) for made in (sample.naive, sample.chosen)):
        return "comparing it ended in an error that says nothing of rows"
    return "rows of it raise an error as written" if sample.naive.error is not None else ""


def failure(naive: Made, chosen: Made) -> str:
    """An error that only the chosen plan raises."""
    if chosen.error is None or naive.error is not None or isinstance(chosen.error, OUTER):
        return ""
    return f"{type(chosen.error).__name__} instead of rows"
