"""``tf.train.Example`` messages are parsed here: features with their values only.

The wire format of protocol buffers is small enough to be parsed exactly: numbers, fixed widths, and
runs of bytes. Unknown fields are skipped, as protocol buffers demand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

import numpy as np

NUMBER, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which Example never had
WIDTHS = {EIGHT: 8, FOUR: 4}
MOST_FIELD, MASK, SIGN = (1 << 29) - 1, (1 << 64) - 1, 1 << 63
# More bytes of numbers than this are decoded faster by NumPy than one by one.
MANY = 24

# The list kinds of a feature by field number; 0 is no list.
NOTHING, BYTES_LIST, FLOAT_LIST, INT64_LIST = 0, 1, 2, 3
WORDS = {BYTES_LIST: "bytes", FLOAT_LIST: "float", INT64_LIST: "int64"}

Values: TypeAlias = "list[bytes] | list[int] | list[float] | np.ndarray"
Feature: TypeAlias = tuple[int, list[Values]]


class MalformedError(ValueError):
    """The bytes are not a message, or not an Example; the text says which part is invalid."""


def example(data: bytes, wanted: Collection[str] | None) -> dict[str, Feature | None]:
    """Return the features of an Example by name: list kind and values, None if not ``wanted``.

    Without ``wanted`` (None), all are. Of two features of one name the last is used. Raise
    MalformedError for invalid bytes, and for a SequenceExample.
    """
    found: dict[str, Feature | None] = {}
    for number, wire, start, stop in fields(data, 0, len(data)):
        if wire != BYTES:
            continue
        if number == 2:
            raise MalformedError("it is a SequenceExample: it has feature_lists")
        if number == 1:
            for inner, kind, first, last in fields(data, start, stop):
                if inner == 1 and kind == BYTES:
                    name, feature = _entry(data, first, last, wanted)
                    found[name] = feature
    return found


def _entry(
    data: bytes, start: int, stop: int, wanted: Collection[str] | None
) -> tuple[str, Feature | None]:
    """Parse one map entry: the name and its feature, None if the name is not ``wanted``."""
    name, parts = "", list[tuple[int, int]]()
    for number, wire, first, last in fields(data, start, stop):
        if wire == BYTES and number == 1:
            try:
                name = data[first:last].decode()
            except UnicodeDecodeError:
                raise MalformedError(
                    f"the name of a feature is no UTF-8: {data[first:last]!r}"
                ) from None
        elif wire == BYTES and number == 2:
            parts.append((first, last))
    return name, _feature(data, parts) if wanted is None or name in wanted else None


def _feature(data: bytes, parts: list[tuple[int, int]]) -> Feature:
    """Return list kind and values of a feature; a list of another kind replaces earlier lists."""
    kind, runs = NOTHING, list[Values]()
    for start, stop in parts:
        for number, wire, first, last in fields(data, start, stop):
            if wire == BYTES and number in LISTS:
                if number != kind:
                    kind, runs = number, []
                runs += LISTS[number](data, first, last)
    return kind, runs


def _bytes_list(data: bytes, start: int, stop: int) -> list[Values]:
    return [[data[a:b] for number, wire, a, b in fields(data, start, stop)
             if number == 1 and wire == BYTES]]  # fmt: skip


def _float_list(data: bytes, start: int, stop: int) -> list[Values]:
    found: list[Values] = []
    for number, wire, first, last in fields(data, start, stop):
        if number == 1 and wire in (BYTES, FOUR):
            if (last - first) % 4:
                raise MalformedError(f"a run of floats has {last - first} bytes")
            found.append(np.frombuffer(data, "<f4", (last - first) // 4, first))
    return found


def _int64_list(data: bytes, start: int, stop: int) -> list[Values]:
    found: list[Values] = []
    for number, wire, first, last in fields(data, start, stop):
        if number == 1 and wire in (BYTES, NUMBER):
            many = last - first > MANY
            found.append(numbers(data[first:last]) if many else _few(data, first, last))
    return found


LISTS: dict[int, Callable[[bytes, int, int], list[Values]]] = {
    BYTES_LIST: _bytes_list,
    FLOAT_LIST: _float_list,
    INT64_LIST: _int64_list,
}


def fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, wire type, start and stop offsets."""
    while at < stop:
        tag, at = varint(data, at, stop)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= MOST_FIELD:
            raise MalformedError(f"there is no field {number}")
        start = at
        if wire == NUMBER:
            _, at = varint(data, at, stop)
        elif wire == BYTES:
            size, start = varint(data, at, stop)
            at = start + size
        elif wire in WIDTHS:
            at += WIDTHS[wire]
        else:
            raise MalformedError(f"field {number} has wire type {wire}")
        if at > stop:
            raise MalformedError(
                f"field {number} is cut off: {at - start} bytes, {stop - start} left"
            )
        yield number, wire, start, at


def varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Decode the varint at offset ``at``, and return it with the offset just past it."""
    found = shift = 0
    while at < stop and shift < 70:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found & MASK, at
        shift += 7
    raise MalformedError("a number has no end")


def _few(data: bytes, at: int, stop: int) -> list[int]:
    """Decode consecutive varints as signed integers."""
    found = []
    while at < stop:
        value, at = varint(data, at, stop)
        found.append(value - (value & SIGN) * 2)
    return found


def numbers(data: bytes) -> np.ndarray:
    """Decode consecutive varints of seven bits a byte as integers, (n,) int64."""
    stored = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(stored < 0x80)
    sizes = np.diff(ends, prepend=-1)
    if not len(ends) or ends[-1] != len(stored) - 1 or sizes.max() > 10:
        raise MalformedError("a number has no end")
    starts = ends - sizes + 1
    place = np.arange(len(stored)) - np.repeat(starts, sizes)
    bits = (stored & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    found: np.ndarray = np.bitwise_or.reduceat(bits, starts).view(np.int64)
    return found
