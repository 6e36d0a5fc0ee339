"""This file says for the oracle by which returned rows types settle, as the pages of semantics do.

They are the results of the first 64 rows that a function is given, or the first results that are
4 MiB together, and those of as many rows more as it takes until there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Rows that a function is given, and bytes of what it returns, that are enough.
ROWS, BYTES = 64, 4 << 20


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


def enough(returned: Sequence[Any], ends: Sequence[int]) -> bool:
    """True if types settle by these; ``ends`` says how many results there were after each row."""
    many = len(ends) >= ROWS or sum(map(size_of, returned)) >= BYTES
    return bool(returned) and many


def first(returned: Sequence[Any]) -> int:
    """How many of the results settle types."""
    total = 0
    for number, row in enumerate(returned, 1):
        total += size_of(row)
        if total >= BYTES:
            return number
    return len(returned)
