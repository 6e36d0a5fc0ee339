"""Byte streams are divided into records of a ``Form``, and byte offsets of parts are recorded.

Memory is bounded by one window of the stream: a record, or the bytes of one read.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import ClassVar

import numpy as np
import pyarrow as pa
import xxhash

from dml.data.schema import Schema
from dml.errors import InternalError, SourceError
from dml.io.files.compression import ByteStream, opened, packing
from dml.io.files.files import File
from dml.io.source import ATOM_BYTES, ATOM_ROWS
from dml.io.stores.store_errors import StoreError

WINDOW = 1 << 20
# A longer record usually means a file of another kind, or a decompression bomb.
LONGEST = 32 << 20
# The maximum bytes of an atom in a compressed file, where all atoms have equal row counts.
LARGEST_ATOM = 2 * LONGEST
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Note = Callable[[bytes], None]


class Form:
    """A file format: where rows end and how they are decoded; ``schema`` has all its columns.

    By default the last row of a file needs no end.
    """

    schema: Schema
    # Bytes before a row that are not part of it, skipped to find where the row begins.
    blank: ClassVar[bytes] = b"\r\n"
    # What rows of a format without lines are called in messages.
    row_word: ClassVar[str] = ""

    @property
    def digest(self) -> bytes:
        """Digest of all settings that affect decoding."""
        raise InternalError(f"{type(self).__name__} has no name")

    def ending(self, file: File) -> str:
        """Return the suffix that stands for the compression of ``file``; "" if there is none."""
        return packing(file.name)

    def packed(self, file: File) -> bool:
        """Return True for a compressed file, which can only be read from its start."""
        return bool(self.ending(file))

    def open(
        self, file: File, start: int = 0, stop: int | None = None
    ) -> AbstractContextManager[ByteStream]:
        """Open the uncompressed bytes of ``file`` from ``start`` to ``stop`` (see ``opened``)."""
        return opened(file, start, stop, self.ending(file))

    def first(self, file: File) -> int:
        """Return the offset in the uncompressed ``file`` at which its rows begin."""
        with self.open(file, stop=len(BYTE_ORDER_MARK)) as stream:
            return after_mark(stream.read(len(BYTE_ORDER_MARK)))

    def spot(self, file: File, row: int, at: int) -> str:
        """Describe the location of row ``row``, which begins at byte ``at``, for users."""
        if not self.row_word:
            return spot(file, row, at)
        of = " of what it unpacks to" if self.packed(file) else ""
        return f"{file.path}, {self.row_word} {row}, byte {at}{of}"

    def ends(self, window: bytes) -> np.ndarray:
        """Return the byte offset in ``window`` just past each complete row: (n,) int64, ascending.

        ``window`` begins with a record. Records that are not rows, such as empty lines, belong to
        the row after them.
        """
        raise InternalError(f"{type(self).__name__} finds no rows")

    def unclosed(self, window: bytes) -> int | None:
        """Return the offset of an unclosed quote in ``window``; None if there is none."""
        return None

    def last(self, window: bytes) -> bool:
        """Return True if ``window``, all bytes after the last row end of a file, is a row.

        Raise SourceError if ``window`` is a truncated row.
        """
        return True

    def decode(self, data: bytes, rows: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Decode ``columns`` of ``rows`` rows in ``data``; raise RowError for an invalid row."""
        raise InternalError(f"{type(self).__name__} decodes nothing")


def after_mark(head: bytes) -> int:
    """Return the length of the byte order mark at the start of ``head``; 0 if there is none."""
    return len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0


def spot(file: File, row: int, at: int, *, returns: bool = False) -> str:
    """Describe the location of row ``row`` with byte ``at``; ``returns``: see ``line_at``."""
    return f"{file.path}, row {row}, line {line_at(file, at, returns=returns)}"


