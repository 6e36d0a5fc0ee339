"""This file holds ``group_by_window``: batches of rows that have one key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from dml.errors import PlanError, SchemaError
from dml.expr.block import Block, to_arrow
from dml.expr.computed import cached_property
from dml.expr.facts import Held, Rows
from dml.expr.flow import Room
from dml.expr.keyed_batches import Keyed, KeyedBatches
from dml.expr.node import Node, op
from dml.expr.ops.take import count
from dml.expr.schema import Schema, code_of, shape_of, short

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class GroupByWindow(Node):
    """Batches of ``n`` rows of equal ``column``, given as soon as they are full.

    At the end comes what is left, unless ``drop_last``: by key in rising order, null last, which is
    a key as any other. Keys are whole numbers, booleans or texts.
    """

    input: Node
    column: str
    n: int
    drop_last: bool

    rows: ClassVar[Rows] = Rows.REGROUPED
    gathers: ClassVar[int] = 2

    def check(self) -> None:
        """Positive size, rows below."""
        count("group_by_window window_size", self.n, least=1)
        if self.input.batched:
            raise PlanError(
                "group_by_window over batches",
                why="its input is batched already",
                try_=".group_by_window(...) in place of .batch(...)",
            )

    def infer(self) -> Schema:
        """The input's schema, whose ``column`` can be a key."""
        given = self.input.schema
        if given.known:
            key_of(given, self.column, "group_by_window")
        return given

    @cached_property
    def batched(self) -> bool:
        """Elements are batches from here on."""
        return True

    @property
    def held(self) -> Held:
        """Where the oldest row came from, and counts if the keys that are held are few."""
        return Held(state_bytes=2560, work="back to the oldest row it holds, or one pass")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Hold rows by key."""
        return KeyedBatches(
            partial(open_input, epoch),
            position,
            self._keyed,
            lambda _: self.n,
            Room(self, at.hold_bytes),
            drop_last=self.drop_last,
        )

    def _keyed(self, block: Block) -> Keyed:
        kind = key_of(block.schema, self.column, "group_by_window")
        column = to_arrow(block[self.column], kind).dictionary_encode(null_encoding="encode")
        return Keyed(np.asarray(column.indices), column.dictionary.to_pylist())

    def shown(self) -> str:
        """Column and size."""
        return f"{self.column!r}, {self.n}{', drop_last=True' if self.drop_last else ''}"


def key_of(given: Schema, column: str, verb: str) -> pa.DataType:
    """The type of ``column``, whose values can be keys; SchemaError if they cannot."""
    kind = given.require(column, verb)
    texts = {pa.string(), pa.large_string(), pa.null()}
    if (code_of(kind)[0] in "biu" and not shape_of(kind)) or kind in texts:
        return kind
    raise SchemaError(
        f"{verb} cannot group by {column!r}, which is {short(kind)}",
        why="keys are whole numbers, booleans or texts",
        try_=f".cast({{{column!r}: ...}}), or an expression such as .hash(1000)",
    )
