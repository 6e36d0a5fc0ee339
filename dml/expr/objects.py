"""This file tells what Arrow columns take as Python's values, and gives them a few rows at a time.

A short text in a list is 6 bytes in a column and 60 as an object, so a block of 8 MiB can become
100 MB of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dml.expr.block import Block
from dml.expr.marks import Padded, lengths_of
from dml.expr.schema import code_of

# Bytes of Python's objects, each with its place in what holds it: a text or bytes beside its
# letters, a number or another single value, a list, a dict; measured with CPython 3.11.
TEXT_BYTES, SINGLE_BYTES, LIST_BYTES, DICT_BYTES = 60, 40, 90, 240
# Rows are given to functions so many at a time that they take about this as objects.
PIECE_BYTES = 4 << 20


def object_bytes(values: Any) -> int:
    """About what ``values`` (an array) take as Python's values."""
    if isinstance(values, pa.ExtensionArray):
        return object_bytes(values.storage)
    kind = values.type
    if _is_list(kind):
        return LIST_BYTES * len(values) + object_bytes(values.flatten())
    if pa.types.is_struct(kind):
        return DICT_BYTES * len(values) + sum(map(object_bytes, values.flatten()))
    if is_text(kind):
        return TEXT_BYTES * len(values) + int(values.nbytes)
    return SINGLE_BYTES * len(values)


def many_objects(kind: pa.DataType) -> bool:
    """True for lists of anything but numbers, and structs: a row of them is many objects."""
    if pa.types.is_struct(kind):
        return True
    return _is_list(kind) and code_of(kind.value_type) == "arrow"


def shown_bytes(block: Block) -> int:
    """Bytes of the arrays, or Python's lists, that nested columns of ``block`` are shown as.

    Rectangles are as wide as their longest list; lists in lists, and of anything but numbers, are
    Python's values. Other columns are no larger than they lie in memory.
    """
    pairs = block.schema.items()
    nested = [name for name, kind in pairs if isinstance(kind, Padded) or many_objects(kind)]
    return sum(_shown_bytes(block.schema[name], block[name]) for name in nested)


def _shown_bytes(kind: pa.DataType, lists: Any) -> int:
    if not isinstance(kind, Padded):
        return object_bytes(lists)
    width = kind.params["width"]
    longest = int(lengths_of(lists).max(initial=0)) if width is None else width
    return len(lists) * longest * int(lists.type.value_type.bit_width) // 8


def rows_in_piece(block: Block) -> int:
    """How many rows are given to a function at a time: all, unless they are many objects."""
    nested = [c for c in block.columns if isinstance(c, pa.Array) and pa.types.is_nested(c.type)]
    nbytes = sum(map(object_bytes, nested))
    return block.n if nbytes <= PIECE_BYTES else max(1, block.n * PIECE_BYTES // nbytes)


def in_pieces(block: Block) -> Iterator[Block]:
    """``block``, or its rows in parts, where a row of it is many of Python's objects."""
    step = rows_in_piece(block)
    if step >= block.n:
        yield block
        return
    for start in range(0, block.n, step):
        yield block.slice(start, min(start + step, block.n))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """True for texts and bytes of any length."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )
