"""This file finds what a pattern matches one character at a time: a set of ASCII bytes, or no such.

What the set holds is asked of the library that runs patterns, so there is no second meaning. Only
that a pattern is a set at all is read off its text, and a text in doubt is not one.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dml.kernels.arrow_ops import compute

ASCII = 128

# One character, or a class in brackets, that is made of ASCII and of escapes that mean sets of
# ASCII or all but one; then perhaps a plus. No "[" in brackets: [:alpha:] is not read here.
_PLAIN = r"[^\\.+*?()|\[\]{}^$]"
_ESCAPED = r"\\(?:[tnrvfdswDSW]|[^\w\s])"
_CLASS = rf"\[\^?(?:[^\\\]\[]|{_ESCAPED})+\]"
_ONE = re.compile(rf"(?P<one>{_PLAIN}|{_ESCAPED}|{_CLASS})(?P<many>\+?)", re.ASCII | re.DOTALL)


class ByteSet(NamedTuple):
    """Characters: ASCII ones by ``ranges`` (first, last), all others or none of them.

    With ``runs`` as many of them as follow each other are one place.
    """

    ranges: tuple[tuple[int, int], ...]
    others: bool
    runs: bool

    @property
    def table(self) -> np.ndarray:
        """Whether each byte below 128 is in the set; the others are not: (256,) bool."""
        found = np.zeros(256, bool)
        for first, last in self.ranges:
            found[first : last + 1] = True
        return found

    def within(self, data: np.ndarray) -> np.ndarray:
        """Which bytes are in the set: (n,) bool."""
        found = np.zeros(len(data), bool) if not self.ranges else None
        for first, last in self.ranges:
            here = data == first if first == last else data - np.uint8(first) <= last - first
            found = here if found is None else np.bitwise_or(found, here, out=found)
        return np.asarray(found)


@functools.lru_cache(maxsize=256)
def set_of(pattern: str, literal: bool) -> ByteSet | None:  # noqa: FBT001 - as ``str.replace`` has it
    """The set that ``pattern`` matches, as it is or as a run; None if it is something else."""
    if not pattern.isascii():
        return None
    if literal:
        return of_characters(pattern) if len(pattern) == 1 else None
    found = _ONE.fullmatch(pattern)
    if found is None:
        return None
    letters = pa.array([*map(chr, range(ASCII)), "\u00e9"])
    try:
        matched = compute().match_substring_regex(letters, pattern=found["one"])
    except pa.ArrowInvalid:
        return None  # whoever runs the pattern says what is wrong with it
    *flags, others = matched.to_pylist()
    return ByteSet(_ranges(flags), others, bool(found["many"]))


def of_characters(characters: str) -> ByteSet | None:
    """The set of these characters; None if one is not ASCII."""
    if not characters.isascii():
        return None
    flags = [chr(byte) in characters for byte in range(ASCII)]
    return ByteSet(_ranges(flags), others=False, runs=False)


def _ranges(flags: list[bool]) -> tuple[tuple[int, int], ...]:
    edges = np.flatnonzero(np.diff([0, *flags, 0])).tolist()
    return tuple((first, end - 1) for first, end in zip(edges[::2], edges[1::2], strict=True))
