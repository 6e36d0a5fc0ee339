"""Files of NumPy arrays are opened here, and their rows read at random or in order.

Values are read from their place in the file without a memory map, since truncation of a mapped file
would terminate the process. Nothing is unpickled, whatever a file requests.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import IO, NamedTuple, cast

import numpy as np

from dml.errors import SourceError
from dml.io.files.file_schemas import TypedFile
from dml.io.files.files import File, unreadable
from dml.io.numpy.npy_header import MOST_HEADER, Header, NpyError, header
from dml.io.stores.byte_ranges import LONGEST, WINDOW, RandomReader, coalesced
from dml.io.stores.stores import Range

FAULTS = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, NotImplementedError)
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
END, MANY = 22, 0xFFFF  # bytes of the end of a directory; more members than it can count
ENCRYPTED = 1  # bit of a member's flags
STEP = 1 << 20
HEAD = MOST_HEADER + 12  # bytes that are read for a header
# An array in column-major order in a packed file can only be read as a whole.
MOST_FOLDED = 64 << 20
AGAIN = "copy or write it again; an upload may not have finished"


class StoredArray(NamedTuple):
    """An array in a file: one column, or one per field; ``member`` names it in an archive."""

    column: str
    header: Header
    member: str

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return self.header.nbytes // max(1, self.header.shape[0])

    @property
    def folded(self) -> bool:
        """True if the values of a row are not contiguous in the file."""
        return self.header.fortran and len(self.header.shape) > 1


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayFile(TypedFile):
    """A file of arrays, each of which has ``rows`` rows."""

    arrays: tuple[StoredArray, ...]
    rows: int

    @property
    def packed(self) -> bool:
        """True for an archive, whose rows can only be read sequentially."""
        return bool(self.arrays and self.arrays[0].member)

    @property
    def direct(self) -> bool:
        """True if any row can be read directly."""
        return not self.packed and not any(array.folded for array in self.arrays)

    @property
    def width(self) -> int:
        """Bytes of a row, summed over all arrays."""
        return sum(array.width for array in self.arrays)


def stored_in(file: File) -> tuple[StoredArray, ...]:
    """Return the arrays of a file; raise SourceError if it is damaged or of another format."""
    try:
        with _opened(file, HEAD) as opened:
            head = opened.read(HEAD)
            if not head.startswith(b"PK"):
                return (_checked(StoredArray("item", header(head), ""), file.size),)
            with zipfile.ZipFile(opened) as archive:
                _check_count(opened, archive)
                return tuple(_member(archive, info) for info in archive.infolist())
    except NpyError as error:
        raise _damaged(file.path, error) from None
    except FAULTS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(file.path, error) from None
        raise _damaged(file.path, error) from None


class InStore(RandomReader):
    """A file in a store, read as bytes, with what ``zipfile`` asks of a file."""

    def ahead(self, ranges: Sequence[Range]) -> None:
        """Fetch ``ranges``, which are read next, together; small gaps between them are included."""
        wide = coalesced(ranges)
        if sum(stop - start for start, stop in wide) > LONGEST:
            wide = sorted(ranges)
        data = self._file.fetch(wide)
        self.hold([(start, found) for (start, _), found in zip(wide, data, strict=True)])
        self._window = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, fewer at the end of the file."""
        return bytes(super().read(size))

    def seekable(self) -> bool:
        """Return True: reads can begin at any byte."""
        return True


def _opened(file: File, window: int = WINDOW) -> AbstractContextManager[IO[bytes]]:
    """Open a file of arrays on disk, or in a store with fetches of ``window`` bytes."""
    if file.remote is None:
        return open(file.path, "rb")
    return closing(cast("IO[bytes]", InStore(file.remote, window=window)))


def _checked(array: StoredArray, size: int) -> StoredArray:
    """Return ``array``; raise NpyError unless it has an axis of rows and takes ``size`` bytes."""
    if not array.header.shape:
        raise NpyError("its array is a single value, without an axis of rows")
    array.header.check_size(size)
    return array


def _check_count(file: IO[bytes], archive: zipfile.ZipFile) -> None:
    """Raise NpyError unless the zip directory has as many members as its end record states."""
    file.seek(-(END + len(archive.comment)), os.SEEK_END)
    said, there = int.from_bytes(file.read(END)[10:12], "little"), len(archive.infolist())
    if said not in (there, MANY):
        raise NpyError(f"its directory is damaged: {there} members are there, and {said} belong")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredArray:
    if not info.filename.endswith(".npy") or info.filename == ".npy":
        raise NpyError(f"its member {info.filename!r} is no array")
    if info.flag_bits & ENCRYPTED or info.compress_type not in PLAIN:
        raise NpyError(f"its member {info.filename!r} is encrypted or packed in a way not read")
    with archive.open(info) as opened:
        found = header(opened.read(HEAD))
    array = _checked(StoredArray(info.filename[:-4], found, info.filename), info.file_size)
    if array.folded and found.nbytes > MOST_FOLDED:
        raise NpyError(f"its member {info.filename!r} lies column by column, and is large")
    return array


