"""Arrow columns are measured as Python objects, and cut so that few objects exist at a time.

A short text in a list is 6 bytes in a column but 60 as an object: 8 MiB can become 100 MB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.base.open_tensors import OpenTensor, padded_shape
from dml.data.block import Block, column_bytes
from dml.data.layouts import is_text_or_bytes
from dml.data.list_marks import Padded, lengths_of
from dml.data.schema import code_of
from dml.kernels.vec import Vec

# Bytes of Python objects, each with its slot in the container: a text or bytes without its
# characters, a number or another scalar, a list, a dict, an array; measured with CPython 3.11.
TEXT_BYTES, SINGLE_BYTES, LIST_BYTES, DICT_BYTES, ARRAY_BYTES = 60, 40, 90, 240, 120
# Rows are passed to functions in pieces that take about this much as objects.
PIECE_BYTES = 4 << 20


def object_bytes(values: Any) -> int:
    """Estimate the bytes of the values of an Arrow array as Python objects."""
    if isinstance(values, pa.ExtensionArray):
        return object_bytes(values.storage)
    kind = values.type
    if is_list(kind):
        return LIST_BYTES * len(values) + object_bytes(values.flatten())
    if pa.types.is_struct(kind):
        return DICT_BYTES * len(values) + sum(map(object_bytes, values.flatten()))
    if is_text_or_bytes(kind):
        return TEXT_BYTES * len(values) + int(values.nbytes)
    return SINGLE_BYTES * len(values)


def many_objects(kind: pa.DataType) -> bool:
    """Return True for structs, and lists of non-numbers: each row is many objects."""
    if pa.types.is_struct(kind):
        return True
    return is_list(kind) and code_of(kind.value_type) == "arrow"


def shown_bytes(block: Block) -> int:
    """Return the bytes of nested columns of ``block`` in the form in which they are delivered.

    Padded arrays are as wide as their longest list; nested lists, and lists of non-numbers, are
    Python objects. Other columns are no larger than in the block.
    """
    total = 0
    for kind, values in zip(block.schema.values(), block.columns, strict=True):
        if isinstance(kind, Padded) or many_objects(kind):
            total += _shown_bytes(kind, values)
    return total


def delivered_bytes(block: Block) -> int:
    """Return the bytes of ``block`` with its nested columns as they are delivered, if larger."""
    total = block.nbytes
    for kind, values in zip(block.schema.values(), block.columns, strict=True):
        if isinstance(kind, Padded) or many_objects(kind):
            total += max(0, _shown_bytes(kind, values) - column_bytes(values))
    return total


def dict_bytes(block: Block) -> int:
    """Estimate the bytes of the rows of ``block`` as dicts of Python objects and arrays."""
    total = DICT_BYTES * block.n
    for values in block.columns:
        if not isinstance(values, Vec) and not isinstance(values.type, OpenTensor):
            total += object_bytes(values)
        elif isinstance(values, Vec) and values.values.ndim == 1:
            total += SINGLE_BYTES * block.n
        else:
            total += ARRAY_BYTES * block.n + column_bytes(values)
    return total


def _shown_bytes(kind: pa.DataType, lists: Any) -> int:
    if not isinstance(kind, Padded):
        return object_bytes(lists)
    if isinstance(lists.type, OpenTensor):
        shape = padded_shape(lists, kind.params["width"])
        return math.prod(shape) * int(lists.type.value_type.bit_width) // 8
    width = kind.params["width"]
    longest = int(lengths_of(lists).max(initial=0)) if width is None else width
    return len(lists) * longest * int(lists.type.value_type.bit_width) // 8


def rows_in_piece(block: Block) -> int:
    """Return how many rows to pass to a function at a time.

    These are all rows, unless nested columns would be over ``PIECE_BYTES`` of Python objects.
    """
    nested = [c for c in block.columns if isinstance(c, pa.Array) and pa.types.is_nested(c.type)]
    nbytes = sum(map(object_bytes, nested))
    return block.n if nbytes <= PIECE_BYTES else max(1, block.n * PIECE_BYTES // nbytes)


def in_pieces(block: Block) -> Iterator[Block]:
    """Yield ``block``, or its rows in parts if they are many Python objects."""
    step = rows_in_piece(block)
    if step >= block.n:
        yield block
        return
    for start in range(0, block.n, step):
        yield block.slice(start, min(start + step, block.n))
