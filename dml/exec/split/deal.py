"""This file deals the elements of a stream to ranks in turn, and says what happens at its end."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Protocol

from dml.exec.making import Element

Dealt = Iterator[tuple[int, Element, int]]  # rank, element, its bytes


class Deal(Protocol):
    """A way to share a stream among ranks. May keep elements back until it knows the end."""

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """What may go out now that element ``g`` has come."""

    def rest(self, count: int, *, failed: bool) -> Dealt:
        """What goes out after ``count`` elements, at the end or (``failed``) before an error."""

    def rounds(self, count: int) -> int:
        """Steps of the longest rank where ``count`` elements came."""


class All:
    """Every element to one rank; the first ranks get one more where it does not come out even."""

    def __init__(self, n: int) -> None:
        self.n = n

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """The element, at once."""
        yield g % self.n, element, nbytes

    def rest(self, count: int, *, failed: bool) -> Dealt:
        """Nothing."""
        yield from ()

    def rounds(self, count: int) -> int:
        """The first rank's."""
        return -(-count // self.n)


class Drop(All):
    """Whole rounds only: an element goes out once there is one for each rank."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.round: list[tuple[int, Element, int]] = []

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """A round, when it is full."""
        self.round.append((g % self.n, element, nbytes))
        if len(self.round) == self.n:
            whole, self.round = self.round, []
            yield from whole

    def rounds(self, count: int) -> int:
        """Every rank's."""
        return count // self.n


class Pad(All):
    """The last element of the stream again, to each rank that would go without one.

    Every element waits for the next one, so that the last is known before anybody can change it.
    """

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.last: tuple[int, Element, int] | None = None

    def dealt(self, g: int, element: Element, nbytes: int) -> Dealt:
        """The element before."""
        if self.last is not None:
            yield self.last
        self.last = (g % self.n, element, nbytes)

    def rest(self, count: int, *, failed: bool) -> Dealt:
        """The last element, and copies of it."""
        if self.last is None:
            return
        rank, element, nbytes = self.last
        short = () if failed else range(rank + 1, self.n)
        copies = [(each, copy.deepcopy(element), nbytes) for each in short]
        yield self.last
        yield from copies


DEALS: dict[str | None, type[All]] = {None: All, "drop": Drop, "pad": Pad}
