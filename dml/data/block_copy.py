"""Blocks are copied into read-only memory of their own here, for storing them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.block import Block, Values
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec


def own(block: Block) -> Block:
    """Return a read-only copy that shares no memory with ``block``.

    A block may be a small view of a large buffer, and users get writable arrays without a copy.
    """
    columns = tuple(_own(column, block.n) for column in block.columns)
    parts: Any = (block.ids.hi, block.ids.lo, block.ids.sel)
    hi, lo, sel = (_frozen(part) if isinstance(part, np.ndarray) else part for part in parts)
    return Block(block.schema, columns, RowIds(block.n, hi, lo, sel))


def _own(values: Values, rows: int) -> Values:
    if not isinstance(values, Vec):
        return values.take(pa.array(np.arange(rows)))
    valid = None if values.valid is None else _frozen(values.valid)
    return Vec(_frozen(values.values), valid)


def _frozen(array: np.ndarray) -> np.ndarray:
    made = np.array(array, order="C")
    made.flags.writeable = False
    return made
