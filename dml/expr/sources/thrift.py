"""This file moves over values in Thrift's compact protocol, the encoding of Parquet footers.

The bytes may be damaged: whatever they say, a reader comes to an end, at the latest with IndexError
where they stop, or RecursionError. Layout: "Thrift Compact protocol encoding" of Apache Thrift.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
NUMBERS = (I16, I32, I64)
SIZES = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}
LONG_LIST = 15

# A struct of nothing but numbers, which most of the small ones are, in one step.
_HEADS = bytes(delta << 4 | kind for delta in range(1, 16) for kind in NUMBERS)
_OF_NUMBERS = re.compile(
    b"(?:[" + re.escape(_HEADS) + rb"][\x80-\xff]*[\x00-\x7f])*\x00", re.DOTALL
)


class Reader:
    """A place ``at`` in ``data``, moved over one value after another."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and kind of each field of a struct; the caller moves over its value."""
        number, data = 0, self.data
        while head := data[self.at]:
            self.at += 1
            if head >> 4:
                number += head >> 4
            else:
                number = self.number()
            if not head & 15:
                return
            yield number, head & 15
        self.at += 1

    def skip(self, kind: int) -> None:
        """Move over the value of a field; booleans are in its head."""
        if kind in NUMBERS:
            self.unsigned()
        elif kind == BINARY:
            self.binary()
        elif kind == STRUCT:
            self.skip_struct()
        elif kind in (LIST, SET):
            count, inner = self.list_head()
            self.skip_items(count, inner)
        elif kind == MAP:
            self.skip_map()
        elif kind not in (TRUE, FALSE):
            self.jump(SIZES.get(kind, len(self.data)))

    def skip_struct(self) -> None:
        """Move over a struct."""
        if found := _OF_NUMBERS.match(self.data, self.at):
            self.at = found.end()
            return
        for _, inner in self.fields():
            self.skip(inner)

    def skip_items(self, count: int, kind: int) -> None:
        """Move over the values of a list or map, in which booleans take a byte each."""
        if kind in SIZES:
            self.jump(count * SIZES[kind])
            return
        for _ in range(count):
            self.skip(kind)

    def skip_map(self) -> None:
        """Move over a map."""
        if count := self.unsigned():
            kinds = self.data[self.at]
            self.at += 1
            for _ in range(count):
                self.skip_items(1, kinds >> 4)
                self.skip_items(1, kinds & 15)

    def list_head(self) -> tuple[int, int]:
        """Length and kind of a list or set."""
        head = self.data[self.at]
        self.at += 1
        return (head >> 4 if head >> 4 != LONG_LIST else self.unsigned()), head & 15

    def binary(self) -> int:
        """Move over a string; its length."""
        count = self.unsigned()
        self.jump(count)
        return count

    def jump(self, count: int) -> None:
        """Move over ``count`` bytes, all of which must be there."""
        self.at += count
        if self.at > len(self.data):
            raise IndexError(self.at)

    def number(self) -> int:
        """A signed number, in zigzag form."""
        coded = self.unsigned()
        return (coded >> 1) ^ -(coded & 1)

    def unsigned(self) -> int:
        """A number of seven bits a byte, the low ones first."""
        data, at = self.data, self.at
        found = data[at]
        if found > 127:
            found, shift = found & 127, 7
            while data[at := at + 1] > 127:
                found |= (data[at] & 127) << shift
                shift += 7
            found |= data[at] << shift
        self.at = at + 1
        return found
