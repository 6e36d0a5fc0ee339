"""This file reads what a Parquet footer says of each column chunk: sizes, counts, bounds.

pyarrow builds its own description of a chunk without a net: one that contradicts itself ends the
process. So what a plan needs of chunks is read here, and pyarrow reads pages only, where it checks.
The layout is parquet.thrift (apache/parquet-format).
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from dml.expr.sources.thrift import BINARY, I32, I64, LIST, STRUCT, Reader

# Physical types, by the number that footers have for them.
KINDS = {
    "BOOLEAN": 0,
    "INT32": 1,
    "INT64": 2,
    "INT96": 3,
    "FLOAT": 4,
    "DOUBLE": 5,
    "BYTE_ARRAY": 6,
    "FIXED_LEN_BYTE_ARRAY": 7,
}

# Numbers kept of a chunk, by their fields in ColumnMetaData, where its statistics are, and what its
# texts take together when nothing is encoded: from SizeStatistics, 0 where the writer told nothing.
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
    """The footer contradicts itself; the text says where."""


class Chunk(NamedTuple):
    """One column of one row group: physical type, values with nulls, bytes encoded and stored.

    ``text`` is what all its texts take once they are decoded, 0 if the writer did not say.
    """

    kind: str
    values: int
    uncompressed: int
    compressed: int
    has_dictionary: bool
    text: int = 0


class Bounds(NamedTuple):
    """What the writer counted: nulls, smallest and largest value as bytes; None where absent."""

    nulls: int | None = None
    low: bytes | None = None
    high: bytes | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks of one file by row group and leaf, and the ``rows`` of each row group.

    ``ordered`` says that the file declares its bounds to follow the order of their types.
    """

    footer: bytes
    kinds: tuple[str, ...]
    rows: array[int]
    numbers: array[int]
    ordered: bool

    def chunk(self, group: int, leaf: int) -> Chunk:
        """Sizes and counts of a chunk."""
        at = (group * len(self.kinds) + leaf) * WIDTH
        values, uncompressed, compressed, dictionary, _, _, text = self.numbers[at : at + WIDTH]
        return Chunk(self.kinds[leaf], values, uncompressed, compressed, dictionary > 0, text)

    def place(self, group: int, leaf: int) -> tuple[int, int]:
        """The bytes of the file that a chunk takes, its dictionary first: (start, stop)."""
        at = (group * len(self.kinds) + leaf) * WIDTH
        start, dictionary = self.numbers[at + DATA], self.numbers[at + DICTIONARY]
        if 0 < dictionary < start:
            start = dictionary
        return start, start + self.numbers[at + COMPRESSED]

    def bounds(self, group: int, leaf: int, *, signed: bool) -> Bounds:
        """The statistics of a chunk.

        ``signed`` says that the sign of a value decides its order: only then do the deprecated
        bounds hold.
        """
        at = self.numbers[(group * len(self.kinds) + leaf) * WIDTH + STATISTICS]
        if not at:
            return Bounds()
        trusted = [BOUNDS] * self.ordered + [DEPRECATED] * signed
        return _bounds(Reader(self.footer, at), trusted)


def _bounds(reader: Reader, trusted: Sequence[dict[int, str]]) -> Bounds:
    """Statistics at the place of ``reader``; of the ``trusted`` pairs the first whole one."""
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
    """Walk a footer once; DamageError unless every row group has a sound chunk of each leaf.

    ``kinds`` are the physical types of the leaves, in order.
    """
    walk = _Walk(footer, [KINDS[kind] for kind in kinds])
    try:
        walk.file()
    except (IndexError, OverflowError, RecursionError):
        raise DamageError("it does not end where its fields do") from None
    return Chunks(footer, tuple(kinds), walk.rows, walk.numbers, walk.ordered)


class _Walk:
    """The way through FileMetaData to its chunks, noting what is kept."""

    def __init__(self, footer: bytes, kinds: Sequence[int]) -> None:
        self.reader, self.kinds = Reader(footer), kinds
        self.rows, self.numbers = array("q"), array("q")
        self.ordered = False

    def file(self) -> None:
        """FileMetaData: the row groups, and whether an order of values is declared."""
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
        """ColumnOrder: whether it is that of the type, the only one that is defined."""
        found = False
        for field in self.reader.fields():
            found = field == (1, STRUCT)
            self.reader.skip(field[1])
        return found

    def row_group(self, number: int) -> None:
        """RowGroup: a chunk of each leaf, and how many rows."""
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
        """Every ColumnChunk of a row group."""
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
        """ColumnMetaData: what is kept of it, None if it is not of the physical type ``kind``."""
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
        """SizeStatistics: bytes of all texts of a chunk, as they are without encoding."""
        found = 0
        for field, kind in self.reader.fields():
            if (field, kind) == (1, I64):
                found = self.reader.number()
            else:
                self.reader.skip(kind)
        return found
