"""This file writes the ids of rows as columns beside them, and reads them back.

A form is how many columns that takes. What one form can tell, those after it can tell, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa

from dml.kernels.ids import RowIds

# Ids that go up from the first one by one; some of such; any.
RUN, PICKED, FREE = range(3)
MOST_PICKED = 1 << 32  # rows of an atom are numbered below it where they are picked
WORDS = ("run", "picked", "free")  # by which forms are told to those who read them later
NAMES = {RUN: (), PICKED: ("pick",), FREE: ("hi", "lo")}


def form_of(ids: RowIds) -> int:
    """How these ids can be written as they are."""
    if not isinstance(ids.hi, int) or not isinstance(ids.lo, int):
        return FREE
    return RUN if ids.sel is None else PICKED


def picked(ids: RowIds) -> np.ndarray:
    """How far each id (n,) is beyond the one that a compact form begins with, int64."""
    steps = np.arange(len(ids)) if ids.sel is None else ids.sel
    return steps.astype(np.int64, copy=False)


def beside(rows: pa.RecordBatch, form: int, columns: Sequence[np.ndarray]) -> pa.RecordBatch:
    """``rows`` with the columns of their ids behind those of their own."""
    for name, column in zip(NAMES[form], columns, strict=True):
        rows = rows.append_column(name, pa.array(column))
    return rows


def apart(batch: pa.RecordBatch, form: int) -> tuple[pa.RecordBatch, list[np.ndarray]]:
    """The rows that were put ``beside`` their ids, and the columns of these; nothing is copied."""
    own = batch.num_columns - form
    plain = pa.RecordBatch.from_arrays(
        batch.columns[:own], schema=pa.schema(list(batch.schema)[:own])
    )
    return plain, [column.to_numpy() for column in batch.columns[own:]]


def ids_of(form: int, columns: Sequence[np.ndarray], count: int, first: Sequence[int]) -> RowIds:
    """The ids of ``count`` rows; compact ones begin with ``first``, its high and low half."""
    if form == FREE:
        return RowIds.of_arrays(columns[0], columns[1])
    high, low = first
    return RowIds(count, high, low, columns[0].astype(np.intp, copy=False) if form else None)


def written(ids: RowIds, form: int) -> tuple[list[np.ndarray], int, int] | None:
    """Columns of ids and the first of them; None if they cannot be written in that form."""
    if form == FREE:
        return list(ids.arrays()), 0, 0
    high, low, steps = _stepped(ids)
    if steps is None or (steps.min(initial=0) < 0 or steps.max(initial=0) >= MOST_PICKED):
        return None
    if form == RUN:
        return ([], high, low) if (steps == np.arange(len(ids))).all() else None
    return [steps.astype(np.uint32)], high, low


def _stepped(ids: RowIds) -> tuple[int, int, np.ndarray | None]:
    """An id, and how far beyond it those of the rows are; None if they are not of one source."""
    if form_of(ids) != FREE:
        return cast("int", ids.hi), cast("int", ids.lo), picked(ids)
    high, low = ids.arrays()
    if not len(ids):
        return 0, 0, np.arange(0)
    alike = bool((high == high[0]).all())
    return int(high[0]), int(low[0]), (low - low[0]).astype(np.int64) if alike else None
