"""Files are identified by a digest of all their bytes, computed again if they may have changed."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import xxhash

from dml.base.fingerprint import digest
from dml.errors import SourceError

if TYPE_CHECKING:
    from dml.io.stores.stores import Remote

# The state on which a cached digest depends (device, inode, size, mtime, ctime).
State: TypeAlias = tuple[int, int, int, int, int]
Given = TypeVar("Given")
Read = TypeVar("Read")

CHUNK = 4 << 20
THREADS = 8
# Files of no more bytes together are identified by all bytes, others by their first and last.
HASHED_BYTES, EDGE_BYTES = 256 << 20, 64 << 10
REMEMBERED = 1 << 16
# A second write within the clock resolution of a file system (up to 2 s) changes no time stamp.
SETTLED_NS = 2_000_000_000

_known: dict[State | tuple[object, ...], bytes] = {}
# The clock of file times on Linux, milliseconds behind other clocks; and the maximum wait for a
# clock that differs from the file system's, such as that of a server.
FILE_CLOCK = 5 if sys.platform == "linux" else time.CLOCK_REALTIME
BEHIND_NS = 20_000_000
# The latest change time of all inspected files.
_newest = [0]
# Device and inode of files that were once too recent: they are always identified by content, since
# cache entries would not be found under the other digest that an older file has.
_young: set[tuple[int, int]] = set()


def contents(paths: Sequence[str | Remote]) -> list[bytes]:
    """Return the digest of each file's bytes (``content``), in parallel."""
    return in_parallel(_content, paths, THREADS)


def in_parallel(read: Callable[[Given], Read], files: Sequence[Given], threads: int) -> list[Read]:
    """Return ``read(file)`` for each of ``files``, in order, from at most ``threads`` threads."""
    if len(files) > 1:
        with suppress(RuntimeError), ThreadPoolExecutor(min(threads, len(files))) as pool:
            return list(pool.map(read, files))
    return list(map(read, files))  # also if no more threads can be started


def revisions(paths: Sequence[str | Remote]) -> list[bytes]:
    """Return a digest per file that identifies its content, wherever it is mounted.

    For a file in a store the digest covers its version there, if equal versions prove equal
    content, else all bytes. Local files are digested completely if they have at most 256 MiB
    together; otherwise the digest covers size, modification time, and the first and last 64 KiB.
    Very recent files are always digested completely, since a later write might leave their times
    unchanged. Raise SourceError if a file cannot be read.
    """
    here = [path for path in paths if isinstance(path, str)]
    try:
        whole = sum(os.stat(path).st_size for path in here) <= HASHED_BYTES
        return [_revision(path, whole=whole) for path in paths]
    except OSError as error:
        why = error.strerror or str(error)
        raise SourceError(f"{error.filename} cannot be read", why=why) from None


def _revision(file: str | Remote, *, whole: bool) -> bytes:
    if not isinstance(file, str):
        return digest(file.version) if file.certain else remote_content(file)
    if whole:
        return content(file)
    now = settled_state(file)
    if now is None:
        return content(file)
    size, written = now[2:4]
    return digest(size, written, _edges(file, size))


def _edges(path: str, size: int) -> bytes:
    """Return a digest of the first and the last bytes of a file."""
    with open(path, "rb", buffering=0) as file:
        first = file.read(EDGE_BYTES)
        file.seek(max(0, size - EDGE_BYTES))
        return xxhash.xxh3_128_digest(first + file.read(EDGE_BYTES))


def _content(file: str | Remote) -> bytes:
    return content(file) if isinstance(file, str) else remote_content(file)


def unread_bytes(file: str | Remote) -> float:
    """Return the bytes to read for the content digest: 0 if cached, infinity if in a store."""
    if not isinstance(file, str):
        return 0 if file.certain and _remote_key(file) in _known else math.inf
    try:
        now = state(file)
    except OSError:
        return math.inf
    return 0 if now in _known else now[2]


def _remote_key(file: Remote) -> tuple[object, ...]:
    return (hash(file.store.system), file.address, file.size, file.version)


def remote_content(file: Remote) -> bytes:
    """Return the digest ``content`` of a file in a store; cached if ``file.certain``.

    The ETag of a file depends on how it was uploaded, so it can prove that a file is still the
    same, but not that two files are equal.
    """
    from dml.io.stores.byte_ranges import BLOCK, Blocks  # noqa: PLC0415

    key = _remote_key(file)
    digest = _known.get(key) if file.certain else None
    if digest is not None:
        return digest
    hasher, blocks = xxhash.xxh3_128(), Blocks(file, 0, file.size)
    try:
        while piece := blocks.read(BLOCK):
            hasher.update(piece)
    finally:
        blocks.close()
    if file.certain:
        _remember(key, hasher.digest())
    return hasher.digest()


def _remember(key: State | tuple[object, ...], digest: bytes) -> None:
    if len(_known) >= REMEMBERED:
        _known.clear()
    _known[key] = digest


def content(path: str) -> bytes:
    """Return the XXH3-128 digest of all bytes of a file: 16 bytes, independent of the name.

    The digest is cached in this process while inode, size, mtime and ctime are all unchanged. It
    protects against damage and change, not against deliberate collisions. Raises SourceError if the
    file cannot be read, or changes meanwhile.
    """
    try:
        before = state(path)
        found = _known.get(before)
        if found is None:
            found = _hashed(path)
            if state(path) != before:
                raise SourceError(f"{path} changed while it was read", try_="wait for its writer")
            if time.time_ns() - max(before[3:]) > SETTLED_NS:
                _remember(before, found)
    except OSError as error:
        raise SourceError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    return found


def state(path: str) -> State:
    """Return the current file system state of a file."""
    now = looked_at(path)
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


def looked_at(path: str) -> os.stat_result:
    """Return the current stat result of a file, and note its change time if it is the latest."""
    now = os.stat(path)
    _newest[0] = max(_newest[0], now.st_ctime_ns)
    return now


def unchanged_since_ns() -> int:
    """Return the file clock's time in ns: every later change has this time or a later one.

    Waits, for 20 ms at most, until the clock has passed the change times of all inspected files.
    """
    begun = time.monotonic_ns()
    while (now := time.clock_gettime_ns(FILE_CLOCK)) <= _newest[0]:
        if time.monotonic_ns() - begun > BEHIND_NS:
            break
        time.sleep(5e-4)
    return now


def settled_state(path: str) -> State | None:
    """Return the state of a file; None if a later change might leave an equal state."""
    try:
        found = state(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    if time.time_ns() - max(found[3:]) <= SETTLED_NS:
        _young.add(found[:2])
    return None if found[:2] in _young else found


def _hashed(path: str) -> bytes:
    hasher = xxhash.xxh3_128()
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            hasher.update(view[:size])
    return hasher.digest()
