"""This file cuts long texts and bytes to a bound that comes no later in the order, for samples.

What is cut keeps the order: a value comes before a cut one exactly if it does so once it is cut
itself. So cut keys say where to read, as whole ones do.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dml.expr.block import Block, to_arrow
from dml.expr.objects import is_text
from dml.expr.ordering import Ordering

# Letters, or bytes, that are kept.
LONGEST = 256
# The greatest letter and byte, and letters that are none.
LAST_LETTER, LAST_BYTE, SURROGATES = 0x10FFFF, 0xFF, range(0xD800, 0xE000)


def shortened(heads: Block, ordering: Ordering) -> tuple[Block, int]:
    """The keys ``heads`` with long values cut; how many columns decide up to the first such one.

    0 where nothing was cut. Columns behind that one are to be left out of comparisons.
    """
    columns, first = list(heads.columns), 0
    for number, (name, down) in enumerate(zip(ordering.names, ordering.descending, strict=True)):
        at, kind = heads.schema.names.index(name), heads.schema[name]
        if not is_text(kind):
            continue
        values = to_arrow(columns[at], kind).to_pylist()
        cut = [value if value is None else bounded(value, down=down) for value in values]
        if cut != values:
            columns[at] = pa.array(cut, kind)
            first = first or number + 1
    return Block(heads.schema, tuple(columns), heads.ids), first


def bounded(value: Any, *, down: bool) -> Any:
    """``value``, or something short that comes before it and behind all that does not begin so.

    Going ``down`` that is the least value above all that begin so; where there is none, itself.
    """
    if len(value) <= LONGEST:
        return value
    begin = value[:LONGEST]
    if not down:
        return begin
    above = _above_text(begin) if isinstance(begin, str) else _above_bytes(begin)
    return value if above is None else above


def _above_text(begin: str) -> str | None:
    begin = begin.rstrip(chr(LAST_LETTER))
    if not begin:
        return None
    letter = ord(begin[-1]) + 1
    return begin[:-1] + chr(SURROGATES.stop if letter in SURROGATES else letter)


def _above_bytes(begin: bytes) -> bytes | None:
    begin = begin.rstrip(bytes([LAST_BYTE]))
    return begin[:-1] + bytes([begin[-1] + 1]) if begin else None
