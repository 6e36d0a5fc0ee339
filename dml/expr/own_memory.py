"""This file knows mapped files whose rows may be had as memory of one's own, without a copy.

The pages of a private mapping are copied when they are written to: neither the file changes nor
another mapping of it. A part of a store is mapped for one run *alone*: an array over it can be
handed out as it is, if no other block of the run shows the same rows. What another process lends is
read by many, and mapped once more to be given away: each byte of that goes out once, as what
somebody has written there is no row of the file. Which memory is such is known by its address, so
that blocks are blocks, and nothing between has to carry a mark.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

# Of what is lent, less is copied: it may be kept for little, and a page fault is dearer than its
# bytes.
LEAST = 1 << 20
# Of a lent file that stays as long as one array of it is kept, that array is at least this part.
PART = 4


class Alone:
    """Memory from address ``start`` on that one reader has; it lives as long as ``owner``."""

    def __init__(self, start: int, owner: Any) -> None:
        self.start, self.nbytes = start, memoryview(owner).nbytes
        self.finished = False  # no float in it is NaN
        self._owner = ref(owner)

    def holds(self, place: int) -> bool:
        """True if an address lies in it."""
        return self.start <= place < self.start + self.nbytes

    def array(self, place: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray | None:
        """An array over it from address ``place`` on; None if that begins or ends elsewhere."""
        owner = self._owner()
        if owner is None or not self.holds(place):
            return None
        try:
            return np.ndarray(shape, dtype, owner, place - self.start)
        except TypeError:  # it ends before
            return None


class Lent:
    """The bytes from address ``start`` on, once more, in ``memory`` that nobody else reads."""

    def __init__(self, start: int, memory: memoryview) -> None:
        self.start, self.memory = start, memory
        self._asked: list[tuple[int, int]] = []

    def take(self, start: int, stop: int) -> memoryview | None:
        """The bytes between two addresses; None if some are elsewhere, or were asked for before.

        Of threads that ask at once, the one whose word is first in the list is first.
        """
        first, last = asked = start - self.start, stop - self.start
        if first < 0 or last > len(self.memory):
            return None
        self._asked.append(asked)
        earlier = itertools.takewhile(lambda each: each is not asked, self._asked)
        if any(first < end and begin < last for begin, end in earlier):
            return None
        return self.memory[first:last]


# Where such memory begins, in order, and what it is. Each call on either is one step of the
# interpreter, so that threads need no lock, which a collection of garbage could meet held.
_STARTS: list[int] = []
_PLACES: dict[int, Alone | Lent] = {}


def alone(start: int, owner: Any) -> None:
    """What ``owner``, whose buffer begins at ``start``, holds is read by one run."""
    _known(Alone(start, owner))


def lent(start: int, memory: memoryview) -> None:
    """``memory``, to be given away, holds the same bytes as what many read at ``start``."""
    _known(Lent(start, memory))


def gone(start: int) -> None:
    """Nothing is mapped at ``start`` any more, or not for long: called before that is so.

    Also of what was never such memory.
    """
    if _PLACES.pop(start, None) is not None:
        _STARTS.remove(start)


def owned(array: np.ndarray) -> np.ndarray:
    """The elements in writable memory that nobody else sees, copied unless they are lent."""
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
    """The same elements as a writable array over memory of one run; None if they are elsewhere."""
    return _over(array, array.shape) if array.flags.c_contiguous else None


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Arrays that follow each other in memory of one run, as one; None if they do not."""
    first, rows, place = arrays[0], 0, arrays[0].ctypes.data
    for each in arrays:
        same = each.dtype == first.dtype and each.shape[1:] == first.shape[1:]
        if not same or not each.flags.c_contiguous or each.ctypes.data != place:
            return None
        place += each.nbytes
        rows += len(each)
    found = _over(first, (rows, *first.shape[1:]))
    if found is not None:
        found.flags.writeable = False  # others may have parts of it
    return found


def overlapping(arrays: Sequence[np.ndarray]) -> bool:
    """True if two of some arrays in order of their elements show the same memory."""
    places = sorted((array.ctypes.data, array.nbytes) for array in arrays)
    ends = (start + nbytes for start, nbytes in places)
    return any(end > after[0] for end, after in zip(ends, places[1:], strict=False))


def finish(array: np.ndarray) -> None:
    """All floats of the run's memory that ``array`` lies in are as they are delivered: no NaN."""
    place = array.ctypes.data
    found = _near(place)
    if isinstance(found, Alone) and found.holds(place):
        found.finished = True


def finished(array: np.ndarray) -> bool:
    """True if that is known of this one."""
    if not _STARTS:
        return False
    place = array.ctypes.data
    found = _near(place)
    return isinstance(found, Alone) and found.finished and found.holds(place)


def _known(memory: Alone | Lent) -> None:
    _PLACES[memory.start] = memory
    insort(_STARTS, memory.start)


def _over(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """An array of ``shape`` like ``array``, over what owns the memory that it begins in."""
    place = array.ctypes.data
    found = _near(place)
    return found.array(place, array.dtype, shape) if isinstance(found, Alone) else None


def _near(address: int) -> Alone | Lent | None:
    """The memory that begins last before ``address``; None, or another, if some comes and goes.

    The one that holds it cannot go meanwhile: whoever asks has an array there.
    """
    try:
        return _PLACES.get(_STARTS[bisect_right(_STARTS, address) - 1])
    except IndexError:
        return None
