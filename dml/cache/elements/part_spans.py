"""The spans of the stored parts of a cached stream, and lookups by element, are here."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from typing import Any, NamedTuple


class PartSpan(NamedTuple):
    """The range of a part in the stream: from element ``first`` up to ``end``."""

    first: int
    end: int
    last: bool
    nbytes: int

    @staticmethod
    def of(about: Mapping[str, Any]) -> PartSpan:
        """Return the span that the description of a part states."""
        first = int(about["first"])
        return PartSpan(first, first + int(about["elements"]), about["last"], int(about["bytes"]))


class Reach(NamedTuple):
    """Elements stored from the first on, bytes of all parts, and whether the stream is whole."""

    elements: int
    nbytes: int
    whole: bool


class Spans:
    """Spans by part number; each begins where the previous ends, or earlier if that was remade."""

    def __init__(self) -> None:
        self.of: dict[int, PartSpan] = {}
        self.firsts: list[tuple[int, int]] = []  # with the part's number, in order
        self.ends: dict[int, int] = {}  # the part that ends before an element

    def know(self, number: int, span: PartSpan) -> None:
        """Add the span of a stored part."""
        self.forget(number)
        self.of[number] = span
        self.ends[span.end] = max(number, self.ends.get(span.end, 0))
        insort(self.firsts, (span.first, number))

    def forget(self, number: int) -> None:
        """Remove the span of a part that may no longer be stored."""
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
        """Return the part that holds an element, or None."""
        at = bisect_right(self.firsts, (place, 1 << 62)) - 1
        for first, number in reversed(self.firsts[max(0, at - 1) : at + 1]):
            if first <= place < self.of[number].end:
                return number
        return None

    def absent(self, place: int) -> int | None:
        """Return the missing part that would begin with an element, or None."""
        if place and place not in self.ends:
            return None
        number = self.ends[place] + 1 if place else 0
        return None if number in self.of else number

    def ended(self, place: int) -> bool:
        """Return True if the last part ends before this element."""
        number = self.ends.get(place)
        return number is not None and self.of[number].last

    def reach(self) -> Reach:
        """Return how many elements are stored without a gap from the first on."""
        reach, whole = 0, False
        for first, number in self.firsts:
            span = self.of[number]
            if first <= reach <= span.end:
                reach, whole = span.end, span.last
        return Reach(reach, sum(span.nbytes for span in self.of.values()), whole)
