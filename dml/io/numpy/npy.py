"""NumPy files are read as rows: arrays along their first axis, or fields of structured arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
from dml.data.block import Block, Values, concat, empty
from dml.data.schema import TYPES, code_of, tensor
from dml.errors import SourceError
from dml.expr.node import op
from dml.io.files.file_schemas import TypedFiles, of_one_schema
from dml.io.files.files import File, FilePart, FileSource, bare, chosen, listed, several
from dml.io.files.paths import FileKind, Paths
from dml.io.numpy.array_files import (
    AGAIN,
    ArrayFile,
    RowReader,
    StoredArray,
    gathered,
    reading,
    stored_in,
)
from dml.io.numpy.npy_header import NpyError
from dml.io.source import ATOM_BYTES, ATOM_ROWS, Unit
from dml.io.stores.byte_ranges import LONGEST
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from dml.kernels.vec import code_of as dtype_code

KIND = FileKind("NumPy", (".npy", ".npz"))
COPIES = 2
TEXTS = {"U": pa.string(), "S": pa.binary()}


class ArrayFiles(TypedFiles[ArrayFile]):
    """Files of arrays of equal types, whose headers were read."""

    @cached_property
    def firsts(self) -> np.ndarray:
        """Global number of the first row of every file, followed by the total number of rows."""
        return np.cumsum([0, *(file.rows for file in self.files)])

    @cached_property
    def direct(self) -> bool:
        """True if any row of any file can be read directly."""
        return all(file.direct for file in self.files)

    def spans(self, start: int, stop: int) -> Iterator[tuple[ArrayFile, int, int]]:
        """Yield the files that contain global rows ``start`` to ``stop``, with their row ranges."""
        at = int(np.searchsorted(self.firsts, start, side="right")) - 1
        while start < stop:
            file, first = self.files[at], int(self.firsts[at])
            last = min(stop, first + file.rows)
            if last > start:
                yield file, start - first, last - first
                start = last
            at += 1


@dataclasses.dataclass(frozen=True, slots=True)
class RowSpan(FilePart):
    """Rows from global number ``start`` on; they begin in ``file`` and may end in another file."""

    file: ArrayFile
    start: int


@op
class NumpySource(FileSource):
    """Rows of array files, in the order of the file names and, in a file, of the first axis.

    If every row of every file can be read directly (.npy files, none in column-major order), each
    unit is one atom, and atoms are counted over the rows of all files. Otherwise atoms do not span
    files: each .npz file is one unit, and each atom of a .npy file is one unit.
    """

    files: ArrayFiles
    columns: tuple[str, ...] | None = None
    atom_rows: int | None = None
    word: ClassVar[str] = "numpy"

    @cached_property
    def parts(self) -> tuple[RowSpan, ...]:
        """Runs of rows that are units: single atoms, or whole .npz files."""
        width = max((1, *(file.width for file in self.files.files)))
        each = self.atom_rows or max(1, min(ATOM_ROWS, ATOM_BYTES // width))
        if self.files.direct:
            return tuple(self._cut(0, int(self.files.firsts[-1]), each, each, width))
        found: list[RowSpan] = []
        for file, first in zip(self.files.files, self.files.firsts.tolist(), strict=False):
            rows = file.rows if file.packed else each
            found += self._cut(first, first + file.rows, max(1, rows), each, width)
        return tuple(found)

    def _cut(self, start: int, stop: int, rows: int, each: int, width: int) -> Iterator[RowSpan]:
        for at in range(start, stop, rows):
            file, first, _ = next(self.files.spans(at, stop))
            count = min(rows, stop - at)
            yield RowSpan(file, at // rows, first, count, each, count * width, at)

    @property
    def ids_apart(self) -> bool:  # type: ignore[override]
        """True if an atom may have rows of several files."""
        return len(self.files.files) > 1

    @property
    def addressable(self) -> bool:  # type: ignore[override]
        """True unless a file is an archive or has an array in column-major order."""
        return self.files.direct

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the files, ascending (n,) uint64, and the global number of each first row."""
        keys = np.array([file.key for file in self.files.files], dtype=np.uint64)
        order = np.argsort(keys)
        return keys[order], self.files.firsts[:-1][order]

    def unit_of(self, ids: RowIds) -> Unit | None:
        """Return the unit of the first row in ``ids``, with that row's file; None if unknown."""
        high, low = (int(half[0]) for half in ids.slice(0, 1).arrays())
        for file, first in zip(self.files.files, self.files.firsts.tolist(), strict=False):
            if file.key == high and low < file.rows:
                starts = [part.start for part in self.parts]
                unit = self.unit(int(np.searchsorted(starts, first + low, side="right")) - 1)
                return dataclasses.replace(unit, file=file.name)
        return None

    def likeness(self) -> bytes:
        """Return a digest of the sizes of the files and their row counts."""
        return digest("arrays", [(file.size, file.rows) for file in self.files.files])

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Yield the atoms of a unit; raise SourceError if a file is damaged or changed."""
        part = self.parts[unit.index]
        starts = range(skip_atoms * part.atom_rows, part.rows, part.atom_rows)
        part.file.check_unchanged(fetching=bool(columns))
        if part.file.packed:
            if not columns:
                yield from (bare(part, start) for start in starts)
                return
            with reading(part.file) as opened:
                for start in starts:
                    stop = min(start + part.atom_rows, part.rows)
                    yield self._block(part.file, opened, (start, stop), columns)
                    part.file.check_unchanged(fetching=True)
            return
        if skip_atoms:
            return
        blocks = []
        for file, first, last in self.files.spans(part.start, part.start + part.rows):
            file.check_unchanged(fetching=bool(columns))
            with reading(file) as opened:
                blocks.append(self._block(file, opened, (first, last), columns))
        yield concat(blocks)

    def _block(
        self, file: ArrayFile, opened: RowReader, rows: tuple[int, int], columns: tuple[str, ...]
    ) -> Block:
        wanted = self._wanted(file, columns)
        opened.ahead(wanted, [rows])
        found = {array.column: opened.rows(array, *rows) for array in wanted}
        ids = RowIds.run(file.key, rows[0], rows[1] - rows[0])
        return self._build_block(file, found, ids, columns)

    def _wanted(self, file: ArrayFile, columns: tuple[str, ...]) -> list[StoredArray]:
        """Return the arrays of ``file`` that contain ``columns``."""
        if not columns:
            return []
        return [a for a in file.arrays if a.column in columns or a.header.dtype.names]

    def _build_block(
        self, file: ArrayFile, found: dict[str, np.ndarray], ids: RowIds, columns: tuple[str, ...]
    ) -> Block:
        arrays: Any = found
        for array in found.values():
            arrays = array if array.dtype.names else found
        values = [
            _values(arrays[name], self.files.schema[name], f"column {name!r} of {file.name}")
            for name in columns
        ]
        return Block(self.projected(columns), tuple(values), ids)

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Read the rows at global positions ``index`` (n,) int64, in that order."""
        owners = np.searchsorted(self.files.firsts, index, side="right") - 1
        order = np.argsort(owners, kind="stable")
        blocks = []
        for owner, group in groupby(order.tolist(), key=owners.tolist().__getitem__):
            file = self.files.files[owner]
            file.check_unchanged(fetching=bool(columns))
            rows = index[list(group)] - self.files.firsts[owner]
            wanted = self._wanted(file, columns)
            arrays = gathered(file, wanted, rows) if wanted else []
            found = {a.column: values for a, values in zip(wanted, arrays, strict=True)}
            blocks.append(self._build_block(file, found, RowIds.at(file.key, rows), columns))
        if not blocks:
            return empty(self.projected(columns))
        back = np.empty(len(index), dtype=np.int64)
        back[order] = np.arange(len(index))
        return concat(blocks).take(back)

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Estimate the stored and converted bytes of an atom.

        In an archive, an array in column-major order counts as a whole, since it is read as a
        whole. For a file in a store, the bytes of one request are added.
        """
        part = self.parts[unit.index]
        whole = sum(a.header.nbytes for a in part.file.arrays if part.file.packed and a.folded)
        ahead = LONGEST if part.file.remote else 0
        return COPIES * (part.nbytes // part.rows * part.atom_rows + whole) + ahead

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the stored bytes of the rows, or of the whole file if it is an archive."""
        file = self.parts[unit.index].file
        return file.size if file.packed else unit.nbytes


