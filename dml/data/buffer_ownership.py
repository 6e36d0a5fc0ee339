"""Memory that users may receive as writable arrays without a copy is registered here, by address.

The pages of a private mapping are copied on write: neither the file nor another mapping of it
changes. A cached file is mapped for one run alone (``Alone``): an array over the mapping can be
delivered as it is, if no other block of the run has the same rows. Memory shared by another process
(``Lent``) has many readers, so a second mapping is delivered to users instead: each byte only once,
since a user may write to it. With a registry by address, blocks and operators carry no flag.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

# Smaller parts of a ``Lent`` are copied: each would keep the whole file mapped, and page faults
# cost more than copying.
LEAST = 1 << 20
# An array is delivered without a copy only if it has at least 1/PART of the bytes of its ``Lent``,
# all of which it keeps mapped.
PART = 4


class Alone:
    """Memory that begins at address ``start``, and that only one run reads.

    It lives as long as ``owner``, and is registered no longer: other memory may be there then.
    """

    def __init__(self, start: int, owner: Any) -> None:
        self.start, self.nbytes = start, memoryview(owner).nbytes
        self.finished_bytes = 0  # of floats, none of which is NaN
        self.owner = ref(owner, partial(_ended, start))

    def holds(self, place: int) -> bool:
        """Return True if an address lies in this memory, which is still there."""
        return self.start <= place < self.start + self.nbytes and self.owner() is not None

    def array(self, place: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray | None:
        """Return an array that begins at address ``place``; None if it exceeds this memory."""
        owner = self.owner()
        if owner is None or not self.holds(place):
            return None
        try:
            return np.ndarray(shape, dtype, owner, place - self.start)
        except TypeError:  # this memory ends before the array
            return None


class Lent:
    """A private mapping, ``memory``, of the bytes that other readers see at address ``start``."""

    def __init__(self, start: int, memory: memoryview) -> None:
        self.start, self.memory = start, memory
        self._asked: list[tuple[int, int]] = []

    def take(self, start: int, stop: int) -> memoryview | None:
        """Return the private bytes for two addresses; None if some are outside or returned before.

        If threads call this concurrently, the first to append to the list wins.
        """
        first, last = asked = start - self.start, stop - self.start
        if first < 0 or last > len(self.memory):
            return None
        self._asked.append(asked)
        earlier = itertools.takewhile(lambda each: each is not asked, self._asked)
        if any(first < end and begin < last for begin, end in earlier):
            return None
        return self.memory[first:last]


# Sorted start addresses, and the memory at each. Each call on either is one step of the
# interpreter, so threads need no lock, on which a garbage collection could deadlock.
_STARTS: list[int] = []
_PLACES: dict[int, Alone | Lent] = {}


def alone(start: int, owner: Any) -> None:
    """Register the buffer of ``owner``, at address ``start``, as read by one run only."""
    _register(Alone(start, owner))


def lent(start: int, memory: memoryview) -> None:
    """Register ``memory``, which users may receive, as a copy of the shared bytes at ``start``."""
    _register(Lent(start, memory))


def gone(start: int) -> None:
    """Remove the memory at ``start`` from the registry, if it is there, before it is unmapped."""
    if _PLACES.pop(start, None) is not None:
        _STARTS.remove(start)


def _ended(start: int, owner: ref[Any]) -> None:
    """Remove the memory of ``owner``, which has ended, unless it was removed before."""
    found = _PLACES.get(start)
    if isinstance(found, Alone) and found.owner is owner:
        gone(start)


def owned(array: np.ndarray) -> np.ndarray:
    """Return the array in writable memory that nothing else uses: a copy, or a part of a ``Lent``.

    A part of a ``Lent`` is returned only if it is large, and was not returned before.
    """
    if array.nbytes < LEAST or not array.flags.c_contiguous:
        return array.copy()
    start = array.ctypes.data
    found = _near(start)
    if not isinstance(found, Lent) or array.nbytes * PART < len(found.memory):
        return array.copy()
    memory = found.take(start, start + array.nbytes)
    if memory is None:
        return array.copy()
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def handed(array: np.ndarray) -> np.ndarray | None:
    """Return a writable array over the memory of ``array`` if one run alone reads it, else None."""
    return _over(array, array.shape) if array.flags.c_contiguous else None


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return one read-only array over ``arrays``, not copied, if they lie end to end in memory.

    Return None if they do not, or if their memory is not registered here.
    """
    first, rows, place = arrays[0], 0, arrays[0].ctypes.data
    for each in arrays:
        same = each.dtype == first.dtype and each.shape[1:] == first.shape[1:]
        if not same or not each.flags.c_contiguous or each.ctypes.data != place:
            return None
        place += each.nbytes
        rows += len(each)
    found = _over(first, (rows, *first.shape[1:]))
    if found is not None:
        found.flags.writeable = False  # other arrays may share parts of it
    return found


def overlapping(arrays: Sequence[np.ndarray]) -> bool:
    """Return True if any two of the C-contiguous arrays share memory."""
    places = sorted((array.ctypes.data, array.nbytes) for array in arrays)
    ends = (start + nbytes for start, nbytes in places)
    return any(end > after[0] for end, after in zip(ends, places[1:], strict=False))


def finish(array: np.ndarray, nbytes: int | None = None) -> None:
    """Mark the ``Alone`` that contains ``array`` as free of NaN, so that no NaN is normalized.

    If only ``nbytes`` bytes of it are known to be, they are added to those of earlier calls, none
    of which may have counted them. If threads do that at once, a call may be lost.
    """
    place = array.ctypes.data
    found = _near(place)
    if isinstance(found, Alone) and found.holds(place):
        found.finished_bytes += found.nbytes if nbytes is None else nbytes


def finished(array: np.ndarray) -> bool:
    """Return True if ``finish`` marked all the registered memory that contains ``array``."""
    if not _STARTS:
        return False
    place = array.ctypes.data
    found = _near(place)
    if not isinstance(found, Alone) or not found.holds(place):
        return False
    return found.finished_bytes >= found.nbytes


def _register(memory: Alone | Lent) -> None:
    _PLACES[memory.start] = memory
    insort(_STARTS, memory.start)


def _over(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return an array of ``shape`` that begins where ``array`` does; None outside an ``Alone``."""
    place = array.ctypes.data
    found = _near(place)
    return found.array(place, array.dtype, shape) if isinstance(found, Alone) else None


def _near(address: int) -> Alone | Lent | None:
    """Return the registered memory that starts last at or before ``address``, or None.

    During a concurrent change the result may be wrong, but memory that contains ``address`` is
    always found: it stays registered, because the caller has an array in it.
    """
    starts = _STARTS.copy()  # else another thread may shift it between the search and the look
    try:
        return _PLACES.get(starts[bisect_right(starts, address) - 1])
    except IndexError:
        return None
