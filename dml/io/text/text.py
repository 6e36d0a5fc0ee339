"""Text files are read as one row per line, and validated as UTF-8."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.base.fingerprint import digest
from dml.data.schema import Schema
from dml.expr.node import op
from dml.io.files.compression import PACKED
from dml.io.files.files import listed
from dml.io.files.lines import LineFiles, LineSource, RowError
from dml.io.files.paths import FileKind, Paths
from dml.io.files.records import Form

TEXT = "text"
NEWLINE, RETURN = 10, 13
ENDINGS = (".txt", ".text")
KIND = FileKind("text", (*ENDINGS, *(end + packed for end in ENDINGS for packed in PACKED)))


def newlines(window: bytes) -> np.ndarray:
    """Return the byte offset just past each newline: (n,) int64, ascending."""
    return np.flatnonzero(np.frombuffer(window, np.uint8) == NEWLINE) + 1


class TextForm(Form):
    r"""The text format: a row is a line without ``\n`` or ``\r\n``; the last may have no end."""

    schema = Schema({TEXT: pa.string()})
    ends = staticmethod(newlines)

    @property
    def digest(self) -> bytes:
        """Digest of the format, which has no options."""
        return digest("text", 1)

    def decode(self, data: bytes, rows: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return the ``rows`` lines in ``data`` without their line endings."""
        stored, ends = np.frombuffer(data, np.uint8), newlines(data)
        if len(stored) >= 1 << 31:
            raise RowError(f"an atom has {len(stored)} bytes", 0, "a smaller atom_rows=")
        returns = np.zeros(len(ends), bool)
        long = ends > 1
        returns[long] = stored[ends[long] - 2] == RETURN
        dropped = np.concatenate([ends - 1, ends[returns] - 2])
        lost = np.cumsum(1 + returns)
        if len(ends) < rows:  # the last line of a file may have no end
            ends, lost = np.append(ends, len(stored)), np.append(lost, len(dropped))
        if len(ends) != rows:
            raise RowError(f"{len(ends)} lines are where {rows} were counted")
        offsets = np.concatenate([[0], ends - lost])
        return pa.record_batch({TEXT: _checked(np.delete(stored, dropped), offsets)})


def _checked(text: np.ndarray, offsets: np.ndarray) -> pa.Array:
    """Build strings from bytes ``text``; raise RowError for the first that is not UTF-8."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)]
    array = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _not_utf8(text, offsets.tolist()) from error
    return array


def _not_utf8(text: np.ndarray, offsets: list[int]) -> RowError:
    """Build the error for the first invalid line; each line is decoded alone to find it."""
    for row, (start, stop) in enumerate(pairwise(offsets)):
        try:
            str(text[start:stop].tobytes(), "utf-8")
        except UnicodeDecodeError as error:
            why = f"byte {error.object[error.start]:#04x} is no UTF-8: {error.reason}"
            return RowError(why, row, "iconv or Python's codecs, to write the file as UTF-8")
    return RowError("Arrow finds what is no UTF-8, Python does not")


@op
class TextSource(LineSource):
    """Lines of text files in order of file name, line; the one column is "text"."""

    word: ClassVar[str] = "text"


def read_text(
    paths: Paths,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TextSource:
    r"""Read a row per line of text files: a file, a folder (its .txt files), a pattern, or a list.

    Lines end with ``\n`` or ``\r\n``, which are not part of them; there is no empty line after the
    last line ending, and a byte order mark at the start is dropped. Files that end in .gz, .bz2,
    .xz or .zst are decompressed. Raises SourceError for files that are absent, damaged, not UTF-8,
    or have a line of more than 32 MiB.
    """
    root, files, given = listed(paths, KIND, storage_options)
    return TextSource(LineFiles(root, files, given, TextForm()), None, atom_rows)
