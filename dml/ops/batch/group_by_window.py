"""``group_by_window`` makes batches of rows with equal keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from dml.checks import element_count
from dml.data.block import Block, to_arrow
from dml.data.schema import Schema, code_of, shape_of, short
from dml.errors import SchemaError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.node import Node, op
from dml.ops.batch.keyed_batches import Key, KeyedBatches, KeyedRows
from dml.ops.unary import BatchesOfRows, require_unbatched

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class GroupByWindow(BatchesOfRows):
    """Makes batches of ``n`` rows of equal ``column``, and emits each as soon as it is full.

    At the end, unless ``drop_last``, the remaining rows follow in shorter batches, in ascending
    order of keys. Null is a key like any other, and the last one. Keys are whole numbers, booleans
    or texts.
    """

    input: Node
    column: str
    n: int
    drop_last: bool

    rows: ClassVar[Rows] = Rows.REGROUPED
    # Position and counts are saved, buffered rows read again.
    resume_cost = ResumeCost(state_bytes=2560, work="back to the oldest row it holds, or one pass")
    gathers: ClassVar[int] = 2

    def check(self) -> None:
        """Raise PlanError for a size that is not positive, and for a batched input."""
        element_count("group_by_window window_size", self.n, least=1)
        require_unbatched(self.input, "group_by_window")

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema; raise SchemaError if ``column`` cannot be a key."""
        key_of(given, self.column, "group_by_window")
        return given

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that buffers rows by key."""
        return KeyedBatches(self, open_input, epoch, position, at)

    def size(self, _key: Key) -> int:
        """Return the rows of a full batch."""
        return self.n

    def keyed(self, block: Block) -> KeyedRows:
        """Return the keys of the rows of ``block``."""
        kind = key_of(block.schema, self.column, "group_by_window")
        column = to_arrow(block[self.column], kind).dictionary_encode(null_encoding="encode")
        return KeyedRows(np.asarray(column.indices), column.dictionary.to_pylist())

    def parameters_text(self) -> str:
        """Return the column and the size as text."""
        return f"{self.column!r}, {self.n}{', drop_last=True' if self.drop_last else ''}"


def key_of(given: Schema, column: str, verb: str) -> pa.DataType:
    """Return the type of ``column``; raise SchemaError if its values cannot be keys."""
    kind = given.require(column, verb)
    texts = {pa.string(), pa.large_string(), pa.null()}
    if (code_of(kind)[0] in "biu" and not shape_of(kind)) or kind in texts:
        return kind
    raise SchemaError(
        f"{verb} cannot group by {column!r}, which is {short(kind)}",
        why="keys are whole numbers, booleans or texts",
        try_=f".cast({{{column!r}: ...}}), or an expression such as .hash(1000)",
    )
