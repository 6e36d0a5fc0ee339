"""Define the operations that the store needs of a disk or an object store, and their errors.

A file on which rows depend is never renamed and never overwritten. There is no compare-and-swap,
and clocks of two machines are never compared. If two processes create one name, one of them
succeeds, and the other is told that the name exists.
"""

from __future__ import annotations

import errno
from typing import NamedTuple, Protocol

import pyarrow as pa

from dml.errors import CacheError

TMP = "tmp"  # folder in which files are written before they get their names
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnusableError(CacheError):
    """Raised when the store cannot be read or written; callers can continue without it."""


class UnwritableError(UnusableError):
    """Raised when nothing can be written to the store; reads still work."""


class OvertakenError(UnwritableError):
    """Raised when a file was removed while it was written, because its writer paused too long."""


class Sink(Protocol):
    """A name that is being written, by one process alone.

    The name appears with all bytes once it is finished, or not at all. Methods raise UnusableError;
    a sink that is garbage collected while writing is dropped.
    """

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes; few of them are buffered in memory."""

    def finish(self) -> None:
        """Publish the name; raise OvertakenError if the written bytes have been removed."""

    def drop(self) -> None:
        """Remove the written bytes, unless the name is finished."""


class Fetched:
    """The bytes of one blob: here in memory, mapped in ``Mapped``."""

    identity: str | None = None
    """Equal for a blob that is unchanged since an earlier read; None if that is unknown."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def piece(self, start: int, count: int) -> memoryview:
        """Return ``count`` bytes from ``start`` on; for any thread.

        Raise UnusableError if the disk fails.
        """
        return memoryview(self._data)[start : start + count]

    def buffer(self) -> pa.Buffer:
        """Return all bytes, mapped and not copied if on a disk; the blob must not be empty."""
        return pa.py_buffer(self._data)


class ListedName(NamedTuple):
    """A name, its bytes, and the seconds since its last write by the clock of the storage."""

    name: str
    size: int
    age_s: float


class StorePlace(Protocol):
    """A namespace on a disk or in an object store; names are relative, with slashes.

    Methods raise UnusableError if there is no answer, as without a network or with the root gone;
    UnwritableError if the disk is full.
    """

    maps: bool
    """Whether fetched blobs are mapped and take no memory."""

    def begin(self, name: str) -> Sink:
        """Return a sink for a name that no other process writes."""

    def put(self, name: str, data: bytes) -> None:
        """Write bytes to a name that no other process writes; the name may exist already."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create ``name``; return True if this call was the first to do so."""

    def get(self, name: str) -> bytes | None:
        """Return the bytes of ``name``; None if it does not exist."""

    def fetch(self, name: str) -> Fetched | None:
        """Return the blob ``name``; None if it does not exist."""

    def piece(self, name: str, start: int, count: int) -> memoryview | None:
        """Return ``count`` bytes of a blob from ``start`` on; None if it does not exist."""

    def names(self, prefix: str) -> list[str]:
        """Return every name below the folder ``prefix``, however deep, relative to it."""

    def delete(self, name: str) -> None:
        """Remove ``name``, if it exists."""

    def beat(self, name: str) -> bool:
        """Change the stamp of ``name`` as a heartbeat; return False if the name is gone."""

    def stamp(self, name: str) -> str | None:
        """Return a value that changes with every heartbeat; None if the name is gone."""

    def list_files(self, prefix: str, *, looking: bool = False) -> list[ListedName]:
        """Return the names below ``prefix`` with sizes in bytes and ages in seconds.

        With ``looking``, nothing is written: ages are by the local clock, and decide nothing.
        """

    def clear(self, older_s: float) -> int:
        """Remove leftovers of dead writers older than ``older_s``, and return their number."""


def unusable(where: str, error: OSError, done: str) -> UnusableError:
    """Return the store's error for an OSError; ``done`` is what failed, such as "written"."""
    room = error.errno in FULL
    kind = UnwritableError if done == "written" else UnusableError
    return kind(
        f"the store cannot be {done}",
        at=where,
        why=error.strerror or str(error) or type(error).__name__,
        try_="a disk with more room, or a smaller quota" if room else "its folder and its rights",
    )
