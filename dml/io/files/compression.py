"""Files are opened as byte streams, decompressed if their names indicate compression.

A stream returns the bytes before damage, then raises SourceError. The memory of a stream is bounded
by the requested size and the window of the format, however large the decompressed file is.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from dml.errors import SourceError
from dml.io.files.files import File
from dml.io.stores.byte_ranges import Blocks

# Bytes decompressed at a time, and the maximum bytes lost before damage.
STEP = 64 << 10
# Additional memory of decompression: zstd's largest window that pyarrow accepts is 128 MiB, but
# writers use 8 MiB; xz needs its dictionary, 8 MiB at the usual level.
WINDOW = 16 << 20
# The memory limit of xz: its largest usual level needs 65 MiB, a file may state 4 GiB.
MOST_HELD = 128 << 20

FAULTS = (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowException)


class Unpacked:
    """A file decompressed on demand; ``begin`` makes a decompressor for each stream in it."""

    def __init__(self, file: Any, begin: Callable[[], Any]) -> None:
        by_path = isinstance(file, str)
        self._file = open(file, "rb", buffering=0) if by_path else file  # noqa: SIM115
        self._begin, self._unpacker = begin, begin()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes, b"" at the end; raise EOFError for a truncated stream."""
        while True:
            data = b""
            if self._unpacker.eof:
                data = self._unpacker.unused_data.lstrip(b"\0") or self._file.read(STEP)
                if not data.strip(b"\0"):  # the padding of xz
                    return b""
                self._unpacker = self._begin()
            elif self._unpacker.needs_input:
                data = self._file.read(STEP)
            found: bytes = self._unpacker.decompress(data, size)
            if found:
                return found
            if not data and not self._unpacker.eof and self._unpacker.needs_input:
                raise EOFError("it ends before the mark of its end")


class _Zlib:
    """An adapter that gives zlib's decompressor the interface of those of ``bz2`` and ``lzma``."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj()

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, size: int) -> bytes:
        """Return at most ``size`` bytes."""
        return self._inner.decompress(self._inner.unconsumed_tail + data, size)


# Functions by suffix that open a compressed file, from its path or from an open file.
PACKED: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(**{"filename" if isinstance(file, str) else "fileobj": file}),
    ".bz2": bz2.BZ2File,
    ".xz": lambda file: Unpacked(file, lambda: lzma.LZMADecompressor(memlimit=MOST_HELD)),
    ".zst": lambda file: pa.input_stream(file, compression="zstd"),
}
# Also includes zlib, which no file name indicates.
UNPACKERS: dict[str, Callable[[Any], Any]] = {**PACKED, "zlib": lambda file: Unpacked(file, _Zlib)}


def packing(name: str) -> str:
    """Return the suffix that indicates the compression of a file; "" if there is none."""
    return next((ending for ending in PACKED if name.lower().endswith(ending)), "")


class ByteStream:
    """The bytes of an opened file; ``read`` raises SourceError after all bytes before damage."""

    def __init__(self, file: Any, step: int, path: str, ending: str) -> None:
        self._file, self._step, self._path, self._ending = file, step, path, ending
        self._fault: SourceError | None = None

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes; fewer only at the end or before damage."""
        pieces: list[bytes] = []
        while size > 0 and self._fault is None:
            try:
                piece = self._file.read(min(size, self._step))
            except FAULTS as error:
                self._fault = _damaged(self._path, self._ending, error)
                break
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        if self._fault is not None and not pieces:
            raise self._fault
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextmanager
def opened(
    file: File | str, start: int = 0, stop: int | None = None, ending: str | None = None
) -> Iterator[ByteStream]:
    """Open the decompressed bytes of a file, from ``start`` on if the file is uncompressed.

    Of an uncompressed file in a store, bytes from ``stop`` on are not requested. ``ending`` is a
    key of ``UNPACKERS``, or "" for uncompressed, and overrides the file name.
    """
    path, there = (file, None) if isinstance(file, str) else (file.path, file.remote)
    ending = packing(path) if ending is None else ending
    with ExitStack() as stack:
        try:
            size = os.path.getsize(path) if there is None else there.size
            if ending and not size:  # which some decompressors accept as empty input
                raise EOFError("it has 0 bytes")
            if there is not None:
                raw: Any = Blocks(there) if ending else Blocks(there, start, stop)
                stack.callback(raw.close)
                found = UNPACKERS[ending](raw) if ending else raw
            else:
                found = UNPACKERS[ending](path) if ending else open(path, "rb", buffering=0)  # noqa: SIM115
        except FAULTS as error:
            raise _damaged(path, ending, error) from None
        stack.callback(found.close)
        if start and not (there and not ending):
            found.seek(start)
        yield ByteStream(found, STEP if ending else 1 << 30, path, ending)


def _damaged(path: str, ending: str, error: Exception) -> SourceError:
    why = getattr(error, "strerror", None) or str(error)
    if not ending:
        return SourceError(f"{path} cannot be read", why=why)
    if "limit exceeded" in why:
        return SourceError(
            f"{path} needs more memory to be unpacked than {MOST_HELD >> 20} MiB",
            why="so large a dictionary is what a bomb has, and hardly anything else",
            try_="xz -dc, and a usual level to pack it again",
        )
    return SourceError(
        f"{path} is damaged",
        why=f"it cannot be unpacked further: {' '.join(why.split())}",
        try_="copy or write it again; an upload may not have finished",
    )
