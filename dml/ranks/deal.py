"""Deal the elements of a stream to ranks in turn, by a policy for the end of the stream."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from dml.exec.delivery.prefetch import Element

Dealt = Iterator[tuple[int, Element, int]]  # rank, element, its bytes


class All:
    """Deals element g to rank g mod n; the first ranks get one more if the count is uneven.

    Subclasses may hold elements back until they know the end of the stream.
    """

    def __init__(self, n: int) -> None:
        self.n = n

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """Yield the elements that may be delivered now that element ``g`` has come."""
        yield g % self.n, element, nbytes

    def rest(self, count: int, *, failed: bool) -> Dealt:
        """Yield the elements still held back after ``count``, at the end or at an error."""
        yield from ()

    def rounds(self, count: int) -> int:
        """Return the number of steps of the longest rank after ``count`` elements."""
        return -(-count // self.n)


class DropRemainder(All):
    """Deals whole rounds only: an element is delivered once there is one for each rank."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.round: list[tuple[int, Element, int]] = []

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """Yield the elements of a round once there is one for each rank."""
        self.round.append((g % self.n, element, nbytes))
        if len(self.round) == self.n:
            whole, self.round = self.round, []
            yield from whole

    def rounds(self, count: int) -> int:
        """Return the number of steps of every rank after ``count`` elements."""
        return count // self.n


class PadRemainder(All):
    """Repeats the last element of the stream for each rank that would get none.

    Every element is held until the next comes, so that the last is known before it can be changed.
    """

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.last: tuple[int, Element, int] | None = None

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """Yield the previous element."""
        if self.last is not None:
            yield self.last
        self.last = (g % self.n, element, nbytes)

    def rest(self, count: int, *, failed: bool) -> Dealt:
        """Yield the last element, and unless ``failed`` a copy for each rank without one."""
        if self.last is None:
            return
        rank, element, nbytes = self.last
        short = () if failed else range(rank + 1, self.n)
        copies = [(each, copy.deepcopy(element), nbytes) for each in short]
        yield self.last
        yield from copies


DEALS: dict[str | None, type[All]] = {None: All, "drop": DropRemainder, "pad": PadRemainder}
