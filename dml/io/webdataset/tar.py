"""Tar archives in memory are scanned for the byte ranges of their files.

Nothing is written to a disk, and no name is used as a path. Members that could refer to anything
but the bytes after their header (links, devices, sparse files) are refused.
"""

from __future__ import annotations

import dataclasses
import tarfile
from collections.abc import Iterator

BLOCK = tarfile.BLOCKSIZE
ZEROS = bytes(BLOCK)
# Maximum bytes of an extended header, which is read as a whole; a path has at most 4 KiB.
MOST_EXTENDED = 64 << 10
LONG_NAME, LONG_LINK = tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
PAX, GLOBAL = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE), tarfile.XGLTYPE
EXTENDED = (LONG_NAME, LONG_LINK, *PAX, GLOBAL)
# Records refused in global headers: a read from the middle of the archive would miss them.
OF_ONE_FILE = ("path", "size", "linkpath", "hdrcharset")
KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class TarError(Exception):
    """The archive is damaged, or contains a member that is not a plain file."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A file in an archive: its header begins at ``begin``, its bytes are ``start`` to ``stop``.

    ``name`` is "" for a folder, and None for the end mark, which is at ``begin``.
    """

    name: str | None
    begin: int
    start: int
    stop: int


@dataclasses.dataclass(slots=True)
class _Said:
    """The name and size in extended headers, which apply to the next member; None if missing."""

    name: str | None = None
    size: int | None = None


def members(data: bytes) -> Iterator[ArchiveMember]:
    """Yield the members in ``data``, which begins with a header; the last is the end mark.

    Without an end mark, the last may be incomplete: its ``stop`` is then behind the end of
    ``data``. Raise TarError at the first damaged or refused member.
    """
    at = begin = 0
    said = _Said()
    while at + BLOCK <= len(data):
        block = data[at : at + BLOCK]
        if block == ZEROS:
            if begin != at:
                raise TarError("a header that belongs to a file is followed by none")
            yield ArchiveMember(None, at, at, at)
            return
        header = _header(block)
        extended = header.type in EXTENDED
        if extended and header.size > MOST_EXTENDED:
            raise TarError(f"a header has {header.size} bytes, and {MOST_EXTENDED} are allowed")
        name, size = ("", header.size) if extended else _plain(header, said)
        start, stop = at + BLOCK, at + BLOCK + size
        if not extended or stop > len(data):
            yield ArchiveMember(name, begin, start, stop)
            said, begin = _Said(), after(stop)
        else:
            _extend(said, header.type, data[start:stop])
        at = after(stop)


def after(stop: int) -> int:
    """Return the offset of the first block at or after byte ``stop``."""
    return -(-stop // BLOCK) * BLOCK


def _header(block: bytes) -> tarfile.TarInfo:
    """Parse a header with the standard library, which verifies its checksum."""
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except tarfile.TarError as error:
        raise TarError(f"a header is damaged: {error}") from None
    except UnicodeDecodeError:
        raise TarError(f"a name is no UTF-8: {block[:100].rstrip(bytes(1))!r}") from None
    if header.size < 0:
        raise TarError(f"a header states a size of {header.size} bytes")
    return header


def _plain(header: tarfile.TarInfo, said: _Said) -> tuple[str, int]:
    """Return name ("" for a folder) and size of a member; raise TarError for links and devices."""
    name = header.name if said.name is None else said.name
    if header.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE):
        size = header.size if said.size is None else said.size
        # an old form of folder entries, recognized by the name only
        return ("", size) if name.endswith("/") else (name, size)
    if header.isdir():
        return "", 0
    kind = KINDS.get(header.type, f"of the unknown type {header.type!r}")
    raise TarError(f"{name!r} is {kind}, and only files are read")


def _extend(said: _Said, kind: bytes, data: bytes) -> None:
    """Store name and size from an extended header of type ``kind`` in ``said``."""
    if kind == LONG_NAME:
        said.name = _text(data.partition(b"\0")[0])
    elif kind == GLOBAL or kind in PAX:
        for key, value in _records(data):
            _record(said, key, value, everywhere=kind == GLOBAL)


def _record(said: _Said, key: str, value: bytes, *, everywhere: bool) -> None:
    if key.startswith("GNU.sparse"):
        raise TarError("a file is sparse, and only plain files are read")
    if key == "hdrcharset" or (everywhere and key in OF_ONE_FILE):
        raise TarError(f"a header sets {key} where only the names of tools may stand")
    if key == "path":
        said.name = _text(value)
        if "\0" in said.name or not said.name:
            raise TarError(f"{said.name!r} is no name")
    elif key == "size":
        if not value.isdigit() or len(value) > 20:
            raise TarError(f"a header states a size of {value[:40]!r} bytes")
        said.size = int(value)


def _records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the key-value records of a PAX header."""
    at = 0
    while at < len(data) and data[at]:
        length, _, _ = data[at : at + 12].partition(b" ")
        stop = at + int(length) if length.isdigit() else at
        record = data[at + len(length) + 1 : stop]
        key, equals, value = record.partition(b"=")
        if stop <= at or stop > len(data) or not equals or not value.endswith(b"\n"):
            raise TarError("a PAX header is damaged")
        yield _text(key), value[:-1]
        at = stop


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise TarError(f"a name is no UTF-8: {data[:100]!r}") from None
