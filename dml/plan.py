"""This file is the contract between optimize and exec: what is to be done, stage by stage.

A ``Plan`` is a chain. The first stage reads a source and runs row-local operators on its blocks,
units apart from each other; each ``Link`` is one more stage, whose tasks take what a task before
them gave and need something else than those. The stream operators then see the rows in order.
An operator of several inputs stands in the stream of its first; each of the others has a plan of
its own, beside it. Nothing in a plan knows how many workers there are.

The position of the stages, which stream operators may open them at, is ``{"unit": u, "atom": a,
"drop": d}``: place in reading order, atom in that unit, rows of that atom that the last stage gave
and that were handed on already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from dml.expr.facts import Held, Needs
from dml.expr.node import Node
from dml.expr.schema import Schema
from dml.expr.sources.source import Source, Unit
from dml.expr.value import Value

# Where there are units enough, there are so many tasks (benchmarks/bench_processes.py).
LEAST_TASKS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """Read ``columns`` of ``source``, run ``steps`` on every block; a task needs what is usual.

    ``predicate`` are conjuncts over source columns that a unit may be skipped by; the steps test
    them again. ``order`` is a shuffle that rules in which order the source is read: ``ShuffleAll``
    row by row (an addressable source), ``ShuffleAtoms`` piece by piece. ``first`` are the columns
    of the predicate, if a unit may be tried by them before the others are decoded.
    """

    source: Source
    columns: tuple[str, ...]
    predicate: tuple[Value, ...]
    steps: tuple[Node, ...]
    order: Node | None = None
    first: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Link:
    """A later stage: run ``steps``, which all need the same, on the blocks of the stage before."""

    steps: tuple[Node, ...]

    @property
    def needs(self) -> Needs:
        """What one task occupies."""
        return self.steps[0].needs


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A chain of stages, the operators over its rows in order, and what comes out.

    ``fingerprint`` is the fleet's name of the program; ``name`` also tells seeds apart: a saved
    position fits plans of its own name.
    """

    stage: Stage
    links: tuple[Link, ...]
    stream: tuple[Node, ...]
    schema: Schema
    batched: bool
    fingerprint: str
    name: str
    # For each operator of ``stream``, the plans of its inputs beside the chain.
    beside: tuple[tuple[Plan, ...], ...] = ()

    @property
    def all(self) -> Iterator[Plan]:
        """This plan and those beside it, however deep."""
        yield self
        for plans in self.beside:
            for plan in plans:
                yield from plan.all

    @property
    def on_blocks(self) -> tuple[Node, ...]:
        """The source and the operators that run on its blocks, in whichever stage."""
        linked = (node for link in self.links for node in link.steps)
        return (self.stage.source, *self.stage.steps, *linked)

    @property
    def operators(self) -> tuple[Node, ...]:
        """Every operator that runs, source first."""
        return (*self.on_blocks, *self.stream)

    @property
    def decides(self) -> bool:
        """True if a run has to decide what is kept."""
        return any(node.decides for each in self.all for node in each.operators)

    @property
    def held(self) -> list[tuple[Node, Held]]:
        """What each stream operator needs to be resumed."""
        return [(node, node.held) for node in self.stream]


def units_each(units: int, unit_at: Callable[[int], Unit], target_bytes: int) -> int:
    """Units of one task: as many as make about ``target_bytes``, judged by two of them.

    But so few that there are tasks for all workers: bytes say nothing of a function's seconds. An
    open unit, whose bytes nobody knows, has a task of its own.
    """
    sample = [unit_at(place) for place in (0, units // 2)] if units else []
    if not units or any(unit.is_open for unit in sample):
        return 1
    largest = max(1, *(unit.nbytes for unit in sample))
    return max(1, min(target_bytes // largest, units // LEAST_TASKS))