def line_at(file: File, at: int, *, returns: bool) -> int:
    r"""Return the number of the line with byte ``at``; the file is read again up to that byte.

    Lines end with ``\n``, and if ``returns`` also with a single ``\r``.
    """
    line, newlines = 1, io.IncrementalNewlineDecoder(None, translate=returns)
    with opened(file) as stream:
        while at > 0 and (piece := stream.read(min(at, WINDOW))):
            line += newlines.decode(piece.decode("latin-1")).count("\n")
            at -= len(piece)
    return line + newlines.decode("", final=True).count("\n")


def windows(
    stream: ByteStream, form: Form, note: Note | None = None
) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield the bytes of complete rows, with the offset just past each row: (n,) int64.

    ``note`` is called with all bytes. Damage, or a row longer than ``LONGEST``, raises SourceError
    after the rows before it.
    """
    held, size = b"", WINDOW
    while piece := stream.read(size):
        if note is not None:
            note(piece)
        window = held + piece if held else piece
        ends = form.ends(window)
        too_long = np.flatnonzero(np.diff(ends, prepend=0) > LONGEST)
        if len(too_long):
            ends = ends[: too_long[0]]
        done = int(ends[-1]) if len(ends) else 0
        if done:
            yield (window if done == len(window) else window[:done]), ends
        held = window[done:]
        if len(too_long) or len(held) > LONGEST:
            raise _too_long(form.unclosed(held))
        # so that rescanning costs no more than reading
        size = max(WINDOW, min(len(held), LONGEST - len(held)))
    if held and form.last(held):
        yield held, np.array([len(held)], dtype=np.int64)


def _too_long(quote: int | None) -> SourceError:
    """Build the error for a row without an end, perhaps due to an unclosed quote at ``quote``."""
    what = f"a row is longer than {LONGEST} bytes"
    if quote is None:
        why = "rows are read an atom at a time, and this one has no end in sight"
        return SourceError(what, why=why, try_="read_binary_files for files without lines")
    why = "a quote opens on that line, and nothing closes it"
    error = SourceError(what, why=why, try_="quote='' if quotes are letters here; or mend the file")
    error.offset = quote
    return error


def atoms(found: Iterable[tuple[bytes, np.ndarray]], atom_rows: int) -> Iterator[tuple[bytes, int]]:
    """Yield each atom's bytes and row count; ``found`` has bytes and where their rows end."""
    pieces: list[bytes] = []
    rows = 0
    for window, ends in found:
        start = at = 0
        while len(ends) - at >= atom_rows - rows:
            at += atom_rows - rows
            stop = int(ends[at - 1])
            pieces.append(window[start:stop])
            yield b"".join(pieces), atom_rows
            pieces, rows, start = [], 0, stop
        if start < len(window):
            pieces.append(window[start:] if start else window)
            rows += len(ends) - at
    if rows:
        yield b"".join(pieces), rows


@dataclasses.dataclass(frozen=True, eq=False)
class PartIndex:
    """The parts of a file: four arrays, (n,) int64 each, with one number per part.

    ``starts`` are offsets in the uncompressed file, ``atom_rows`` the rows per atom, and ``widest``
    the bytes of the largest atom. The readable rows end at offset ``end``. If ``broken``, the last
    row represents unreadable bytes. ``content`` is the digest of the uncompressed bytes.
    """

    starts: np.ndarray
    rows: np.ndarray
    atom_rows: np.ndarray
    widest: np.ndarray
    end: int
    content: bytes
    broken: bool


def index(
    stream: ByteStream, form: Form, start: int, atom_rows: int | None, *, packed: bool
) -> PartIndex:
    """Scan a file once from byte ``start`` on, and return its parts.

    Atoms have ``atom_rows`` rows, and parts about 8 MiB; without ``atom_rows``, each part is one
    atom of at most 65,536 rows and 8 MiB. A compressed file (``packed``) is one part; without
    ``atom_rows``, its atoms have as many rows as the largest power of two that fits.
    """
    hasher = xxhash.xxh3_128()
    runs: Runs | OneRun = OneRun(start, atom_rows) if packed else Runs(start, atom_rows)
    base, broken = start, False
    try:
        for window, ends in windows(stream, form, hasher.update):
            runs.add(ends + base)
            base += len(window)
    except StoreError:
        raise
    except SourceError:
        runs.add(np.array([base], dtype=np.int64))
        broken = True
    table = np.array(runs.finished(), dtype=np.int64).reshape(-1, 4)
    starts, rows, each, widest = table.T
    return PartIndex(starts, rows, each, widest, base, hasher.digest(), broken)