def _damaged(path: str, error: Exception) -> SourceError:
    return SourceError(
        f"{path} is not a file of arrays that can be read",
        why=" ".join(str(error).split()) or type(error).__name__,
        try_=AGAIN,
    )


# ----------------------------------------------------------------------------------------- reading


@contextmanager
def reading(file: ArrayFile) -> Iterator[RowReader]:
    """Open a file to read its rows; raise SourceError that names the file if it is damaged."""
    try:
        with _opened(file) as opened:
            if not file.packed:
                yield _Direct(opened)
                return
            with zipfile.ZipFile(opened) as archive:
                yield _InOrder(archive)
    except FAULTS as error:
        raise SourceError(
            f"{file.name} is damaged",
            at=file.path,
            why=" ".join(str(error).split()) or type(error).__name__,
            try_=AGAIN,
        ) from None


class _Direct:
    """Random access to rows in a .npy file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def ahead(self, arrays: Sequence[StoredArray], runs: Sequence[Range]) -> None:
        """Request runs of rows (start, stop), which are read next, together if in a store."""
        if isinstance(self._file, InStore):
            self._file.ahead([p for array in arrays for run in runs for p in _places(array, *run)])

    def rows(self, array: StoredArray, start: int, stop: int) -> np.ndarray:
        """Read rows ``start`` to ``stop`` of ``array``."""
        found = array.header
        pieces = [self._between(*place) for place in _places(array, start, stop)]
        return _shaped(pieces[0] if len(pieces) == 1 else b"".join(pieces), found, stop - start)

    def _between(self, start: int, stop: int) -> bytes:
        self._file.seek(start)
        return _exactly(self._file, stop - start)


def _places(array: StoredArray, start: int, stop: int) -> list[Range]:
    """Return the byte ranges of rows: one range, or if ``folded`` one per value of a row."""
    found, size = array.header, array.header.dtype.itemsize
    if not array.folded:
        return [(found.start + start * array.width, found.start + stop * array.width)]
    count = array.width // size if size else 0
    lines = [found.start + number * found.shape[0] * size for number in range(count)]
    return [(line + start * size, line + stop * size) for line in lines]


class _InOrder:
    """Sequential access to archive members; all bytes are read, so that checksums are verified."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._open: dict[str, IO[bytes]] = {}
        self._whole: dict[str, np.ndarray] = {}
        self._done: dict[str, int] = {}

    def ahead(self, arrays: Sequence[StoredArray], runs: Sequence[Range]) -> None:
        """Do nothing: an archive is read sequentially."""

    def rows(self, array: StoredArray, start: int, stop: int) -> np.ndarray:
        """Read rows ``start`` to ``stop`` of ``array``, behind those that were read before."""
        name, found = array.member, array.header
        if name not in self._open:
            self._open[name] = self._archive.open(name)
            _exactly(self._open[name], found.start)
            self._done[name] = 0
        file = self._open[name]
        if array.folded:
            if name not in self._whole:
                self._whole[name] = _shaped(_exactly(file, found.nbytes), found, found.shape[0])
                _at_end(file)
            return self._whole[name][start:stop]
        left = (start - self._done[name]) * array.width
        while left > 0:
            left -= len(_exactly(file, min(left, STEP)))
        data = _exactly(file, (stop - start) * array.width)
        self._done[name] = stop
        if stop == found.shape[0]:
            _at_end(file)
        return _shaped(data, found, stop - start)


RowReader = _Direct | _InOrder


def _exactly(file: IO[bytes], size: int) -> bytes:
    """Read ``size`` bytes; raise EOFError if there are fewer."""
    pieces, left = [], size
    while left > 0:
        piece = file.read(left)
        if not piece:
            raise EOFError(f"{left} bytes are missing")
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _at_end(file: IO[bytes]) -> None:
    """Read to the end, where the checksum is verified; raise EOFError if bytes are left."""
    if file.read(1):
        raise EOFError("it is longer than its header says")


def _shaped(data: bytes, found: Header, rows: int) -> np.ndarray:
    shape = (rows, *found.shape[1:])
    if not found.dtype.itemsize:
        return np.zeros(shape, found.dtype)
    flat = np.frombuffer(data, found.dtype)
    return flat.reshape(shape, order="F" if found.fortran else "C")


def gathered(file: ArrayFile, arrays: Sequence[StoredArray], index: np.ndarray) -> list[np.ndarray]:
    """Read rows ``index`` (n,) of each array, in that order; adjacent rows are read together."""
    wanted, places = np.unique(index, return_inverse=True)
    cuts = [0, *(np.flatnonzero(np.diff(wanted) != 1) + 1).tolist(), len(wanted)]
    runs = [(int(wanted[a]), int(wanted[b - 1]) + 1) for a, b in itertools.pairwise(cuts)]
    with reading(file) as opened:
        opened.ahead(arrays, runs)
        return [
            np.concatenate([opened.rows(array, *run) for run in runs])[places] for array in arrays
        ]
