"""Row ids are written as extra columns of a record batch, and read back.

A form is RUN, PICKED or FREE, and is equal to its number of id columns (0, 1 or 2). Ids that can be
written in one form can also be written in every later form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa

from dml.kernels.rows.ids import RowIds

# Consecutive ids; a selection of consecutive ids; any ids.
RUN, PICKED, FREE = range(3)
MOST_PICKED = 1 << 32  # bound of the row numbers in an atom in the form PICKED
WORDS = ("run", "picked", "free")  # names of the forms in stored data
NAMES = {RUN: (), PICKED: ("pick",), FREE: ("hi", "lo")}


def form_of(ids: RowIds) -> int:
    """Return the form with the fewest columns that ``ids`` need, without examining their values."""
    if not isinstance(ids.hi, int) or not isinstance(ids.lo, int):
        return FREE
    return RUN if ids.sel is None else PICKED


def picked(ids: RowIds) -> np.ndarray:
    """Return the offset of each of the compact ``ids`` from ``ids.lo``: (n,) int64."""
    steps = np.arange(len(ids)) if ids.sel is None else ids.sel
    return steps.astype(np.int64, copy=False)


def beside(rows: pa.RecordBatch, form: int, columns: Sequence[np.ndarray]) -> pa.RecordBatch:
    """Append the id columns of ``form`` to ``rows``."""
    for name, column in zip(NAMES[form], columns, strict=True):
        rows = rows.append_column(name, pa.array(column))
    return rows


def apart(batch: pa.RecordBatch, form: int) -> tuple[pa.RecordBatch, list[np.ndarray]]:
    """Split a batch made by ``beside`` into rows and id columns, without a copy."""
    own = batch.num_columns - form
    plain = pa.RecordBatch.from_arrays(
        batch.columns[:own], schema=pa.schema(list(batch.schema)[:own])
    )
    return plain, [column.to_numpy() for column in batch.columns[own:]]


def ids_of(form: int, columns: Sequence[np.ndarray], count: int, first: Sequence[int]) -> RowIds:
    """Rebuild the ids of ``count`` rows from their id columns.

    ``first`` has the high and the low half of the first id; it is not used in the form FREE.
    """
    if form == FREE:
        return RowIds.of_arrays(columns[0], columns[1])
    high, low = first
    return RowIds(count, high, low, columns[0].astype(np.intp, copy=False) if form else None)


def written(ids: RowIds, form: int) -> tuple[list[np.ndarray], int, int] | None:
    """Return id columns, and high and low half of the first id; None if ``form`` cannot hold them.

    The halves are 0 in the form FREE.
    """
    if form == FREE:
        return list(ids.arrays()), 0, 0
    high, low, steps = _stepped(ids)
    if steps is None or (steps.min(initial=0) < 0 or steps.max(initial=0) >= MOST_PICKED):
        return None
    if form == RUN:
        return ([], high, low) if (steps == np.arange(len(ids))).all() else None
    return [steps.astype(np.uint32)], high, low


def _stepped(ids: RowIds) -> tuple[int, int, np.ndarray | None]:
    """Return the first id's halves and each id's offset; offsets are None if high halves differ."""
    if form_of(ids) != FREE:
        return cast("int", ids.hi), cast("int", ids.lo), picked(ids)
    high, low = ids.arrays()
    if not len(ids):
        return 0, 0, np.arange(0)
    alike = bool((high == high[0]).all())
    return int(high[0]), int(low[0]), (low - low[0]).astype(np.int64) if alike else None
