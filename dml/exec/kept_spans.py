"""This file knows which parts of a kept stream there are, and what lies between any two of them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from typing import Any, NamedTuple


class Span(NamedTuple):
    """Where a part lies in the stream: from element ``first`` up to ``end``."""

    first: int
    end: int
    last: bool
    nbytes: int

    @staticmethod
    def of(about: Mapping[str, Any]) -> Span:
        """What is said of a part."""
        first = int(about["first"])
        return Span(first, first + int(about["elements"]), about["last"], int(about["bytes"]))


class Reach(NamedTuple):
    """Elements from the first on that are there, bytes of all, and whether these are all."""

    elements: int
    nbytes: int
    whole: bool


class Spans:
    """Parts by number. Each begins where the one before ends, or earlier if that was made anew."""

    def __init__(self) -> None:
        self.of: dict[int, Span] = {}
        self.firsts: list[tuple[int, int]] = []  # with the part's number, in order
        self.ends: dict[int, int] = {}  # the part that ends before an element

    def know(self, number: int, span: Span) -> None:
        """A part is there."""
        self.forget(number)
        self.of[number] = span
        self.ends[span.end] = max(number, self.ends.get(span.end, 0))
        insort(self.firsts, (span.first, number))

    def forget(self, number: int) -> None:
        """A part may not be there."""
        span = self.of.pop(number, None)
        if span is None:
            return
        self.firsts.remove((span.first, number))
        if self.ends[span.end] == number:
            others = [n for n, each in self.of.items() if each.end == span.end]
            self.ends.update({span.end: max(others)} if others else {})
            if not others:
                del self.ends[span.end]

    def covering(self, place: int) -> int | None:
        """The part that has an element."""
        at = bisect_right(self.firsts, (place, 1 << 62)) - 1
        for first, number in reversed(self.firsts[max(0, at - 1) : at + 1]):
            if first <= place < self.of[number].end:
                return number
        return None

    def absent(self, place: int) -> int | None:
        """The part that would begin with an element, if it is not there."""
        if place and place not in self.ends:
            return None
        number = self.ends[place] + 1 if place else 0
        return None if number in self.of else number

    def ended(self, place: int) -> bool:
        """True if the last part ends before this element."""
        number = self.ends.get(place)
        return number is not None and self.of[number].last

    def reach(self) -> Reach:
        """How much is there."""
        reach, whole = 0, False
        for first, number in self.firsts:
            span = self.of[number]
            if first <= reach <= span.end:
                reach, whole = span.end, span.last
        return Reach(reach, sum(span.nbytes for span in self.of.values()), whole)
