"""Deal the elements of a stream to ranks in turn, by a policy for the end of the stream."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from dml.exec.delivery.prefetch import Element

Dealt = Iterator[tuple[int, Element, int]]  # rank, element, its bytes


class All:
    """Deals element g to rank g mod n; the first ranks get one more if the count is uneven.

    Subclasses may hold elements back until they know where the stream ends.
    """

    def __init__(self, n: int) -> None:
        self.n = n

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """Yield (rank, element, bytes) of the elements to deliver once element ``g`` is made."""
        yield g % self.n, element, nbytes

    def rest(self, count: int, *, failed: bool) -> Dealt:
        """Yield the elements held back when the stream ends, or fails, after ``count`` elements."""
        yield from ()

    def rounds(self, count: int) -> int:
        """Return how many of ``count`` elements the rank with the most elements gets."""
        return -(-count // self.n)


class DropRemainder(All):
    """Deals whole rounds of one element per rank, and drops an incomplete last round."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.round: list[tuple[int, Element, int]] = []

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """Yield all elements of a round if element ``g`` completes the round, else none."""
        self.round.append((g % self.n, element, nbytes))
        if len(self.round) == self.n:
            whole, self.round = self.round, []
            yield from whole

    def rounds(self, count: int) -> int:
        """Return how many of ``count`` elements each rank gets."""
        return count // self.n


class PadRemainder(All):
    """Repeats the last element of the stream for each rank that would lack one.

    Each element is held back until the next one is made: the last one must be copied before a
    rank can change it.
    """

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.last: tuple[int, Element, int] | None = None

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """Yield the element before element ``g``, and hold back element ``g``."""
        if self.last is not None:
            yield self.last
        self.last = (g % self.n, element, nbytes)

    def rest(self, count: int, *, failed: bool) -> Dealt:
        """Yield the last element and, unless ``failed``, a copy for each rank that lacks one."""
        if self.last is None:
            return
        rank, element, nbytes = self.last
        short = () if failed else range(rank + 1, self.n)
        copies = [(each, copy.deepcopy(element), nbytes) for each in short]
        yield self.last
        yield from copies


DEALS: dict[str | None, type[All]] = {None: All, "drop": DropRemainder, "pad": PadRemainder}
