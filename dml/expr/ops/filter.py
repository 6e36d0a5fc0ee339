"""This file holds ``filter`` by an expression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from dml.expr import compute
from dml.expr.block import Block
from dml.expr.computed import cached_property
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.schema import Schema
from dml.expr.typing import type_of
from dml.expr.value import Value, bind_draws, conjuncts, shown

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class Filter(Node):
    """The rows where ``predicate`` is true; false and null are dropped, order is kept.

    SchemaError if the predicate is not boolean.
    """

    input: Node
    predicate: Value

    rows: ClassVar[Rows] = Rows.FEWER

    @property
    def random(self) -> bool:  # type: ignore[override]
        """True if the predicate draws."""
        return self.predicate.random

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True if the predicate cannot fail."""
        return self.predicate.total

    @cached_property
    def parts(self) -> tuple[Value, ...]:
        """What must be true, part by part, with draws bound to this operator."""
        bound = bind_draws(self.predicate, self.ordinal, 0)
        return tuple(conjuncts(bound))

    def infer(self) -> Schema:
        """The input's schema, once the predicate is known to be boolean."""
        given = self.input.schema
        if given.known:
            kind = type_of(self.predicate, given)
            if kind != pa.bool_():
                raise compute.no_truth(self.predicate, kind, given)
        return given

    @cached_property
    def _segments(self) -> dict[Schema, compute.Segment]:
        return {}

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The kept rows of one block."""
        if not block.n and not self.schema.known:
            return iter(())  # what has no type is an error of the first row that gets here
        found = self._segments.get(block.schema)
        if found is None:
            names = block.schema.names
            values = [Value("col", (), (name,)) for name in names]
            found = self._segments[block.schema] = compute.Segment(self.parts, names, values)
        return found.run(block, at)

    def shown(self) -> str:
        """The predicate."""
        return shown(self.predicate)
