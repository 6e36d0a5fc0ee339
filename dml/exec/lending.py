"""This file lends partitions to other processes of the host: what travels is where they lie.

A partition is written once, into a nameless file that cannot be changed any more. A slip of some
200 bytes says whose it is; who gets it opens ``/proc/PID/fd/N``, makes sure that it is that very
file, and maps it. The mapping is good however the owner ends. Who cannot open it asks for the bytes
(docs/decisions/030-lent-partitions.md).

The memory is the owner's, and counts there: the file goes with the owner's partition.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import resource
import secrets
import stat
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from dml.errors import MemoryContractError
from dml.exec.channel import Sheet, mapped
from dml.exec.neighbours import here
from dml.exec.parcel import Parcel, in_memory, size_of

# Columns of fewer bytes travel themselves: new pages cost more than a socket that is used again
# (benchmarks/results/lending.md).
LEAST = 4 << 20
TOKEN = 16  # random bytes at the end of a file
MOST_FILES = 4096  # of a process; what is beyond travels itself
# No file, or none so large, may be had; writing and mapping take descriptors too.
NOT_HAD = (OSError, MemoryContractError)


class UnopenedError(Exception):
    """A partition that was lent cannot be opened here, and whoever lent it has it no more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slip:
    """Where something lies that was lent: file number ``file`` of process ``pid`` of ``host``.

    It is the one with this ``inode``, whose ``size`` bytes end with ``token``. ``places`` are start
    and length of each buffer, the first ``columns`` of which are columns.
    """

    host: str
    pid: int
    file: int
    inode: tuple[int, int]
    size: int
    token: bytes
    places: tuple[tuple[int, int], ...]
    columns: int


class Loan:
    """A file of this process that neighbours may open as long as this object lives."""

    def __init__(self, sheet: Sheet, places: Sequence[tuple[int, int]], columns: int) -> None:
        token = secrets.token_bytes(TOKEN)
        start, _ = sheet.place(memoryview(token))
        os.ftruncate(sheet.file, start + TOKEN)
        fcntl.fcntl(sheet.file, fcntl.F_ADD_SEALS, SEALS)
        known = os.fstat(sheet.file)
        self._sheet = sheet
        inode = known.st_dev, known.st_ino
        found = sheet.file, inode, known.st_size, token, tuple(places), columns
        self.slip = Slip(here(), os.getpid(), *found)


SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)
SEALS |= getattr(fcntl, "F_SEAL_WRITE", 0)


SHEETS: weakref.WeakSet[Sheet] = weakref.WeakSet()  # that this process lends


def _many() -> bool:
    """True if no more files should be lent, so that this process keeps some for other things."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return len(SHEETS) >= (MOST_FILES if most < 0 else min(MOST_FILES, most // 4))


class Lender:
    """Puts what one order makes where neighbours can open it; ``keep`` is for ``pack``."""

    def __init__(self) -> None:
        self._sheet: Sheet | None = None

    def keep(self, fill: Callable[[Any], None]) -> Any:
        """What ``fill`` writes, in a file, or in memory of this process if it is little."""
        if self._sheet is None and (size_of(fill) < LEAST or not self._begun()):
            return in_memory(fill)
        try:
            return self._sheet.keep(fill) if self._sheet is not None else in_memory(fill)
        except NOT_HAD:
            self._sheet = None
            return in_memory(fill)

    def _begun(self) -> bool:
        if not here() or _many():
            return False
        sheet = Sheet(_sealable)
        try:
            sheet.place(memoryview(b""))
        except NOT_HAD:
            return False
        SHEETS.add(sheet)
        self._sheet = sheet
        return True

    def lent(self, parcel: Parcel | None) -> Parcel | None:
        """The parcel, with all of it in the file if there is one."""
        sheet, self._sheet = self._sheet, None
        if parcel is None or sheet is None:
            return parcel
        try:
            places = [sheet.place(memoryview(each)) for each in (*parcel.columns, *parcel.arrays)]
            loan = Loan(sheet, places, len(parcel.columns))
            return _over(parcel, mapped(sheet.file), loan.slip, loan)
        except NOT_HAD:  # what lies in the file already can be read as long as it is mapped
            return parcel


def _sealable() -> int:
    return os.memfd_create("dml", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _over(parcel: Parcel, whole: Any, slip: Slip, lent: Loan | Slip) -> Parcel:
    """The parcel over the memory of its file."""
    every = tuple(whole.slice(start, length) for start, length in slip.places)
    columns, arrays = every[: slip.columns], every[slip.columns :]
    return dataclasses.replace(parcel, columns=columns, arrays=arrays, lent=lent)


def noted(parcel: Parcel) -> Parcel:
    """A parcel of this process for its neighbours: a slip instead of the columns."""
    return Parcel(parcel.outcome, parcel.places, (), (), parcel.lent.slip)


def is_lent(parcel: Parcel | None) -> bool:
    """True for a parcel that this process lends."""
    return parcel is not None and isinstance(parcel.lent, Loan)


def is_unopened(parcel: Parcel | None) -> bool:
    """True for a parcel of which only the slip is here."""
    return parcel is not None and isinstance(parcel.lent, Slip) and not parcel.columns


def is_strange(parcel: Parcel | None) -> bool:
    """True for one that was not opened because this process may open nothing of its owner's."""
    if parcel is None or not is_unopened(parcel):
        return False
    slip = parcel.lent
    try:
        os.stat(f"/proc/{slip.pid}/fd/{slip.file}")
    except PermissionError:
        return True
    except OSError:
        pass
    return bool(slip.host != here())


def held_bytes(parcel: Parcel | None) -> int:
    """Bytes of a parcel that count here: what is borrowed counts where it was lent."""
    return 0 if parcel is None or isinstance(parcel.lent, Slip) else parcel.nbytes


def borrow(parcel: Parcel) -> Parcel:
    """The parcel over the memory that its slip names; unopened as it is, if that cannot be."""
    if not is_unopened(parcel):
        return parcel
    whole = opened(parcel.lent)
    return parcel if whole is None else _over(parcel, whole, parcel.lent, parcel.lent)


def opened(slip: Slip) -> Any:
    """The memory of a file that was lent; None if it cannot be opened, or is another by now."""
    if not slip.host or slip.host != here():
        return None
    path = f"/proc/{slip.pid}/fd/{slip.file}"
    try:
        if not _regular(os.stat(path), slip):  # what is no file might do something when opened
            return None
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        return mapped(file) if _same(file, slip) else None
    except OSError:  # no memory, or no files, are left to this process
        return None
    finally:
        os.close(file)


def _regular(known: os.stat_result, slip: Slip) -> bool:
    inode = known.st_dev, known.st_ino
    return stat.S_ISREG(known.st_mode) and inode == slip.inode and known.st_size == slip.size


def _same(file: int, slip: Slip) -> bool:
    """True for the file that was lent: of that name, ended by that token, and unchangeable."""
    if not _regular(os.fstat(file), slip) or fcntl.fcntl(file, fcntl.F_GET_SEALS) & SEALS != SEALS:
        return False
    return os.pread(file, TOKEN, slip.size - TOKEN) == slip.token
