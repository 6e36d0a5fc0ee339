"""Metadata of column chunks is parsed from Parquet footers here: sizes, counts, bounds.

pyarrow parses chunk metadata without checks: contradictory metadata terminates the process. So the
metadata that a plan needs is parsed here, and pyarrow only reads pages, which it checks. The layout
is parquet.thrift (apache/parquet-format).
"""

from __future__ import annotations

import dataclasses
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
NUMBERS = (I16, I32, I64)
SIZES = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}
LONG_LIST = 15

# Matches a struct of numbers only, as most small structs are, in one step.
_HEADS = bytes(delta << 4 | kind for delta in range(1, 16) for kind in NUMBERS)
_OF_NUMBERS = re.compile(
    b"(?:[" + re.escape(_HEADS) + rb"][\x80-\xff]*[\x00-\x7f])*\x00", re.DOTALL
)


class ThriftReader:
    """A parser of Thrift values in ``data``; offset ``at`` advances over each value it reads."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and kind of each field of a struct; the caller must consume the value."""
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
        """Skip the value of a field of type ``kind``; a boolean has no bytes after its header."""
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
        """Skip a struct."""
        if found := _OF_NUMBERS.match(self.data, self.at):
            self.at = found.end()
            return
        for _, inner in self.fields():
            self.skip(inner)

    def skip_items(self, count: int, kind: int) -> None:
        """Skip the values of a list or map, in which booleans take a byte each."""
        if kind in SIZES:
            self.jump(count * SIZES[kind])
            return
        for _ in range(count):
            self.skip(kind)

    def skip_map(self) -> None:
        """Skip a map."""
        if count := self.unsigned():
            kinds = self.data[self.at]
            self.at += 1
            for _ in range(count):
                self.skip_items(1, kinds >> 4)
                self.skip_items(1, kinds & 15)

    def list_head(self) -> tuple[int, int]:
        """Read length and element kind of a list or set."""
        head = self.data[self.at]
        self.at += 1
        return (head >> 4 if head >> 4 != LONG_LIST else self.unsigned()), head & 15

    def binary(self) -> int:
        """Skip a string and return its length."""
        count = self.unsigned()
        self.jump(count)
        return count

    def jump(self, count: int) -> None:
        """Skip ``count`` bytes; raise IndexError if fewer are left."""
        self.at += count
        if self.at > len(self.data):
            raise IndexError(self.at)

    def number(self) -> int:
        """Read a signed number in zigzag encoding."""
        coded = self.unsigned()
        return (coded >> 1) ^ -(coded & 1)

    def unsigned(self) -> int:
        """Read an unsigned number of seven bits a byte, the low bits first."""
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


# Physical types and their numbers in footers.
NAMES = "BOOLEAN INT32 INT64 INT96 FLOAT DOUBLE BYTE_ARRAY FIXED_LEN_BYTE_ARRAY"
KINDS = {name: number for number, name in enumerate(NAMES.split())}

# The numbers recorded for a chunk: fields of ColumnMetaData, the offset of its statistics, and the
# unencoded bytes of its texts from SizeStatistics, 0 if the writer did not record them.
VALUES, UNCOMPRESSED, COMPRESSED, DICTIONARY, DATA, STATISTICS, TEXT = range(7)
KEPT = {
    (5, I64): VALUES, (6, I64): UNCOMPRESSED, (7, I64): COMPRESSED,
    (9, I64): DATA, (11, I64): DICTIONARY,
}  # fmt: skip
WIDTH = 7

# The bounds of Statistics. The deprecated ones follow the order of signed bytes, whatever the type.
BOUNDS = {5: "high", 6: "low"}
DEPRECATED = {1: "high", 2: "low"}


class DamageError(Exception):
    """The footer contradicts itself; the message says where."""


class ColumnChunk(NamedTuple):
    """A column chunk: physical type, number of values and nulls, encoded and compressed bytes.

    ``text`` is the decoded size of all texts of the chunk; 0 if the writer did not record it.
    """

    kind: str
    values: int
    uncompressed: int
    compressed: int
    has_dictionary: bool
    text: int = 0


