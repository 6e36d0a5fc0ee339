"""Rows of images or sounds pass through a sequence of functions, one row after the other.

No column is made in between, and the last function writes each result to its place in the column
of results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.base.memory_turns import TURNS
from dml.base.open_tensors import OpenTensor, arrays_in, column_of
from dml.kernels.functions.chain_pass import Chaining
from dml.kernels.functions.function import Function, Params, UnfitFailure, UnfitValue
from dml.kernels.functions.lists import lists_of
from dml.kernels.program import Program
from dml.kernels.program import Step as ProgramStep
from dml.kernels.vec import Register, Vec, from_arrow

if TYPE_CHECKING:
    from dml.kernels.compiled.jit import Kernel

# From the value of a row, the function's parameters, and the row's further arguments, to the next
# value; None is null.
Step: TypeAlias = Callable[[Any, Params, "tuple[Any, ...]"], Any]


class RowLink(NamedTuple):
    """One function of a chain: its name, parameters, and the places of its further arguments.

    Places are counted from 0, without the first column.
    """

    op: str
    params: Params
    given: tuple[int, ...] = ()


Links: TypeAlias = tuple[RowLink, ...]

# What functions of encoded rows have for ``on_error`` if they give null.
NULL = "null"


class AbsentBytes(UnfitValue):
    """A row has no bytes where a file's bytes belong."""


class Making(NamedTuple):
    """What rows are made with: the kernel, if it is compiled, and memory for stacked results."""

    kernel: Kernel | None = None
    room: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray] = np.empty


ALONE = Making()


class RowChain:
    """Passes the value of one row after the other through ``links``; ``steps`` are by name.

    Values are bytes or arrays, as they are in the column ``given``; subclasses may wrap arrays.
    """

    steps: ClassVar[Mapping[str, Step]]

    def __init__(
        self,
        links: Links,
        given: Register,
        others: Sequence[Any] = (),
        kernel: Kernel | None = None,
    ) -> None:
        self.links, self.given, self.others, self.kernel = links, given, others, kernel
        self.found = [(self.steps[link.op], link) for link in links]

    def wrap(self, array: np.ndarray) -> Any:
        """Return an array as the steps take it."""
        return array

    def pass_row(self, values: Any, row: int) -> Any:
        """Return what the last step gives for a row."""
        op = self.links[0].op
        try:
            value = values[row]
            for step, link in self.found:
                op = link.op
                if isinstance(value, np.ndarray):
                    value = self.wrap(value)
                given = tuple(self.others[place][row] for place in link.given)
                value = step(value, link.params, given)
                if value is None:
                    return None
        except UnfitValue as error:
            if isinstance(error, AbsentBytes) and NULL in self.links[0].params:
                return None
            raise UnfitFailure(row, str(error), op) from None
        return value

    def value(self, values: Any, row: int) -> Any:
        """Return the result of a row: an array, bytes, another value of its column, or None."""
        return self.pass_row(values, row)

    def write(self, values: Any, row: int, out: np.ndarray) -> bool:
        """Write the result of a row to ``out``; return False for null."""
        found = self.value(values, row)
        if found is None:
            return False
        out[...] = found
        return True


def run(
    chain: type[RowChain],
    links: Links,
    columns: Sequence[Register],
    kind: pa.DataType,
    making: Making = ALONE,
) -> Register:
    """Return the column of type ``kind`` that ``links`` give for ``columns``; null gives null.

    The first of ``columns`` has the images or sounds; all have one value for each row.
    """
    values, present = _rows(columns[0])
    others = [_values(column) for column in columns[1:]]
    for _, valid in others:
        present = present if valid is None else present & valid
    work = chain(links, columns[0], [each for each, _ in others], making.kernel)
    if isinstance(kind, pa.FixedShapeTensorType):
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        out = making.room((len(present), *kind.shape), dtype)
        return _stacked(work, values, present, out)
    found = [
        _alone(work.value, values, row) if there else None for row, there in enumerate(present)
    ]
    if isinstance(kind, OpenTensor):
        return column_of(found, kind)
    made = pa.array(found, kind)
    return from_arrow(made) if pa.types.is_integer(kind) else made