class Runs:
    """The parts of an uncompressed file: about 8 MiB each, or one atom without ``atom_rows``."""

    def __init__(self, start: int, atom_rows: int | None) -> None:
        self.given, self.atom_rows = atom_rows is not None, atom_rows or ATOM_ROWS
        self.parts: list[tuple[int, int, int, int]] = []
        self.start = self.atom_start = self.end = start
        self.rows = self.atom = self.widest = 0

    def add(self, ends: np.ndarray) -> None:
        """Add rows that end at the file offsets ``ends``, ascending."""
        at = 0
        while at < len(ends):
            taken = min(len(ends) - at, self.atom_rows - self.atom)
            full = self.atom + taken == self.atom_rows
            if not self.given:
                most = self.atom_start + ATOM_BYTES
                fits = int(np.searchsorted(ends[at : at + taken], most, side="right"))
                if fits < taken:
                    taken, full = max(fits, int(not self.atom)), True
            self.atom, at = self.atom + taken, at + taken
            if taken:
                self.end = int(ends[at - 1])
            if full:
                self._close_atom()

    def _close_atom(self) -> None:
        self.rows, self.atom = self.rows + self.atom, 0
        self.widest = max(self.widest, self.end - self.atom_start)
        self.atom_start = self.end
        if not self.given or self.end - self.start >= ATOM_BYTES:
            self._close_part()

    def _close_part(self) -> None:
        each = self.atom_rows if self.given else self.rows
        self.parts.append((self.start, self.rows, each, self.widest))
        self.start, self.rows, self.widest = self.end, 0, 0

    def finished(self) -> list[tuple[int, int, int, int]]:
        """Return for each part: start, rows, rows per atom, and the bytes of its largest atom."""
        if self.atom:
            self._close_atom()
        if self.rows:
            self._close_part()
        return self.parts


class OneRun:
    """The single part of a compressed file; measures the largest atom of each candidate size."""

    def __init__(self, start: int, atom_rows: int | None) -> None:
        powers = range(ATOM_ROWS.bit_length())
        self.steps = [1 << k for k in powers] if atom_rows is None else [atom_rows]
        self.given, self.start, self.end, self.rows = atom_rows is not None, start, start, 0
        self.last, self.widest = [start] * len(self.steps), [0] * len(self.steps)

    def add(self, ends: np.ndarray) -> None:
        """Add rows that end at the offsets ``ends`` in the uncompressed file, ascending."""
        for k, step in enumerate(self.steps):
            cuts = ends[-(self.rows + 1) % step :: step]
            if len(cuts):
                sizes = np.diff(cuts, prepend=self.last[k])
                self.widest[k] = max(self.widest[k], int(sizes.max()))
                self.last[k] = int(cuts[-1])
        if len(ends):
            self.rows, self.end = self.rows + len(ends), int(ends[-1])

    def finished(self) -> list[tuple[int, int, int, int]]:
        """Return the tuples of ``Runs.finished``: one tuple, or none for a file without rows."""
        if not self.rows:
            return []
        sizes = [max(w, self.end - last) for w, last in zip(self.widest, self.last, strict=True)]
        k = len(self.steps) - 1
        while k and not self._fits(self.steps[k], sizes[k]):
            k -= 1
        return [(self.start, self.rows, self.steps[k], sizes[k])]

    def _fits(self, step: int, widest: int) -> bool:
        mean = (self.end - self.start) * min(step, self.rows) // self.rows
        return mean <= ATOM_BYTES and widest <= LARGEST_ATOM
