"""A plan is the contract between optimizer and executor: the stages and stream operators to run.

A ``Plan`` is a chain. The first stage reads a source and runs row-local operators on its blocks,
each unit independently; each ``Link`` is a further stage, whose tasks process the output of the
previous stage's tasks and need other resources. The stream operators then read the rows in order.
An operator of several inputs is in the stream of its first input; every other input has a plan of
its own, in ``beside``. A plan does not depend on the number of workers.

Stream operators open the stages at a position ``{"unit": u, "atom": a, "drop": d}``: the unit's
index in reading order, the atom in that unit, and the number of rows, counted from that atom on,
that the last stage has already delivered. These rows may span several atoms, as a slice may.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from dml.data.schema import Schema
from dml.expr.columns.value import Value
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node
from dml.io.source import Source, Unit

# The minimum number of tasks, if there are enough units (benchmarks/bench_processes.py).
LEAST_TASKS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """Reads ``columns`` of ``source`` and runs ``steps`` on every block; tasks have default needs.

    ``predicate`` are conjuncts over source columns by which units may be skipped; the steps test
    them again. ``order`` is a shuffle that determines the reading order of the source:
    ``ShuffleAll`` row by row (an addressable source), ``ShuffleAtoms`` piece by piece. ``first``
    are the columns of the predicate, if they may be decoded and tested before the remaining columns
    of a unit.
    """

    source: Source
    columns: tuple[str, ...]
    predicate: tuple[Value, ...]
    steps: tuple[Node, ...]
    order: Node | None = None
    first: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Link:
    """A later stage: runs ``steps``, all of equal needs, on the blocks of the stage before."""

    steps: tuple[Node, ...]

    @property
    def needs(self) -> Needs:
        """The resources that one task occupies."""
        return self.steps[0].needs


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A chain of stages, the operators on its ordered rows, and the output schema.

    ``fingerprint`` identifies the program in telemetry (``fleet``); ``name`` also depends on seeds:
    a saved position fits only plans of the same name.
    """

    stage: Stage
    links: tuple[Link, ...]
    stream: tuple[Node, ...]
    schema: Schema
    batched: bool
    fingerprint: str
    name: str
    # For each operator of ``stream``, the plans of its further inputs.
    beside: tuple[tuple[Plan, ...], ...] = ()

    @property
    def all(self) -> Iterator[Plan]:
        """This plan and all plans in ``beside``, recursively."""
        yield self
        for plans in self.beside:
            for plan in plans:
                yield from plan.all

    @property
    def on_blocks(self) -> tuple[Node, ...]:
        """The source and the operators that run on its blocks, of all stages."""
        linked = (node for link in self.links for node in link.steps)
        return (self.stage.source, *self.stage.steps, *linked)

    @property
    def operators(self) -> tuple[Node, ...]:
        """Every operator that runs, source first."""
        return (*self.on_blocks, *self.stream)

    @property
    def has_orders(self) -> bool:
        """True if some filter has several orders whose costs may differ."""
        return any(node.has_orders for each in self.all for node in each.on_blocks)

    @property
    def caches(self) -> bool:
        """True if an operator caches its input."""
        cached = (Rows.KEPT, Rows.STORED)
        return any(node.rows in cached for each in self.all for node in each.operators)

    @property
    def decides(self) -> bool:
        """True if a run has to decide whether an operator caches its input."""
        return any(node.decides for each in self.all for node in each.operators)


def units_each(units: int, unit_at: Callable[[int], Unit], target_bytes: int) -> int:
    """Return how many units a task reads, for about ``target_bytes``, estimated from two units.

    The number is limited so that there are tasks for all workers: bytes do not predict the run time
    of functions. If one of the two is open, its bytes are unknown, and a task reads one unit.
    """
    sample = [unit_at(place) for place in (0, units // 2)] if units else []
    if not units or any(unit.is_open for unit in sample):
        return 1
    largest = max(1, *(unit.nbytes for unit in sample))
    return max(1, min(target_bytes // largest, units // LEAST_TASKS))