def _kinds(array: StoredArray) -> Iterator[tuple[str, pa.DataType]]:
    """Yield names and types of the columns of ``array``: its fields, or the array itself."""
    dtype, shape = array.header.dtype, array.header.shape[1:]
    if dtype.names is None:
        yield array.column, _kind(dtype, shape, array.column)
        return
    if shape or array.member:
        where = "has further axes" if shape else "is a member of an archive"
        raise NpyError(f"its array has fields, and {where}")
    for name in dtype.names:
        field = dtype[name]
        yield name, _kind(field.base, field.shape, name)


def _kind(dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> pa.DataType:
    """Return the type of a column; raise NpyError if no column can contain the dtype."""
    native = dtype.newbyteorder("=")
    try:
        if native.kind in "biuf" and dtype_code(native) in TYPES:
            return tensor(dtype_code(native), shape)
        if not shape and native.kind in (*TEXTS, *"mMf"):
            return TEXTS.get(native.kind) or pa.from_numpy_dtype(native)
    except (pa.ArrowException, TypeError, ValueError):
        pass
    axes = f" with axes {list(shape)}" if shape else ""
    raise NpyError(f"column {name!r} is {dtype}{axes}, which no column can hold")


def _values(array: np.ndarray, kind: pa.DataType, where: str) -> Values:
    """Convert an array, over its memory if possible; raise SourceError at ``where`` if invalid."""
    try:
        native = np.require(
            array.astype(array.dtype.newbyteorder("="), copy=False), None, ("C", "A")
        )
        if array.dtype.kind in TEXTS:
            return pa.array(array.tolist(), kind)
        if code_of(kind) == "arrow":
            return pa.array(native, kind)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise SourceError(f"{where} is damaged", why=str(error), try_=AGAIN) from None
    if native.dtype == bool and native.size and native.view(np.uint8).max() > 1:
        raise SourceError(f"{where} is damaged", why="a boolean is neither 0 nor 1", try_=AGAIN)
    return Vec(native)


def _opened(file: File) -> ArrayFile:
    """Read the headers of the arrays in a file; raise SourceError if they cannot form rows."""
    try:
        arrays = stored_in(file)
        schema = pa.schema([pair for array in arrays for pair in _kinds(array)])
    except NpyError as error:
        raise SourceError(
            f"{file.path} cannot be read as rows",
            why=str(error),
            try_="numbers, dates and texts; other arrays as columns of an .npz, or converted",
        ) from None
    rows = {array.header.shape[0] for array in arrays}
    if len(rows) > 1:
        lengths = ", ".join(f"{a.column} {a.header.shape[0]}" for a in arrays)
        raise SourceError(
            f"the arrays of {file.name} have different lengths",
            at=file.path,
            why=lengths,
            try_="a file for each length; row i is made of the i-th value of every array",
        )
    own = (file.path, file.name, file.size, file.mtime_ns, schema)
    return ArrayFile(*own, arrays, rows.pop() if rows else 0, remote=file.remote)


def read_numpy(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> NumpySource:
    """Read rows of .npy and .npz files: a file, a folder, a pattern, or a list of these.

    Rows run along the first axis of an array; further axes are tensor axes. A .npy file has the
    column "item", or one column per field of its rows; the members of an .npz file are columns.
    Byte strings of fixed size lose trailing zeros, as in NumPy. Headers are read now, and values on
    demand; checksums of .npz are verified. Arrays of Python objects, which only pickle can read,
    are errors.

    Raise SourceError for absent or damaged files, or arrays of several lengths or differing types;
    SchemaError for an absent column.
    """
    root, plain, given = listed(paths, KIND, storage_options)
    files = ArrayFiles(root, of_one_schema(several(_opened, plain)), given)
    return NumpySource(files, chosen(columns, "read_numpy"), atom_rows)
