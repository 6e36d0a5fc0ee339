"""Patterns that match one character at a time are converted to sets of ASCII bytes.

The members of a set are found by running the pattern in its own library, so both always agree. Only
whether a pattern is such a set is read from its text; a pattern in doubt is not converted.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dml.kernels.arrow_ops import compute

ASCII = 128

# A character or a bracketed class of ASCII characters and escapes, which stand for a set of ASCII
# or its complement; then perhaps a plus. No "[" in brackets: [:alpha:] is not parsed here.
_PLAIN = r"[^\\.+*?()|\[\]{}^$]"
_ESCAPED = r"\\(?:[tnrvfdswDSW]|[^\w\s])"
_CLASS = rf"\[\^?(?:[^\\\]\[]|{_ESCAPED})+\]"
_ONE = re.compile(rf"(?P<one>{_PLAIN}|{_ESCAPED}|{_CLASS})(?P<many>\+?)", re.ASCII | re.DOTALL)


class ByteSet(NamedTuple):
    """A set of characters: ASCII by ``ranges`` (first, last); with ``others``, all non-ASCII too.

    With ``runs``, consecutive members together are one match of the pattern.
    """

    ranges: tuple[tuple[int, int], ...]
    others: bool
    runs: bool

    @property
    def table(self) -> np.ndarray:
        """Membership of each byte, (256,) bool; False for bytes from 128 on."""
        found = np.zeros(256, bool)
        for first, last in self.ranges:
            found[first : last + 1] = True
        return found

    def within(self, data: np.ndarray) -> np.ndarray:
        """Return which bytes are in the set: (n,) bool."""
        found = np.zeros(len(data), bool) if not self.ranges else None
        for first, last in self.ranges:
            here = data == first if first == last else data - np.uint8(first) <= last - first
            found = here if found is None else np.bitwise_or(found, here, out=found)
        return np.asarray(found)


@functools.lru_cache(maxsize=256)
def set_of(pattern: str, literal: bool) -> ByteSet | None:  # noqa: FBT001 - as ``str.replace`` has it
    """Return the set that ``pattern`` matches, alone or in runs; None for other patterns."""
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
        return None  # running the pattern will report the error
    *flags, others = matched.to_pylist()
    return ByteSet(_ranges(flags), others, bool(found["many"]))


def of_characters(characters: str) -> ByteSet | None:
    """Return the set of ``characters``; None if any is not ASCII."""
    if not characters.isascii():
        return None
    flags = [chr(byte) in characters for byte in range(ASCII)]
    return ByteSet(_ranges(flags), others=False, runs=False)


def _ranges(flags: list[bool]) -> tuple[tuple[int, int], ...]:
    edges = np.flatnonzero(np.diff([0, *flags, 0])).tolist()
    return tuple((first, end - 1) for first, end in zip(edges[::2], edges[1::2], strict=True))
