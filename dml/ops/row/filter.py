"""``filter`` with an expression keeps the rows for which it is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dml.base.cached_property import cached_property, remembered
from dml.data.block import Block
from dml.data.schema import Schema
from dml.expr.columns import computation
from dml.expr.columns.typing import type_of
from dml.expr.columns.value import Value, bind_draws, operands, value_text
from dml.expr.facts import Rows
from dml.expr.node import Node, op

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class Filter(Node):
    """Filter keeps the rows where ``predicate`` is true, in order; false and null are dropped.

    Raises SchemaError if the predicate is not boolean.
    """

    input: Node
    predicate: Value

    rows: ClassVar[Rows] = Rows.FEWER

    @property
    def random(self) -> bool:  # type: ignore[override]
        """True if the predicate draws random numbers."""
        return self.predicate.random

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True if the predicate cannot fail."""
        return self.predicate.total

    @cached_property
    def parts(self) -> tuple[Value, ...]:
        """Return the predicate's conjuncts, with random draws bound to this operator."""
        bound = bind_draws(self.predicate, self.ordinal, 0)
        return tuple(operands([bound], "and"))

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema; raise SchemaError unless the predicate is boolean."""
        computation.require_truth(self.predicate, type_of(self.predicate, given), given)
        return given

    @remembered
    def _segment(self, given: Schema) -> computation.ComputedSegment:
        values = [Value("col", (), (name,)) for name in given.names]
        return computation.ComputedSegment(self.parts, given.names, values)

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the kept rows of one block."""
        if not block.n and not self.schema.known:
            return iter(())  # without types, errors belong to the first row that gets here
        return self._segment(block.schema).run(block, at)

    def parameters_text(self) -> str:
        """Return the predicate as text."""
        return value_text(self.predicate)
