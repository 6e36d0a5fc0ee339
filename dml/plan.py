"""This file is the contract between optimize and exec: what is to be done, stage by stage.

A ``Plan`` is a chain. The stage reads a source and runs row-local operators on its blocks, units
apart from each other; the stream operators then see the rows in order. Nothing in a plan knows how
many workers there are.

The position of a stage, which stream operators may open it at, is ``{"unit": u, "atom": a, "drop":
d}``: place in reading order, atom in that unit, output rows of that atom that were given already.
"""

from __future__ import annotations

import dataclasses

from dml.expr.facts import Held
from dml.expr.node import Node
from dml.expr.schema import Schema
from dml.expr.sources.source import Source
from dml.expr.value import Value


@dataclasses.dataclass(frozen=True, eq=False)
class Needs:
    """What one task of a stage occupies."""

    cpu: float = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """Read ``columns`` of ``source``, run ``steps`` on every block.

    ``predicate`` are conjuncts over source columns that a unit may be skipped by; the steps test
    them again. ``order`` is a shuffle that rules in which order the source is read: ``ShuffleAll``
    row by row (an addressable source), ``ShuffleAtoms`` piece by piece.
    """

    source: Source
    columns: tuple[str, ...]
    predicate: tuple[Value, ...]
    steps: tuple[Node, ...]
    order: Node | None = None
    needs: Needs = dataclasses.field(default_factory=Needs)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A stage, the operators over its rows in order, and what comes out.

    ``fingerprint`` is the fleet's name of the program; ``name`` also tells seeds apart: a saved
    position fits plans of its own name.
    """

    stage: Stage
    stream: tuple[Node, ...]
    schema: Schema
    batched: bool
    fingerprint: str
    name: str

    @property
    def operators(self) -> tuple[Node, ...]:
        """Every operator that runs, source first."""
        return (self.stage.source, *self.stage.steps, *self.stream)

    @property
    def held(self) -> list[tuple[Node, Held]]:
        """What each stream operator needs to be resumed."""
        return [(node, node.held) for node in self.stream]
