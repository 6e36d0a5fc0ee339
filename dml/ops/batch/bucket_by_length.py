"""``bucket_by_length`` forms batches of rows of similar length."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.base.open_tensors import open_axis, shapes_in
from dml.checks import element_count
from dml.data.list_marks import lengths_of, plain
from dml.data.schema import Schema, code_of, shape_of, short
from dml.errors import NullValueError, PlanError, SchemaError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.node import Node, op
from dml.expr.user_call import blamed
from dml.kernels.arrow_ops import compute
from dml.kernels.functions.function import is_bytes, is_text
from dml.kernels.vec import validity
from dml.ops.batch.keyed_batches import Key, KeyedBatches, KeyedRows
from dml.ops.unary import require_unbatched

if TYPE_CHECKING:
    from dml.data.block import Block, Values
    from dml.expr.flow import At, Flow, Opener, Position

MOST = (1 << 63) - 1


@op
class BucketByLength(Node):
    """Batches rows by bucket: bucket i has ``boundaries[i - 1] <= length < boundaries[i]``.

    The length is that of a list, a text (in characters), bytes, or the only open axis of a tensor,
    or the value of an integer column. A batch is emitted as soon as bucket i has ``sizes[i]`` rows;
    at the end the remaining rows follow, in order of buckets. A null raises NullValueError.
    """

    input: Node
    column: str
    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    drop_last: bool

    rows: ClassVar[Rows] = Rows.REGROUPED
    batched = True
    gathers: ClassVar[int] = 2

    def check(self) -> None:
        """Raise PlanError unless boundaries ascend, sizes match them, and the input has rows."""
        require_unbatched(self.input, "bucket_by_length")
        for bound in self.boundaries:
            element_count("bucket_by_length boundaries", bound)
        for size in self.sizes:
            element_count("bucket_by_length batch_sizes", size, least=1)
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise PlanError(
                f"bucket_by_length boundaries {list(self.boundaries)} do not rise",
                why="each is the end of one bucket and the start of the next",
                try_="boundaries=[10, 20, 40]",
            )
        if len(self.sizes) != len(self.boundaries) + 1:
            raise PlanError(
                f"{len(self.sizes)} batch_sizes for {len(self.boundaries)} boundaries",
                why="there is a bucket below each boundary, and one above the last",
                try_="one size more than there are boundaries, or one number for all",
            )

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema; raise SchemaError if ``column`` has no length."""
        self._measured(given)
        return given

    def _measured(self, given: Schema) -> pa.DataType:
        kind = plain(given.require(self.column, "bucket_by_length"))
        whole = code_of(kind)[0] in "iu" and not shape_of(kind)
        sized = is_list(kind) or is_text(kind) or is_bytes(kind)
        if sized or whole or open_axis(kind) is not None:
            return kind
        raise SchemaError(
            f"bucket_by_length cannot measure {self.column!r}, which is {short(kind)}",
            why="lists, texts, bytes and one axis of tensors have a length; a whole number is one",
            try_=f".with_columns(length=...) of {self.column!r}, and buckets by that",
        )

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: position and counts are saved, buffered rows read again."""
        work = "back to the oldest row it holds"
        return ResumeCost(
            state_bytes=64 + 12 * len(self.sizes), work_rows=sum(self.sizes), work=work
        )

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that buffers rows by bucket."""
        return KeyedBatches(self, open_input, epoch, position, at)

    def size(self, bucket: Key) -> int:
        """Return the rows of a full batch of ``bucket``."""
        return self.sizes[cast("int", bucket)]

    def keyed(self, block: Block) -> KeyedRows:
        """Return the buckets of the rows of ``block``, up to the first row without a length."""
        kind, values = self._measured(block.schema), block[self.column]
        keys: list[Key] = list(range(len(self.sizes)))
        nulls = absent(values)
        n = int(nulls[0]) if len(nulls) else block.n
        lengths = _lengths(values, kind)[:n]
        bounds = np.array([min(bound, MOST) for bound in self.boundaries], dtype=np.int64)
        codes = np.searchsorted(bounds, lengths, side="right")
        if n == block.n:
            return KeyedRows(codes, keys)
        error = NullValueError(
            f"{self.column!r} is null, and a null has no length",
            at=self.label(),
            why="bucket_by_length puts every row into the bucket of its length",
            try_=f".filter(~col({self.column!r}).is_null()) before it",
        )
        return KeyedRows(codes, keys, blamed(error, block.ids, n))

    def parameters_text(self) -> str:
        """Return the column, the boundaries and the sizes as text."""
        same = len(set(self.sizes)) == 1
        sizes = self.sizes[0] if same else list(self.sizes)
        last = ", drop_last=True" if self.drop_last else ""
        return f"{self.column!r}, {list(self.boundaries)}, {sizes}{last}"


def absent(values: Values) -> np.ndarray:
    """Return the indices of the null values, ascending."""
    valid = validity(values) if isinstance(values, pa.Array) else values.valid
    return np.zeros(0, np.int64) if valid is None else np.flatnonzero(~valid)


def _lengths(values: Values, kind: pa.DataType) -> np.ndarray:
    """Return the lengths (n,) i8, at most the largest int64; undefined where null."""
    if not isinstance(values, pa.Array):
        unsigned = values.values.dtype == np.uint64
        found = np.minimum(values.values, np.uint64(MOST)) if unsigned else values.values
        return found.astype(np.int64)
    if is_list(kind):
        return lengths_of(values)
    axis = open_axis(kind)
    if axis is not None:
        sizes: np.ndarray = shapes_in(values)[:, axis].astype(np.int64)
        return sizes
    length = compute().utf8_length if is_text(kind) else compute().binary_length
    return np.asarray(length(values).fill_null(0)).astype(np.int64)
