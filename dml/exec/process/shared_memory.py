"""Lend partitions to other processes of the host: only their location is sent.

A partition is written once, into a nameless file that is sealed against changes. A slip of some 200
bytes names the owner process and the file. The receiver opens ``/proc/PID/fd/N``, checks that it is
that very file, and maps it. The mapping stays valid however the owner ends. A receiver that cannot
open the file asks for the bytes (docs/decisions/030-lent-partitions.md). The memory is counted for
the owner, which closes the file when it releases the partition.
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
from dml.exec.process.channel import Sheet, mapped
from dml.exec.process.neighbours import here
from dml.exec.process.partition_codec import Parcel, in_memory, size_of

# Columns of fewer bytes are sent as bytes: new pages cost more than a socket in use
# (benchmarks/results/lending.md).
LEAST = 4 << 20
TOKEN = 16  # random bytes at the end of a file
MOST_FILES = 4096  # of a process; further partitions are sent as bytes
# Errors of creating or filling a file; writing and mapping need descriptors, too.
NOT_HAD = (OSError, MemoryContractError)


class UnopenedError(Exception):
    """Raised if a lent partition cannot be opened here, and its owner no longer has it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slip:
    """The location of lent data: file descriptor ``file`` of process ``pid`` of ``host``.

    The file has this ``inode`` (device, number), and its ``size`` bytes end with ``token``.
    ``places`` are the start and length of each buffer; the first ``columns`` buffers are columns.
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
    """A file of this process that others on this host may open while this object exists."""

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


SHEETS: weakref.WeakSet[Sheet] = weakref.WeakSet()  # lent by this process


def _many() -> bool:
    """Return whether so many files are lent that other code needs the remaining descriptors."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return len(SHEETS) >= (MOST_FILES if most < 0 else min(MOST_FILES, most // 4))


class Lender:
    """Writes a partition to a file that others on this host can open; pass ``keep`` to ``pack``."""

    def __init__(self) -> None:
        self._sheet: Sheet | None = None

    def keep(self, fill: Callable[[Any], None]) -> Any:
        """Return what ``fill`` writes as a buffer: in a file, or in memory if it is small."""
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
        sheet = Sheet(lambda: os.memfd_create("dml", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        try:
            sheet.place(memoryview(b""))
        except NOT_HAD:
            return False
        SHEETS.add(sheet)
        self._sheet = sheet
        return True

    def lent(self, parcel: Parcel | None) -> Parcel | None:
        """Return ``parcel`` with all its data in the file, or unchanged if there is no file."""
        sheet, self._sheet = self._sheet, None
        if parcel is None or sheet is None:
            return parcel
        try:
            places = [sheet.place(memoryview(each)) for each in (*parcel.columns, *parcel.arrays)]
            loan = Loan(sheet, places, len(parcel.columns))
            return _over(parcel, mapped(sheet.file), loan.slip, loan)
        except NOT_HAD:  # data that is already in the file stays readable while it is mapped
            return parcel


def _over(parcel: Parcel, whole: Any, slip: Slip, lent: Loan | Slip) -> Parcel:
    """Return ``parcel`` with its buffers as parts of ``whole``, the mapped file of ``slip``."""
    every = tuple(whole.slice(start, length) for start, length in slip.places)
    columns, arrays = every[: slip.columns], every[slip.columns :]
    return dataclasses.replace(parcel, columns=columns, arrays=arrays, lent=lent)


def noted(parcel: Parcel) -> Parcel:
    """Return a lent parcel in the form for neighbours: with its slip instead of its data."""
    return Parcel(parcel.outcome, parcel.places, (), (), parcel.lent.slip)


def is_lent(parcel: Parcel | None) -> bool:
    """Return whether this process lends the parcel."""
    return parcel is not None and isinstance(parcel.lent, Loan)


def is_unopened(parcel: Parcel | None) -> bool:
    """Return whether this process has only the slip of ``parcel``."""
    return parcel is not None and isinstance(parcel.lent, Slip) and not parcel.columns


def is_strange(parcel: Parcel | None) -> bool:
    """Return whether ``parcel`` cannot be opened here: it is on another host, or forbidden."""
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
    """Return the bytes of ``parcel`` counted for this process: 0 if another one lends them."""
    return 0 if parcel is None or isinstance(parcel.lent, Slip) else parcel.nbytes


def borrow(parcel: Parcel) -> Parcel:
    """Return ``parcel`` with the memory of its slip mapped; unchanged if that cannot be opened."""
    if not is_unopened(parcel):
        return parcel
    whole = opened(parcel.lent)
    return parcel if whole is None else _over(parcel, whole, parcel.lent, parcel.lent)


def opened(slip: Slip) -> Any:
    """Return the memory of a lent file; None if it cannot be opened, or is a different file."""
    if not slip.host or slip.host != here():
        return None
    path = f"/proc/{slip.pid}/fd/{slip.file}"
    try:
        if not _regular(os.stat(path), slip):  # opening a device might have side effects
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
    """Return whether ``file`` is the lent file: same inode, token at its end, and sealed."""
    if not _regular(os.fstat(file), slip) or fcntl.fcntl(file, fcntl.F_GET_SEALS) & SEALS != SEALS:
        return False
    return os.pread(file, TOKEN, slip.size - TOKEN) == slip.token
