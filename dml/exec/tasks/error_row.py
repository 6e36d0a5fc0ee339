"""Add to an error its place: the file, row group and row of the source that caused it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from dml.data.block import Block
from dml.errors import (
    DmlError,
    InternalError,
    MemoryContractError,
    UDFError,
    WorkerLostError,
    worded,
)
from dml.io.source import Source, Unit, read_of
from dml.kernels.rows.ids import RowIds
from dml.physical.plan import Plan

# More rows than any source of unknown length has.
MOST_ROWS = 1 << 44


def placed(error: DmlError, unit: Unit, block: Block | None) -> DmlError:
    """Return ``error`` with file, row group and row at fault, if known; ``block`` was read last."""
    row = _row_of(error, block)
    error.__dict__.pop("row_id", None)
    return _spotted(error, unit, row)


def placed_later(error: DmlError, unit: Unit, source: Source) -> DmlError:
    """Return ``error`` with its place, for a stage that did not read the rows of ``unit``."""
    ids: RowIds | None = error.__dict__.pop("row_id", None)
    found = None if ids is None else source.unit_of(ids)
    if ids is None or found is None:
        return _spotted(error, unit, None)
    return _spotted(error, found, int(ids.low()[0]))


def traced(error: DmlError, plan: Plan, above: int | None = None) -> DmlError:
    """Return ``error`` with the place in the source of the row whose id it carries, if any.

    The error arose in stream operator ``above``, or, if that is None, above all stream operators.
    """
    ids: RowIds | None = error.__dict__.pop("row_id", None)
    found = (
        None if ids is None else _origin(plan, len(plan.stream) if above is None else above, ids)
    )
    return error if found is None else _spotted(error, *found)


def _origin(plan: Plan, above: int, ids: RowIds) -> tuple[Unit, int] | None:
    """Return the unit and row from which one of ``ids`` comes, or None.

    ``ids`` are ids of the input of stream operator ``above``. An operator that makes new ids can
    report, for its own ids, the ids of each of its inputs.
    """
    source = plan.stage.source
    # ids that operators make are like random numbers: hardly any of them equals a row number
    rows = read_of(source).row_count
    most = MOST_ROWS if rows is None else rows
    for i in np.flatnonzero(ids.low() < most)[:16]:
        unit = source.unit_of(ids.slice(int(i), int(i) + 1))
        if unit is not None:
            return unit, int(ids.low()[i])
    makers = (n for n in range(above - 1, -1, -1) if hasattr(plan.stream[n], "origins"))
    number = next(makers, None)
    if number is None:
        return None
    maker: Any = plan.stream[number]
    found = _origin(plan, number, maker.origins(ids, 0))
    for turn, other in enumerate(plan.beside[number] if plan.beside else (), 1):
        found = found or _origin(other, len(other.stream), maker.origins(ids, turn))
    return found


def _spotted(error: DmlError, unit: Unit, row: int | None) -> DmlError:
    spot = unit.place if row is None else f"{unit.place}, row {row}"
    if spot and spot not in error.at:
        error.at = f"{error.at}; {spot}" if error.at else spot
    if isinstance(error, UDFError):
        error.file, error.row_group, error.row = unit.file, unit.row_group, row
    return error


def _row_of(error: DmlError, block: Block | None) -> int | None:
    """Return the number of the failing row in its source; None if unknown, or not of the source."""
    ids = getattr(error, "row_id", None)
    if ids is None or block is None or not block.n:
        return None
    high, low = ids.arrays()
    first, rest = block.ids.slice(0, 1).arrays()
    return int(low[0]) if high[0] == first[0] and low[0] >= rest[0] else None


def as_error(error: Exception, place: str) -> DmlError:
    """Return ``error`` as a DmlError; an unexpected exception becomes an InternalError."""
    if isinstance(error, DmlError):
        return error
    if isinstance(error, MemoryError):
        found: DmlError = exhausted(place)
    else:
        found = InternalError(worded(error), try_="report this with the full traceback")
    found.__cause__ = error
    return found


def started(thread: threading.Thread) -> None:
    """Start a thread of the run; raise WorkerLostError if the system allows no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        raise WorkerLostError(
            "a thread could not be started",
            why=str(error),
            try_="fewer num_workers=; see the limits on processes and threads (ulimit -u)",
        ) from error


def exhausted(at: str) -> MemoryContractError:
    """Return the error for a process that gets no more memory from the system, at place ``at``."""
    return MemoryContractError(
        "the process ran out of memory",
        at=at,
        why="the system gave it no more: a limit of its own, or of its control group",
        try_="a smaller memory_limit=, or fewer num_workers=",
    )
