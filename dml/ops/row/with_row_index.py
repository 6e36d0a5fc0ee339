"""``with_row_index`` adds the place of each row as a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from dml.base.cached_property import remembered
from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import PlanError, SchemaError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.node import Node, op
from dml.kernels.vec import Vec
from dml.ops.slice.counting_flow import CountingFlow
from dml.ops.unary import require_rows

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

# No stream is longer than the numbers between this and the end of int64.
MOST = 1 << 62


@op
class WithRowIndex(Node):
    """Adds a first column ``name``, int64, that counts an epoch's rows from ``offset``.

    Raises SchemaError if the input has a column of that name.
    """

    input: Node
    name: str
    offset: int

    # as a slice does, it counts rows, looks at no column, hands all of them on and keeps ids
    rows: ClassVar[Rows] = Rows.SLICE
    parameters_format = "{self.name!r}, offset={self.offset}"
    # One number is saved, nothing is repeated.
    resume_cost = ResumeCost(state_bytes=16)
    adds: ClassVar[bool] = True
    keeps_length: ClassVar[bool] = True

    def check(self) -> None:
        """Raise PlanError for a name that is no text, an unfit offset, and a batched input."""
        if not isinstance(self.name, str):
            raise PlanError(
                f"with_row_index needs a column name, got {self.name!r}",
                why=f"it is of type {type(self.name).__name__}; names are text",
                try_='with_row_index("index")',
            )
        if isinstance(self.offset, bool) or not isinstance(self.offset, int):
            raise self._no_offset("rows are counted by whole numbers")
        if not -MOST <= self.offset <= MOST:
            raise self._no_offset("the count would leave int64")
        require_rows(self.input, "with_row_index", "numbers")

    def _no_offset(self, why: str) -> PlanError:
        return PlanError(
            f"with_row_index cannot begin at {self.offset!r}", why=why, try_="offset=0"
        )

    @remembered
    def schema_over(self, given: Schema) -> Schema:
        """Return the new column and then ``given``; raise SchemaError if it has that column."""
        if self.name in given:
            raise SchemaError(
                f"with_row_index would make a second column {self.name!r}",
                why=f"the input has {given}",
                try_='with_row_index("another_name")',
            )
        return Schema(((self.name, pa.int64()), *given.items()))

    def flow(self, open_input: Opener, epoch: int, position: Position | None, _at: At) -> Flow:
        """Open a flow that numbers the input's rows."""
        return _Numbering(self, self.offset, open_input, epoch, position)


class _Numbering(CountingFlow[WithRowIndex]):
    """A flow of numbered rows; ``count`` is the number of the next row."""

    key = "next"

    def pull(self, most: int) -> Block | None:
        """Return the input's next rows with their numbers; None at the end."""
        block = self.input.pull(most)
        if block is None:
            return None
        schema = self._schema(block)
        numbers = np.arange(self.count, self.count + block.n, dtype=np.int64)
        self.count += block.n
        return Block(schema, (Vec(numbers, None), *block.columns), block.ids)

    def _schema(self, block: Block) -> Schema:
        try:
            return self.node.schema_over(block.schema)
        except SchemaError as error:
            raise error.located(self.node.label()) from None
