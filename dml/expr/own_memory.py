"""This file gives away rows of mapped files as memory of one's own: pages are copied when written.

Whoever maps a file for reading may map it a second time, privately, and offer that here. Each byte
of it is given once: what somebody has written there, nobody else is given as the rows of the file.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort

import numpy as np

# What is smaller is copied: it may be kept for little, and a page fault is dearer than its bytes.
LEAST = 1 << 20
# Of the file that stays as long as one array of it is kept, that array is at least this part.
PART = 4


class Offer:
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


_STARTS: list[int] = []
_OFFERS: dict[int, Offer] = {}


def offered(start: int, memory: memoryview) -> None:
    """Offer ``memory``, which holds the same bytes as what is mapped at ``start``."""
    _OFFERS[start] = Offer(start, memory)
    insort(_STARTS, start)


def withdrawn(start: int) -> None:
    """Nothing is mapped at ``start`` any more, or not for long: called before that is so.

    It may be called wherever memory is freed, so it takes no lock; each step is one of CPython's.
    """
    if _OFFERS.pop(start, None) is not None:
        _STARTS.remove(start)


def owned(array: np.ndarray) -> np.ndarray:
    """The array in writable memory that nobody else sees, copied if need be."""
    if array.nbytes < LEAST or not array.flags.c_contiguous:
        return array.copy()
    start = array.ctypes.data
    offer = _near(start)
    if offer is None or array.nbytes * PART < len(offer.memory):
        return array.copy()
    found = offer.take(start, start + array.nbytes)
    if found is None:
        return array.copy()
    return np.frombuffer(found, array.dtype).reshape(array.shape)


def _near(address: int) -> Offer | None:
    """The offer that begins last before ``address``; None, or a wrong one, if others come and go.

    The one that holds it cannot go meanwhile: whoever asks has an array there.
    """
    try:
        return _OFFERS.get(_STARTS[bisect_right(_STARTS, address) - 1])
    except IndexError:
        return None
