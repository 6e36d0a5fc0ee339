"""``explode`` outputs one row per element of a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.base.open_tensors import OpenTensor, element_type, elements_in
from dml.data.block import Block, Values, from_arrow, mask, take
from dml.data.layouts import usual_column
from dml.data.schema import Schema, code_of, shape_of, short, tensor
from dml.errors import CastError, DmlError, PlanError, SchemaError
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.user_call import blamed
from dml.kernels.functions.lists import lists_of as lists_in
from dml.kernels.vec import Vec, taken
from dml.ops.row.flat_map import OUT_ROWS
from dml.ops.unary import names_text, require_rows

if TYPE_CHECKING:
    from dml.expr.flow import At

EXPLODE = 0x6578706C6F6465


@op
class Explode(Node):
    """Outputs one row per element of the lists in ``names``; several lists advance together.

    An empty list or null gives one row with null. Tensors count as lists along their first axis.
    Other columns are repeated in all rows of an input row; ids are derived from the input row's id,
    this operator and the number of the element. Raises SchemaError for columns that are not lists,
    and CastError if the lists of a row have different lengths.
    """

    input: Node
    names: tuple[str, ...]

    rows: ClassVar[Rows] = Rows.MORE
    hands_on: ClassVar[bool] = True
    parameters_text = names_text

    @property
    def looks_at(self) -> frozenset[str]:  # type: ignore[override]
        """Return the exploded columns."""
        return frozenset(self.names)

    def check(self) -> None:
        """Raise PlanError if no column is given, and for a batched input."""
        if not self.names:
            raise PlanError(
                "explode needs at least one column", why="none was named", try_='.explode("words")'
            )
        require_rows(self.input, "explode")

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema, with elements in place of lists."""
        for name in self.names:
            given.require(name, "explode")
        return Schema(
            (name, element(name, kind) if name in self.names else kind)
            for name, kind in given.items()
        )

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield a row for each list element in ``block``, at most 4096 rows at a time."""
        del at
        if not block.n:
            return
        try:
            schema = self.schema_over(block.schema)
        except SchemaError as error:
            raise error.located(self.label()) from None
        lists = {name: lists_of(block[name]) for name in self.names}
        sizes = [np.maximum(each.sizes, 1) for each in lists.values()]
        uneven = np.flatnonzero(np.any([each != sizes[0] for each in sizes], axis=0))
        stop = int(uneven[0]) if len(uneven) else block.n
        yield from self._pieces(block, schema, lists, sizes[0][:stop])
        if stop < block.n:
            raise blamed(self._uneven([int(each[stop]) for each in sizes]), block.ids, stop)

    def _pieces(
        self, block: Block, schema: Schema, lists: dict[str, ExplodedLists], sizes: np.ndarray
    ) -> Iterator[Block]:
        ends = np.cumsum(sizes)
        rows = int(ends[-1]) if len(ends) else 0
        for first in range(0, rows, OUT_ROWS):
            place = np.arange(first, min(first + OUT_ROWS, rows))
            parents = np.searchsorted(ends, place, side="right")
            child = place - (ends - sizes)[parents]
            columns = tuple(
                lists[name].at(parents, child) if name in lists else take(values, parents)
                for name, values in zip(block.schema, block.columns, strict=True)
            )
            made = EXPLODE + self.level
            ids = block.ids.take(parents).derive(made, child.astype(np.uint64))
            yield Block(schema, columns, ids)

    def _uneven(self, sizes: list[int]) -> DmlError:
        found = ", ".join(f"{n} of {name!r}" for name, n in zip(self.names, sizes, strict=True))
        return CastError(
            f"explode meets lists that make different numbers of rows: {found}",
            at=self.label(),
            why="lists that are exploded together stand side by side; an empty one makes one row",
            try_="one explode after the other, for each with each",
        )


class ExplodedLists(NamedTuple):
    """Concatenated lists: list i is ``values[starts[i] : starts[i] + sizes[i]]``; null is empty.

    ``starts`` and ``sizes`` are (n,) i8.
    """

    values: Values
    starts: np.ndarray
    sizes: np.ndarray

    def at(self, rows: np.ndarray, child: np.ndarray) -> Values:
        """Return for each of ``rows`` its list's element at ``child``; null if it is empty."""
        absent = self.sizes[rows] == 0
        index = np.where(absent, 0, self.starts[rows] + child)
        if not isinstance(self.values, Vec):
            return _chosen(self.values, index, absent)
        values = self.values.values
        if not len(values):
            return Vec(np.zeros((len(rows), *values.shape[1:]), values.dtype), ~absent)
        valid = mask(self.values)[index] & ~absent
        return Vec(values[index], None if valid.all() else valid)


def _chosen(column: Any, index: np.ndarray, absent: np.ndarray) -> Any:
    """Return the values of an Arrow column at ``index``, null where ``absent``."""
    if len(index) and not absent.any() and (np.diff(index) == 1).all():
        return column.slice(int(index[0]), len(index))  # no copy of large elements
    return taken(column, index, absent)


def lists_of(column: Values) -> ExplodedLists:
    """Return the lists of a list column, or of tensors along their first axis."""
    if isinstance(column, Vec):
        n, size, *rest = column.values.shape
        sizes = np.where(mask(column), size, 0)
        return ExplodedLists(
            Vec(column.values.reshape(n * size, *rest), None), size * np.arange(n), sizes
        )
    if isinstance(column.type, OpenTensor):
        elements, counts = elements_in(column)
        made = Vec(elements, None) if isinstance(elements, np.ndarray) else elements
        return ExplodedLists(made, np.cumsum(counts) - counts, counts)
    found = lists_in(column)
    starts = np.cumsum(found.lengths) - found.lengths
    return ExplodedLists(from_arrow(usual_column(found.elements())), starts, found.lengths)


def element(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the type of the elements of a list or tensor; raise SchemaError for other types."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return tensor(code_of(kind), shape_of(kind)[1:])
    if isinstance(kind, OpenTensor):
        return element_type(kind)
    if not is_list(kind):
        raise SchemaError(
            f"explode needs lists, {name!r} is {short(kind)}",
            why="each element of a list becomes a row",
            try_=".flat_map(f) with a function that yields rows",
        )
    inner = kind.value_type
    return inner.value_type if pa.types.is_dictionary(inner) else inner
