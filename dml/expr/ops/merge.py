"""This file holds what operators of several inputs share: one schema, and inputs in their turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dml.errors import PlanError, SchemaError
from dml.expr.facts import Held, Rows
from dml.expr.node import Node
from dml.expr.schema import UNKNOWN, Schema
from dml.kernels.ids import RowIds, underive

# Rows that are gathered first, when their size is not known, and bytes that are gathered later: of
# so few rows at most that a sudden turn to rows of a megabyte can be borne.
FIRST_ROWS, MOST_ROWS, PORTION_BYTES = 16, 256, 4 << 20

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At


class Merging(Node):
    """The base of operators whose elements come from inputs of one schema."""

    rows: ClassVar[Rows] = Rows.MERGED
    verb: ClassVar[str]
    # What the ids of all operators of one kind are made with.
    mark: ClassVar[int]

    def infer(self) -> Schema:
        """That of all inputs; SchemaError where two are known to differ, unknown if one is."""
        first, *others = (node.schema for node in self.inputs)
        for number, other in enumerate(others, 2):
            if first.known and other.known:
                same(self.verb, first, other, number)
        return first if all(node.schema.known for node in self.inputs) else UNKNOWN

    def check(self) -> None:
        """Rows and batches do not mix."""
        if len({node.batched for node in self.inputs}) > 1:
            raise PlanError(
                f"{self.verb} of rows and batches",
                why="one input is batched, another is not",
                try_=f"{self.verb} before .batch(), or .batch(...) of both",
            )

    def derived(self, ids: RowIds, number: int) -> RowIds:
        """The ids of rows that input ``number`` gave with ``ids``."""
        return ids.derive(self.mark + self.level, number)

    def origins(self, ids: RowIds, number: int) -> RowIds:
        """What ``ids`` were made of if input ``number`` gave them."""
        branch = np.full(ids.count, number, np.uint64)
        return RowIds.of_arrays(*underive(*ids.arrays(), self.mark + self.level, branch))

    @property
    def held(self) -> Held:
        """Whose turn it is; the positions of the inputs are their own."""
        return Held(state_bytes=16 * len(self.inputs))

    def shown(self) -> str:
        """The other inputs, by what they read."""
        return ", ".join(node.chain()[0].title() for node in self.inputs[1:])


def same(verb: str, first: Schema, other: Schema, number: int) -> None:
    """Raise SchemaError if the two are not the same columns in the same order."""
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
    """Hold a block of input ``number`` to the columns of the first block that any input gave.

    Those are kept where the types that functions settle are, so that a resumed run knows them.
    """
    if node.schema.known:
        return
    first = at.schemas.setdefault(node.digest.hex(), block.schema)
    if block.schema != first:
        same(node.verb, first, block.schema, number)


class Portion:
    """How many rows of all inputs together to gather at once, so that they take some megabytes.

    One where a run may lose a certain number: what an input loses counts before its next row then,
    and behind the rows that other inputs give before it.
    """

    def __init__(self, at: At) -> None:
        self.at, self.rows = at, 1 if at.bounded else FIRST_ROWS

    def learn(self, block: Block) -> None:
        """Judge by rows that were gathered; grows step by step, as later rows may be larger."""
        if self.at.bounded:
            return
        fitting = PORTION_BYTES // max(1, block.nbytes // max(1, block.n))
        self.rows = max(1, min(fitting, MOST_ROWS, self.rows * FIRST_ROWS))
