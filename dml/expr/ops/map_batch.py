"""This file holds ``map`` after ``batch``: a user's function of a dict of arrays."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.errors import UDFError
from dml.expr.block import Block, Values, from_arrow
from dml.expr.calls import UserFunction, each, raised
from dml.expr.delivery import arrays_of
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.rows import to_values
from dml.expr.schema import TYPES, UNKNOWN, Schema, code_of, shape_of, short, tensor
from dml.kernels.ids import RowIds
from dml.kernels.vec import Vec

if TYPE_CHECKING:
    from dml.expr.flow import At


MAP_BATCH = 0x6D61705F62617463


@op
class MapBatch(Node):
    """Each batch replaced by the dict of arrays that ``fn`` makes of its dict of arrays.

    The inputs are read-only; all returned arrays have one length, the new batch's.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None

    rows: ClassVar[Rows] = Rows.SAME

    def infer(self) -> Schema:
        """What was declared."""
        return self.declared or UNKNOWN

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The mapped batch."""
        arrays = arrays_of(block, nulls="keep")
        for array in arrays.values():
            array.flags.writeable = False
        out: list[Any] = []
        error = each(self.fn.call, [arrays], out)
        if error is not None:
            raise raised(error, self.fn, block.ids, 0, "batch").located(self.label())
        given = {id(array) for array in arrays.values()}
        made = self._block(out[0], block.ids, given)
        yield self._held(made, at)

    def _held(self, made: Block, at: At) -> Block:
        """The batch in the columns and types that were declared, or that the first batch settled.

        Columns may come in another order, and numbers in a type that NumPy calls the same kind.
        """
        wanted = self.declared or at.schemas.setdefault(self.digest.hex(), made.schema)
        if made.schema == wanted:
            return made
        if set(made.schema) != set(wanted):
            raise self._unfit(f"columns {list(made.schema)}, while {list(wanted)} are needed")
        columns = tuple(
            self._cast(name, made[name], made.schema[name], kind) for name, kind in wanted.items()
        )
        return Block(wanted, columns, made.ids)

    def _cast(self, name: str, values: Values, kind: pa.DataType, wanted: pa.DataType) -> Values:
        if kind == wanted:
            return values
        if pa.types.is_null(kind):
            return to_values([None] * len(values), wanted, name, frozenset({type(None)}))
        code = code_of(wanted)
        if isinstance(values, Vec) and code != "arrow" and shape_of(kind) == shape_of(wanted):
            with np.errstate(all="ignore"):
                cast = values.values.astype(code)
            if np.array_equal(cast, values.values, equal_nan=cast.dtype.kind == "f"):
                return Vec(cast, values.valid)
        raise self._unfit(f"column {name!r} of {short(kind)}, while {short(wanted)} is needed")

    def _block(self, made: Any, ids: RowIds, given: Container[int]) -> Block:
        if not isinstance(made, Mapping) or not made:
            raise self._unfit(f"{type(made).__name__}, not a dict of arrays")
        arrays = {str(name): _own(values, given) for name, values in made.items()}
        lone = [name for name, a in arrays.items() if not a.ndim]
        if lone:
            raise self._unfit(f"a single value as column {lone[0]!r}, not one for each row")
        lengths = {name: len(a) for name, a in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise self._unfit(f"columns of unequal lengths: {lengths}")
        rows = next(iter(lengths.values()))
        columns = {name: self._column(name, array) for name, array in arrays.items()}
        schema = Schema((name, kind) for name, (kind, _) in columns.items())
        if rows != len(ids):
            first = ids.take(np.zeros(rows, dtype=np.int64))
            ids = first.derive(MAP_BATCH, np.arange(rows, dtype=np.uint64))
        return Block(schema, tuple(values for _, values in columns.values()), ids)

    def _column(self, name: str, array: np.ndarray) -> tuple[pa.DataType, Values]:
        code = "b1" if array.dtype.kind == "b" else array.dtype.str[1:]
        absent = _absent(array)
        if code in TYPES:
            kind = tensor(code, array.shape[1:])
            return kind, Vec(np.asarray(array), None if absent is None else ~absent)
        try:
            listed = array.dtype.kind == "O" or absent is not None  # None where masked
            made = _inferred(array.tolist()) if listed else pa.array(np.asarray(array))
        except (pa.ArrowException, OverflowError) as error:
            raise self._unfit(f"column {name!r} of {array.dtype}: {error}") from None
        return made.type, from_arrow(made)

    def _unfit(self, what: str) -> UDFError:
        found = UDFError(
            f"{self.fn.name} returned {what}",
            why="batches of one stream have the same columns and types, and arrays of one length",
            try_="return a dict of arrays, the same names and types for every batch",
            operator=self.fn.name,
        )
        return found.located(self.label())

    def shown(self) -> str:
        """The function's name."""
        return self.fn.name


def _own(values: Any, given: Container[int]) -> np.ndarray:
    """A returned array as one that the function cannot write to any more, in native byte order.

    Its ``given`` arrays are read-only; any other it may keep, and fill again for the next batch.
    """
    array: np.ndarray = np.asanyarray(values)
    if id(array) in given:
        return array
    native = array.astype(array.dtype.newbyteorder("="), order="C")
    return native if native.flags.owndata else native.copy()


def _absent(array: np.ndarray) -> np.ndarray | None:
    """The masked rows of a masked array, (n,) bool; None where there are none."""
    if not isinstance(array, np.ma.MaskedArray):
        return None
    mask = np.asarray(np.ma.getmaskarray(array).reshape(len(array), -1).any(axis=1))
    return mask if mask.any() else None


def _inferred(values: list[Any]) -> pa.Array:
    """Values as Arrow types them; whole numbers that only uint64 holds are that."""
    try:
        return pa.array(values)
    except OverflowError:
        return pa.array(values, pa.uint64())