def _stacked(work: RowChain, values: Any, present: np.ndarray, out: np.ndarray) -> Vec:
    """Return results of one shape, each written to its place in ``out``."""
    for row, there in enumerate(present):
        if not there or not _alone(work.write, values, row, out[row]):
            out[row] = 0
            present[row] = False
    return Vec(out, None if present.all() else present)


def _alone(call: Callable[..., Any], *given: Any) -> Any:
    """Call for one row, and end the turn that its memory may have taken."""
    try:
        return call(*given)
    finally:
        TURNS.give_back()


def merged(program: Program, op: str, chain: type[RowChain]) -> Program:
    """Merge consecutive functions of a program that ``chain`` has into single steps ``op``."""
    return Chaining(
        program,
        op,
        fits=lambda step: step.op in chain.steps,
        begins=lambda _: True,
        ends=lambda _: False,
        link=_link,
    ).merge_chains()


def _link(step: ProgramStep, place: int) -> RowLink:
    return RowLink(step.op, step.params, tuple(range(place, place + len(step.args) - 1)))


def alone(
    op: str,
    chain: Callable[[], type[RowChain]],
    gives: Callable[[pa.DataType, Params], pa.DataType],
) -> Callable[[Sequence[Register], Params], Any]:
    """Return ``Function.run`` of one function, which is a chain of one link.

    ``chain`` imports the class when the first row is computed; ``gives`` is ``Function.gives``.
    """

    def run_alone(columns: Sequence[Register], params: Params) -> Register:
        link = RowLink(op, params, tuple(range(len(columns) - 1)))
        return run(chain(), (link,), columns, gives(_type_of(columns[0]), params))

    return run_alone


def chain_type(functions: Mapping[str, Function], links: Links, column: Register) -> pa.DataType:
    """Return the type that ``links`` give for ``column``; ``functions`` are by name."""
    kind = _type_of(column)
    for link in links:
        kind = functions[link.op].gives(kind, link.params)
    return kind


def _type_of(column: Register) -> pa.DataType:
    if not isinstance(column, Vec):
        return column.type
    value = pa.from_numpy_dtype(column.values.dtype)
    return pa.fixed_shape_tensor(value, column.values.shape[1:])


def _rows(column: Register) -> tuple[Any, np.ndarray]:
    """Return the bytes or array of each row, and which rows are not null."""
    if isinstance(column, Vec):
        valid = np.ones(len(column.values), bool) if column.valid is None else column.valid.copy()
        return column.values, valid
    valid = column.is_valid().to_numpy(zero_copy_only=False).copy()
    if isinstance(column.type, OpenTensor):
        return arrays_in(column), valid
    if is_list(column.type):
        found = lists_of(column)
        flat = found.values.to_numpy(zero_copy_only=False)
        pairs = zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
        return [flat[start : start + count] for start, count in pairs], valid
    if pa.types.is_struct(column.type):
        column = column.field("bytes")
        absent = valid & column.is_null().to_numpy(zero_copy_only=False)
        return _Encoded(column, np.flatnonzero(absent)), valid
    return _Encoded(column), valid


class _Encoded:
    """The bytes of each row, without a copy; rows ``absent`` have a path in their place."""

    def __init__(self, column: pa.Array, absent: Collection[int] = ()) -> None:
        self.absent = frozenset(map(int, absent))
        wide = pa.types.is_large_binary(column.type)
        _, ends, data = column.buffers()
        edges = np.frombuffer(ends, np.int64 if wide else np.int32)
        self.edges = edges[column.offset : column.offset + len(column) + 1]
        self.data = memoryview(b"" if data is None else data).cast("B")

    def __getitem__(self, row: int) -> memoryview:
        if row in self.absent:
            raise AbsentBytes(
                "it has no bytes, but the path of a file, which is not opened: "
                "read_images, read_audio and read_videos read files"
            )
        return self.data[self.edges[row] : self.edges[row + 1]]


def _values(column: Register) -> tuple[Any, np.ndarray | None]:
    """Return the number or array of each row, and which rows are not null; None means all."""
    if isinstance(column, Vec):
        return column.values, column.valid
    return _rows(column)