class Bounds(NamedTuple):
    """Statistics of the writer: null count, smallest and largest value as bytes; None if absent."""

    nulls: int | None = None
    low: bytes | None = None
    high: bytes | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks of one file: one for each row group and leaf (physical column).

    ``rows`` are row counts of the row groups; ``numbers`` has ``WIDTH`` numbers per chunk.
    ``ordered`` is True if the file declares that its bounds follow the order of their types.
    """

    footer: bytes
    kinds: tuple[str, ...]
    rows: array[int]
    numbers: array[int]
    ordered: bool

    def chunk(self, group: int, leaf: int) -> ColumnChunk:
        """Return sizes and counts of the chunk of leaf ``leaf`` in row group ``group``."""
        at = (group * len(self.kinds) + leaf) * WIDTH
        values, uncompressed, compressed, dictionary, _, _, text = self.numbers[at : at + WIDTH]
        return ColumnChunk(self.kinds[leaf], values, uncompressed, compressed, dictionary > 0, text)

    def place(self, group: int, leaf: int) -> tuple[int, int]:
        """Return the byte range (start, stop) of a chunk in the file, including its dictionary."""
        at = (group * len(self.kinds) + leaf) * WIDTH
        start, dictionary = self.numbers[at + DATA], self.numbers[at + DICTIONARY]
        if 0 < dictionary < start:
            start = dictionary
        return start, start + self.numbers[at + COMPRESSED]

    def bounds(self, group: int, leaf: int, *, signed: bool) -> Bounds:
        """Return the statistics of a chunk.

        ``signed`` is True if values are ordered as signed numbers: only then are the deprecated
        bounds of old writers valid.
        """
        at = self.numbers[(group * len(self.kinds) + leaf) * WIDTH + STATISTICS]
        if not at:
            return Bounds()
        trusted = [BOUNDS] * self.ordered + [DEPRECATED] * signed
        return _bounds(ThriftReader(self.footer, at), trusted)


def _bounds(reader: ThriftReader, trusted: Sequence[dict[int, str]]) -> Bounds:
    """Parse statistics at the position of ``reader``; use the first complete ``trusted`` bounds."""
    nulls: int | None = None
    texts: dict[int, bytes] = {}
    for field, kind in reader.fields():
        if kind == BINARY:
            size = reader.binary()
            texts[field] = reader.data[reader.at - size : reader.at]
        elif (field, kind) == (3, I64):
            nulls = reader.number()
        else:
            reader.skip(kind)
    for pair in trusted:
        found = {name: texts[field] for field, name in pair.items() if field in texts}
        if len(found) == 2:
            return Bounds(nulls, **found)
    return Bounds(nulls)


def read_chunks(footer: bytes, kinds: Sequence[str]) -> Chunks:
    """Parse a footer; raise DamageError unless every row group has a valid chunk of each leaf.

    ``kinds`` are the physical types of the leaves, in order.
    """
    walk = _Walk(footer, [KINDS[kind] for kind in kinds])
    try:
        walk.file()
    except (IndexError, OverflowError, RecursionError):
        raise DamageError("it does not end where its fields do") from None
    return Chunks(footer, tuple(kinds), walk.rows, walk.numbers, walk.ordered)


class _Walk:
    """A parser that walks FileMetaData down to its chunks and records the needed numbers."""

    def __init__(self, footer: bytes, kinds: Sequence[int]) -> None:
        self.reader, self.kinds = ThriftReader(footer), kinds
        self.rows, self.numbers = array("q"), array("q")
        self.ordered = False

    def file(self) -> None:
        """Parse FileMetaData: the row groups, and whether an order of values is declared."""
        for field in self.reader.fields():
            if field == (4, LIST):
                count, _ = self.reader.list_head()
                for number in range(count):
                    self.row_group(number)
            elif field == (7, LIST):
                count, _ = self.reader.list_head()
                self.ordered = sum(self.has_order() for _ in range(count)) == len(self.kinds)
            else:
                self.reader.skip(field[1])

    def has_order(self) -> bool:
        """Parse ColumnOrder; return True if it is the order of the type, the only one defined."""
        found = False
        for field in self.reader.fields():
            found = field == (1, STRUCT)
            self.reader.skip(field[1])
        return found

    def row_group(self, number: int) -> None:
        """Parse RowGroup: a chunk of each leaf, and the number of rows."""
        chunks = rows = -1
        for field in self.reader.fields():
            if field == (1, LIST) and chunks < 0:
                chunks, _ = self.reader.list_head()
                if chunks == len(self.kinds):
                    self.chunks(number)
            elif field == (3, I64):
                rows = self.reader.number()
            else:
                self.reader.skip(field[1])
        if chunks != len(self.kinds):
            raise DamageError(f"row group {number} has {chunks} columns of {len(self.kinds)}")
        if rows < 0:
            raise DamageError(f"row group {number} has {rows} rows")
        self.rows.append(rows)

    def chunks(self, number: int) -> None:
        """Parse every ColumnChunk of a row group."""
        for leaf, kind in enumerate(self.kinds):
            kept = None
            for field in self.reader.fields():
                if field == (3, STRUCT):
                    kept = self.metadata(kind)
                else:
                    self.reader.skip(field[1])
            if kept is None:
                raise DamageError(f"column {leaf} of row group {number} is not described")
            if min(kept) < 0:
                raise DamageError(f"column {leaf} of row group {number} has a negative size")
            self.numbers.extend(kept)

    def metadata(self, kind: int) -> list[int] | None:
        """Parse ColumnMetaData; return its numbers, None if the physical type is not ``kind``."""
        kept, reader, typed = [0] * WIDTH, self.reader, False
        for field in reader.fields():
            place = KEPT.get(field)
            if place is not None:
                kept[place] = reader.number()
            elif field == (1, I32):
                typed = reader.number() == kind
            elif field == (16, STRUCT):
                kept[TEXT] = self.text()
            else:
                if field == (12, STRUCT):
                    kept[STATISTICS] = reader.at
                reader.skip(field[1])
        return kept if typed else None

    def text(self) -> int:
        """Parse SizeStatistics; return the unencoded bytes of all texts of a chunk."""
        found = 0
        for field, kind in self.reader.fields():
            if (field, kind) == (1, I64):
                found = self.reader.number()
            else:
                self.reader.skip(kind)
        return found
