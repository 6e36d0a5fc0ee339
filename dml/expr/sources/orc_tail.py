"""This file reads the tail of an ORC file: rows of its stripes, and about how wide a row is.

It runs where ORC is decoded (``orc_worker``), on bytes that may be damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

# Numbers of fields in ORC's messages, and of its kinds of columns.
FOOTER, STRIPES, TYPES, COUNT, STATISTICS = 2, 3, 4, 6, 7
STRIPE_ROWS, KIND, VALUES, STRINGS, BYTES, LENGTH = 5, 1, 1, 4, 8, 3
TOTAL = 1  # bytes of a binary column; of a text column they are LENGTH
TEXTS, BINARY = (7, 16, 17), 8
# Bytes of a value by kind: boolean, whole numbers, floats, text, binary, moment, list, map, struct,
# union, decimal, date, two more kinds of text, moment of a time zone.
WIDTHS = (1, 1, 2, 4, 8, 4, 8, 4, 4, 8, 4, 4, 0, 5, 16, 4, 4, 4, 8)
# What a file without statistics unpacks to, for each byte of it: mostly less.
UNPACKED = 8
LONGEST_NUMBER = 10


class Tail(NamedTuple):
    """Rows of every stripe, and the bytes of all of them when they are decoded."""

    rows: list[int]
    nbytes: int


def tail_of(data: bytes, stored: int) -> Tail:
    """What the tail says of a file of ``stored`` bytes; ValueError for what is none."""
    footer = list(fields(_inner(fields(data), FOOTER)))
    rows = [_number(fields(_bytes(v)), STRIPE_ROWS) for n, v in footer if n == STRIPES]
    whole = _number(iter(footer), COUNT)
    if sum(rows) != whole:
        raise ValueError(f"its stripes have {sum(rows)} rows, and it says that it has {whole}")
    kinds = [_number(fields(_bytes(v)), KIND) for n, v in footer if n == TYPES]
    known = [list(fields(_bytes(v))) for n, v in footer if n == STATISTICS]
    widths = [WIDTHS[kind] for kind in kinds if kind < len(WIDTHS)]
    if len(known) < len(kinds) or len(widths) < len(kinds):
        return Tail(rows, sum(widths) * whole + UNPACKED * stored)
    pairs = zip(kinds, widths, known, strict=False)
    return Tail(rows, sum(_column_bytes(*each, whole) for each in pairs))


def _column_bytes(kind: int, width: int, known: list[tuple[int, int | bytes]], rows: int) -> int:
    """Bytes of a column, of which its statistics are ``known``; nulls have a place, too."""
    fixed = width * max(rows, _number(iter(known), VALUES))
    if kind in TEXTS:
        return fixed + _signed(_number(fields(_inner(iter(known), STRINGS)), LENGTH))
    if kind == BINARY:
        return fixed + _signed(_number(fields(_inner(iter(known), BYTES)), TOTAL))
    return fixed


def _signed(number: int) -> int:
    """A number whose lowest bit is its sign; none of these is below zero."""
    return 0 if number & 1 else number >> 1


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a message is a number")
    return value


def _inner(found: Iterator[tuple[int, int | bytes]], number: int) -> bytes:
    """The message in a field; empty if there is none."""
    return next((_bytes(value) for n, value in found if n == number), b"")


def _number(found: Iterator[tuple[int, int | bytes]], number: int) -> int:
    """The number in a field; zero if there is none."""
    return next((value for n, value in found if n == number and isinstance(value, int)), 0)


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of the fields of a protobuf message; ValueError for what is none."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
                continue
            case 2:
                size, at = _varint(data, at)
            case 1 | 5 as fixed:
                size = 8 if fixed == 1 else 4
            case other:
                raise ValueError(f"there is no kind {other} of fields")
        if at + size > len(data):
            raise ValueError("a field is longer than its message")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where the next thing begins."""
    number = 0
    for place in range(LONGEST_NUMBER):
        if at + place >= len(data):
            raise ValueError("a number is cut off")
        byte = data[at + place]
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise ValueError("a number has no end")
