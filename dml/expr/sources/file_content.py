"""This file names what files contain: a digest of all bytes, read again when they may differ."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import xxhash

from dml.errors import SourceError
from dml.expr.fingerprint import digest
from dml.expr.sources.ranges import BLOCK, Blocks
from dml.expr.sources.stores import Remote

# What must be unchanged for a remembered digest to hold (device, inode, size, mtime, ctime).
State: TypeAlias = tuple[int, int, int, int, int]

CHUNK = 4 << 20
THREADS = 8
# Files of no more than that together are told apart by all their bytes, others by their edges.
HASHED_BYTES, EDGE_BYTES = 256 << 20, 64 << 10
REMEMBERED = 1 << 16
# A file written to within the resolution of its clock (2 s on some file systems) shows no trace.
SETTLED_NS = 2_000_000_000

_known: dict[State | tuple[object, ...], bytes] = {}
# The clock by which Linux says when files change: milliseconds behind others. And for how long a
# clock that is not that of the file system, as a server's may be, is waited for.
FILE_CLOCK = 5 if sys.platform == "linux" else time.CLOCK_REALTIME
BEHIND_NS = 20_000_000
# When the newest file changed that was looked at.
_newest = [0]
# Device and inode of files that were too young once: they are told apart by content for good, since
# what was kept under a name would not be found once the file is old enough for another.
_young: set[tuple[int, int]] = set()


def contents(paths: Sequence[str | Remote]) -> list[bytes]:
    """Digest of each file's bytes (``content``), several at a time."""
    if len(paths) < 2:
        return [_content(path) for path in paths]
    with ThreadPoolExecutor(min(THREADS, len(paths))) as pool:
        return list(pool.map(_content, paths))


def revisions(paths: Sequence[str | Remote]) -> list[bytes]:
    """What tells the content of each file apart, wherever it is mounted.

    Of a file in a store the version that the store gives it, if that is certain. Of files here a
    digest of all bytes where they have no more than 256 MiB together; else size, time of writing,
    and a digest of the first and last 64 KiB, but of all bytes for a file so young that it may have
    been written to since. SourceError if one cannot be read.
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
    """A digest of the first and the last bytes of a file."""
    with open(path, "rb", buffering=0) as file:
        first = file.read(EDGE_BYTES)
        file.seek(max(0, size - EDGE_BYTES))
        return xxhash.xxh3_128_digest(first + file.read(EDGE_BYTES))


def _content(file: str | Remote) -> bytes:
    return content(file) if isinstance(file, str) else remote_content(file)


def unread_bytes(file: str | Remote) -> float:
    """Bytes that must be read to know the content of a file; infinite for one of a store."""
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
    """As ``content``, for a file of a store; remembered while it has the same certain version.

    What stores call a file's ETag depends on how it was uploaded, so that it can tell whether a
    file is still the same one, and not whether two are.
    """
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
    """XXH3-128 of all bytes of a file: 16 bytes, equal for equal bytes under any name.

    Remembered in this process for as long as inode, size, mtime and ctime stay; a time stamp alone
    decides nothing. Against damage and change, not against somebody who looks for a collision.
    Raises SourceError if the file cannot be read, or changes meanwhile.
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
    """What the file system says of a file now."""
    now = looked_at(path)
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


def looked_at(path: str) -> os.stat_result:
    """What the file system says of a file, whose time of change is remembered."""
    now = os.stat(path)
    _newest[0] = max(_newest[0], now.st_ctime_ns)
    return now


def unchanged_since_ns() -> int:
    """Now, by the clock of files: whatever changes from here on says that time or a later one.

    Returns once files that were looked at so far say an earlier one: they may be new.
    """
    begun = time.monotonic_ns()
    while (now := time.clock_gettime_ns(FILE_CLOCK)) <= _newest[0]:
        if time.monotonic_ns() - begun > BEHIND_NS:
            break
        time.sleep(5e-4)
    return now


def settled_state(path: str) -> State | None:
    """The state of a file, if no change since it was first looked at can have gone unseen."""
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
