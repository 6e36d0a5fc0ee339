"""Rows of images pass through a sequence of functions, one image after the other.

No column of images is made in between, and the last function writes each image to its place in the
column of results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor, arrays_in, column_of
from dml.kernels.functions.function import UnfitFailure
from dml.kernels.images.codec import COLOURS, UnreadableImage
from dml.kernels.images.pixels import Misfit, Pixels
from dml.kernels.images.steps import STEPS, float_table
from dml.kernels.vec import Register, Vec

if TYPE_CHECKING:
    from dml.kernels.compiled.jit import Kernel

# The last functions of a chain, which write floats.
WRITERS = ("image.normalize",)


class ImageLink(NamedTuple):
    """One function of a chain: its name, parameters, and the places of its further arguments.

    Places are counted from 0, without the images.
    """

    op: str
    params: tuple[Any, ...]
    given: tuple[int, ...] = ()


Links: TypeAlias = tuple[ImageLink, ...]


class Making(NamedTuple):
    """What images are made with: the kernel, if it is compiled, and memory for stacked results."""

    kernel: Kernel | None = None
    room: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray] = np.empty


ALONE = Making()


def run(
    links: Links, columns: Sequence[Register], kind: pa.DataType, making: Making = ALONE
) -> Register:
    """Return the column of type ``kind`` that ``links`` give for ``columns``; null gives null.

    The first of ``columns`` has the images; all have one value for each row.
    """
    images, present = _images(columns[0])
    others = [_values(column) for column in columns[1:]]
    for _, valid in others:
        present = present if valid is None else present & valid
    work = _Chain(links, [values for values, _ in others], making.kernel)
    if isinstance(kind, pa.FixedShapeTensorType):
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        out = making.room((len(present), *kind.shape), dtype)
        return _stacked(work, images, present, out)
    found = [work.value(images, row) if there else None for row, there in enumerate(present)]
    return column_of(found, kind) if isinstance(kind, OpenTensor) else pa.array(found, kind)


def _stacked(work: _Chain, images: Any, present: np.ndarray, out: np.ndarray) -> Vec:
    """Return results of one shape, each written to its place in ``out``."""
    for row, there in enumerate(present):
        if not there or not work.write(images, row, out[row]):
            out[row] = 0
            present[row] = False
    return Vec(out, None if present.all() else present)


class _Chain:
    """Passes one image after the other through ``links``."""

    def __init__(self, links: Links, others: Sequence[Any], kernel: Kernel | None) -> None:
        self.kernel, self.others = kernel, others
        last = links[-1]
        self.writer = last if last.op in WRITERS else None
        links = links[:-1] if self.writer is not None else links
        self.steps = [(STEPS[link.op], link) for link in links]
        self.first = links[0].op if links else last.op

    def made(self, images: Any, row: int) -> Any:
        """Return what the last step gives for a row: pixels, an array, bytes or None."""
        op = self.first
        try:
            found = images[row]
            for step, link in self.steps:
                op = link.op
                if isinstance(found, np.ndarray):
                    found = Pixels(found, self.kernel)
                given = tuple(self.others[place][row] for place in link.given)
                found = step(found, link.params, given)
                if found is None:
                    return None
        except (UnreadableImage, Misfit) as error:
            raise UnfitFailure(row, str(error), op) from None
        return found

    def value(self, images: Any, row: int) -> Any:
        """Return the result of a row: an array, bytes or None."""
        found = self.made(images, row)
        if found is None or isinstance(found, bytes) or self.writer is None:
            return found.array() if isinstance(found, Pixels) else found
        pixels = found if isinstance(found, Pixels) else Pixels(found, self.kernel)
        table, planes = self._form(pixels)
        rows, columns, channels = pixels.shape
        shape = (channels, rows, columns) if planes else (rows, columns, channels)
        out = np.empty(shape, np.float32)
        pixels.write(out, table, planes=planes)
        return out

    def write(self, images: Any, row: int, out: np.ndarray) -> bool:
        """Write the result of a row to ``out``; return False for null."""
        found = self.made(images, row)
        if found is None:
            return False
        if isinstance(found, np.ndarray) and self.writer is None:
            out[...] = found
            return True
        pixels = found if isinstance(found, Pixels) else Pixels(found, self.kernel)
        table, planes = (None, False) if self.writer is None else self._form(pixels)
        pixels.write(out, table, planes=planes)
        return True

    def _form(self, pixels: Pixels) -> tuple[np.ndarray, bool]:
        """Return the table of floats, and whether channels are before rows."""
        if self.writer is None:
            raise TypeError("the chain ends in bytes")
        mean, std, layout = self.writer.params
        channels = pixels.shape[2]
        return float_table((mean * channels)[:channels], (std * channels)[:channels]), (
            layout == "CHW"
        )


def _images(column: Register) -> tuple[Any, np.ndarray]:
    """Return the bytes or array of each row, and which rows are not null."""
    if isinstance(column, Vec):
        valid = np.ones(len(column.values), bool) if column.valid is None else column.valid.copy()
        return column.values, valid
    valid = column.is_valid().to_numpy(zero_copy_only=False).copy()
    if isinstance(column.type, OpenTensor):
        arrays = arrays_in(column)
        return (_Coloured(arrays) if column.type.shape[2] is None else arrays), valid
    if pa.types.is_struct(column.type):
        column = column.field("bytes")
        absent = valid & column.is_null().to_numpy(zero_copy_only=False)
        return _Encoded(column, np.flatnonzero(absent)), valid
    return _Encoded(column), valid


class _Coloured(list[Any]):
    """Arrays of a type that leaves the number of channels open; each must have three."""

    def __getitem__(self, row: Any) -> Any:
        found = super().__getitem__(row)
        if found.shape[2] != COLOURS:
            text = f"it has {found.shape[2]} channels; a function's schema must say so: u1[?,?,1]"
            raise Misfit(text)
        return found


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
            raise UnreadableImage("it has no bytes, but the path of a file, which is not opened")
        return self.data[self.edges[row] : self.edges[row + 1]]


def _values(column: Register) -> tuple[Any, np.ndarray | None]:
    if not isinstance(column, Vec):
        raise TypeError("the arguments of image functions are numbers")
    return column.values, column.valid
