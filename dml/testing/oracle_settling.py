"""This file says for the oracle by which returned rows types settle, as the pages of semantics do.

Functions are called on one row, then on up to four times as many as before, fewer where rows are
large; types settle at the end of such a step, once there are enough rows, or bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# Rows that settle types: calls of a map, children of a flat_map.
CALLS, CHILDREN = 16384, 4096
# Values that do, and those of one step and of one part of the children.
ENOUGH, PART = 4 << 20, 2 << 20


class Steps:
    """How many rows come next: ``rows``."""

    def __init__(self) -> None:
        self.rows, self.heaviest = 1, 1.0

    def made(self, rows: int, size: int) -> None:
        """So many rows were so large together."""
        self.heaviest = max(self.heaviest, size / rows)
        self.rows = max(1, min(4 * self.rows, 4096, int(PART // self.heaviest)))


def size_of(value: Any) -> int:
    """Bytes of text and arrays; 16 for anything else."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(size_of(each) for each in value.values())
    if isinstance(value, list | tuple):
        plain = not value or type(value[0]) in {int, float, bool, type(None)}
        return 16 * len(value) if plain else sum(size_of(each) for each in value)
    return 16


def of_calls(returned: Sequence[Any], ends: Sequence[int]) -> int:
    """How many of the ``returned`` rows settle types; ``ends`` says how many each call had left."""
    steps, done, size = Steps(), 0, 0
    while done < len(ends) and not (done and ends[done - 1] and (done >= CALLS or size >= ENOUGH)):
        before = ends[done - 1] if done else 0
        stop = min(done + steps.rows, CALLS if done < CALLS else len(ends), len(ends))
        new = sum(size_of(row) for row in returned[before : ends[stop - 1]])
        steps.made(stop - done, new)
        done, size = stop, size + new
    return ends[done - 1] if done else 0


def parts_of(children: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Where each part of the children of an atom ends, and its size."""
    steps, start, at, size = Steps(), 0, 0, 0
    while at < len(children):
        stop = min(at + steps.rows, start + CHILDREN)
        if stop > len(children):
            break
        new = sum(size_of(row) for row in children[at:stop])
        steps.made(stop - at, new)
        at, size = stop, size + new
        if size >= PART or at - start == CHILDREN:
            yield at, size
            start, size = at, 0
    if start < len(children):
        yield len(children), size


def of_children(parts: Sequence[tuple[int, int]]) -> int:
    """How many of the children settle types, of ``parts_of`` them."""
    size = 0
    for end, each in parts:
        size += each
        if end >= CHILDREN or size >= ENOUGH:
            return end
    return parts[-1][0] if parts else 0
