"""Operators of several inputs share a schema check, row ids, and the size of portions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.data.schema import UNKNOWN, Schema
from dml.errors import PlanError, SchemaError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.node import Node
from dml.kernels.rows.ids import RowIds, underive

# Rows that are gathered first, when their size is not known, and bytes that are gathered later. The
# number of rows is capped, so that a sudden change to rows of a megabyte does no harm.
FIRST_ROWS, MOST_ROWS, PORTION_BYTES = 16, 256, 4 << 20

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At


class Merging(Node):
    """The base of operators whose elements come from inputs of one schema."""

    rows: ClassVar[Rows] = Rows.MERGED
    verb: ClassVar[str]
    # The key from which all operators of one kind derive row ids.
    mark: ClassVar[int]

    @property
    def element_inputs(self) -> tuple[Node, ...]:
        """Return the inputs whose elements are merged."""
        return self.inputs

    def infer(self) -> Schema:
        """Return the inputs' common schema, or UNKNOWN; raise SchemaError if they differ."""
        first, *others = (node.schema for node in self.element_inputs)
        for number, other in enumerate(others, 2):
            if first.known and other.known:
                same(self.verb, first, other, number)
        return first if all(node.schema.known for node in self.element_inputs) else UNKNOWN

    def check(self) -> None:
        """Raise PlanError for a mix of rows and batches."""
        if len({node.batched for node in self.inputs}) > 1:
            raise PlanError(
                f"{self.verb} of rows and batches",
                why="one input is batched, another is not",
                try_=f"{self.verb} before .batch(), or .batch(...) of both",
            )

    def derived(self, ids: RowIds, number: int) -> RowIds:
        """Return the output ids of rows that have ``ids`` in input ``number``."""
        return ids.derive(self.mark + self.level, number)

    def origins(self, ids: RowIds, number: int) -> RowIds:
        """Return the ids in input ``number`` from which ``ids`` were derived."""
        branch = np.full(ids.count, number, np.uint64)
        return RowIds.of_arrays(*underive(*ids.arrays(), self.mark + self.level, branch))

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: the turn is saved; each input adds its own cost."""
        return ResumeCost(state_bytes=16 * len(self.inputs))

    def parameters_text(self) -> str:
        """Return the sources of the other inputs as text."""
        return ", ".join(node.chain()[0].title() for node in self.inputs[1:])


def same(verb: str, first: Schema, other: Schema, number: int) -> None:
    """Raise SchemaError unless input ``number`` has the columns of the first, in their order."""
    if dict(first) == dict(other) and list(first) == list(other):
        return
    differing = [f"{n}: {first.get(n)}" for n in first if other.get(n) != first[n]]
    raise SchemaError(
        f"{verb} of inputs with different columns",
        why=f"input {number} has {other}, the first {first}"
        + (f" ({', '.join(differing)})" if differing else " (in another order)"),
        try_='.select(...), .rename(...) or .cast({"column": ...}) so that they agree',
    )


def agreed(node: Merging, block: Block, number: int, at: At) -> None:
    """Raise SchemaError if a block's columns differ from those of the first block of any input.

    The first block's columns are stored with the types that functions settle, so that a resumed run
    knows them. ``number`` counts inputs from 1.
    """
    if node.schema.known:
        return
    first = at.schemas.setdefault(node.digest.hex(), block.schema)
    if block.schema != first:
        same(node.verb, first, block.schema, number)


class Portion:
    """The number of rows to gather at once from all inputs: a few megabytes of them.

    ``rows`` is 1 in a run with a limited number of errors (``max_errors``): rows that an input
    skips are then counted in the order of the output.
    """

    def __init__(self, at: At) -> None:
        self.at, self.rows = at, 1 if at.bounded else FIRST_ROWS

    def learn(self, block: Block) -> None:
        """Adapt ``rows`` to the bytes per row of ``block``; grow stepwise, as later rows vary."""
        if self.at.bounded:
            return
        fitting = PORTION_BYTES // max(1, block.nbytes // max(1, block.n))
        self.rows = max(1, min(fitting, MOST_ROWS, self.rows * FIRST_ROWS))
