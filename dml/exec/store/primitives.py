"""This file says all that the store asks of a disk or of an object store, and what is said if not.

No shared name is ever renamed or written a second time, nothing is compared and swapped, and no
two clocks are compared: of two who make one name, one is first, and the other one is told.
"""

from __future__ import annotations

import errno
from typing import NamedTuple, Protocol

import pyarrow as pa

from dml.errors import CacheError

TMP = "tmp"  # where files are made that have no name yet
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnusableError(CacheError):
    """The store cannot be read or written at all; whoever asked can go on without it."""


class UnwritableError(UnusableError):
    """Nothing can be written to the store; what is in it can be read."""


class OvertakenError(UnwritableError):
    """What was being written has been cleared away: its writer stood still for too long."""


class Sink(Protocol):
    """A name that is being written, which nobody else writes.

    It is there as a whole once it is finished, or not at all. All raise UnusableError; whoever is
    forgotten while writing, is dropped.
    """

    def write(self, data: bytes | memoryview, /) -> object:
        """Bytes that follow those before; little of them is held in memory."""

    def finish(self) -> None:
        """Give it its name. OvertakenError if what was written has been cleared away."""

    def drop(self) -> None:
        """Leave nothing of it, if it is not finished."""


class Fetched(Protocol):
    """The bytes of one blob."""

    identity: str | None
    """Equal for what was read before and is unchanged since; None if that is not known."""
    size: int

    def piece(self, start: int, count: int) -> memoryview:
        """Some of the bytes, read so that a failing disk raises UnusableError; for any thread."""

    def buffer(self) -> pa.Buffer:
        """All bytes, on a disk mapped and not copied; there must be some."""


class Found(NamedTuple):
    """A name, its bytes, and for how long nobody wrote it, by the clock of where it lies."""

    name: str
    size: int
    age_s: float


class Place(Protocol):
    """A namespace on a disk or in an object store; names are relative, with slashes.

    All raise UnusableError for what is no answer: a full disk (then it is an UnwritableError),
    a root that is gone, no network.
    """

    maps: bool
    """Whether a blob that is fetched takes no memory."""

    def begin(self, name: str) -> Sink:
        """Write a name that nobody else writes, little by little."""

    def put(self, name: str, data: bytes) -> None:
        """The same of bytes; a name of one's own may be put again."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Whether this was the first to make ``name``."""

    def get(self, name: str) -> bytes | None:
        """The bytes of ``name``, None if it is not there."""

    def fetch(self, name: str) -> Fetched | None:
        """The bytes of a blob, None if it is not there."""

    def piece(self, name: str, start: int, count: int) -> memoryview | None:
        """Some of the bytes of a blob, None if it is not there."""

    def names(self, prefix: str) -> list[str]:
        """Every name below the folder ``prefix``, however deep, relative to it."""

    def delete(self, name: str) -> None:
        """Remove a name, if it is there."""

    def beat(self, name: str) -> bool:
        """Change the stamp of a name of one's own; False if it is gone."""

    def stamp(self, name: str) -> str | None:
        """What changes with every beat; None if the name is gone."""

    def found(self, prefix: str, *, looking: bool = False) -> list[Found]:
        """As ``names``, with sizes and ages.

        Who is only ``looking`` writes nothing: ages are by their own clock, and decide nothing.
        """

    def clear(self, older_s: float) -> int:
        """Clear away what dead writers left, which nobody wrote for so long; how many."""


def unusable(where: str, error: OSError, done: str) -> UnusableError:
    """What the system said, as an error that says where."""
    room = error.errno in FULL
    kind = UnwritableError if done == "written" else UnusableError
    return kind(
        f"the store cannot be {done}",
        at=where,
        why=error.strerror or str(error) or type(error).__name__,
        try_="a disk with more room, or a smaller quota" if room else "its folder and its rights",
    )
