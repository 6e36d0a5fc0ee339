"""Coalesce small neighbouring units: read and process them as one block, without visible effect.

Units that are adjacent in memory are read as one block, every step runs once on it, and the block's
piece lists where each unit's rows begin. So the fixed costs of a step are paid once. If a unit that
is read alone could give a different result, each unit is read alone.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from dml.base.thread_seconds import thread_seconds
from dml.data.block import Block, neighbours
from dml.data.row_slicing import row_bytes
from dml.errors import DmlError
from dml.events import Tally
from dml.exec.tasks.partition import Firsts, PartitionSizes, Piece, ReadTask
from dml.expr.facts import Rows
from dml.expr.flow import Position
from dml.expr.node import Node
from dml.io.source import Unit
from dml.kernels.vec import Vec
from dml.udfs.calling.batch_arrays import finished

if TYPE_CHECKING:
    from dml.exec.tasks.slices import Outcome, PartitionFeed
    from dml.exec.tasks.unit_reader import Reading

# Bytes that a row of a block takes at least.
LEAST_ROW_BYTES = 8


def spans(
    reading: Reading, task: ReadTask, sizes: PartitionSizes, mine: Callable[[], Tally]
) -> Iterator[tuple[int, Piece | None]]:
    """Yield the places of a task's units, each with None, or with the output of units from there.

    The caller must read a unit with None by itself.
    """
    each = reading.units_each if _permitted(reading, task, sizes.target_bytes) else 1
    for start in range(task.start, task.stop, each):
        places = range(start, min(start + each, task.stop))
        made = None if each == 1 else _spanned(reading, places, sizes.most_bytes, mine)
        if made is not None:
            yield start, Piece(start, 0, made[0], ends=True, firsts=made[1])
            continue
        for place in places:
            yield place, None


def _permitted(reading: Reading, task: ReadTask, target_bytes: int) -> bool:
    """Return whether all output of ``task`` fits one partition, whether or not units are joined."""
    if reading.units_each == 1 or task.skip_atoms or task.stop - task.start < 2:
        return False
    each = max(LEAST_ROW_BYTES, row_bytes(reading.stage.steps[-1].schema) or 0)
    first, last = reading.unit_at(task.start), reading.unit_at(task.stop - 1)
    rows = (last.index - first.index) * first.atom_rows
    return rows * each < target_bytes


def _spanned(
    reading: Reading, places: range, most_bytes: int, mine: Callable[[], Tally]
) -> tuple[Block, Firsts] | None:
    reading.begun(places.start)
    units = [reading.unit_at(place) for place in places]
    starts = np.cumsum([unit.rows for unit in units])[:-1]
    source, predicate = reading.stage.source, reading.stage.predicate
    if predicate and not all(source.may_match(unit, predicate) for unit in units):
        return None
    tally = Tally()
    try:
        made = _read_run(reading, units, most_bytes, tally)
    except (DmlError, MemoryError):
        return None  # the unit raises the error again at its place
    if made is None:
        return None
    mine().add(tally)
    block, first_row = made
    return block, _firsts(block, starts, first_row)


def _read_run(
    reading: Reading, units: Sequence[Unit], most_bytes: int, tally: Tally
) -> tuple[Block, int] | None:
    started, cpu = perf_counter(), thread_seconds()
    block = reading.stage.source.read_run(units[0], units[-1], reading.stage.columns)
    if block.nbytes > most_bytes:
        return None
    seconds, cpu_s = perf_counter() - started, thread_seconds() - cpu
    tally.block(0, 0, block.n, 0, block.value_bytes, seconds, cpu_s)
    first_row = block.ids.lo
    out = reading.steps.whole(block, tally)
    if out is None or out.nbytes > most_bytes or not isinstance(first_row, int):
        return None
    if not all(isinstance(values, Vec) for values in out.columns):
        return None
    return (finished(out) if reading.finishing else out), first_row


def _firsts(block: Block, starts: np.ndarray, first_row: int) -> Firsts:
    """Return the row numbers in ``block`` at which later units begin.

    ``starts`` are the row numbers before the steps ran; ``first_row`` is the id of the first row at
    that time.
    """
    sel, low = block.ids.sel, block.ids.lo
    if isinstance(low, int) and sel is None:
        return tuple(starts.tolist())
    if isinstance(low, int) and sel is not None:
        return tuple(np.searchsorted(sel, starts + (first_row - low)).tolist())
    rows = block.ids.low() - np.uint64(first_row)
    return tuple(np.searchsorted(rows, starts.astype(np.uint64)).tolist())


def joined(feed: PartitionFeed, steps: Iterable[Node], *, spanning: bool) -> PartitionFeed:
    """Return ``feed``; with ``spanning``, blocks that are adjacent in a cache's store are joined.

    Larger blocks help to cut batches. The task does not join them, since partitions that a task
    recomputes are compared with the earlier ones.
    """
    stored = any(step.rows is Rows.STORED for step in steps)
    return _Joined(feed) if spanning and stored else feed


class _Joined:
    def __init__(self, feed: PartitionFeed) -> None:
        self._feed, self.settled, self.close = feed, feed.settled, feed.close

    def next(self) -> Outcome | None:
        """Return the next partition; None if exhausted."""
        outcome = self._feed.next()
        if outcome is None or len(outcome.value) < 2:
            return outcome
        return dataclasses.replace(outcome, value=_side_by_side(outcome.value))


def _side_by_side(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces; those of one atom whose blocks are neighbours in memory are joined."""
    out = [pieces[0]]
    for piece in pieces[1:]:
        last, whole = out[-1], None
        if last.block is not None and piece.block is not None and _plain(last, piece):
            whole = neighbours(last.block, piece.block)
        if whole is None:
            out.append(piece)
        else:
            out[-1] = dataclasses.replace(piece, block=whole)
    return out


def _plain(last: Piece, piece: Piece) -> bool:
    """Return whether two pieces are of one atom with no end, loss or unit boundary between them."""
    same = last.where == piece.where
    told = last.losses or piece.losses
    return same and not (last.ends or told or last.firsts or piece.firsts)


def placed(place: int, atom: int, drop: int, firsts: Firsts) -> Position:
    """Return the position ``drop`` rows after the start of ``atom`` of the unit at ``place``.

    Later units of the same block begin at rows ``firsts``. A position in one of them counts rows
    from the start of that unit; the end of a unit is the start of the next.
    """
    passed = bisect_left(firsts, drop)
    if passed < len(firsts) and firsts[passed] == drop:
        return {"unit": place + passed + 1, "atom": 0, "drop": 0}
    if passed:
        return {"unit": place + passed, "atom": 0, "drop": drop - firsts[passed - 1]}
    return {"unit": place, "atom": atom, "drop": drop}


def further(place: int, atom: int, drop: int, firsts: Firsts, rows: int) -> Position:
    """Return the position ``rows`` rows after that of ``placed``; other processes can call this."""
    return placed(place, atom, drop + rows, firsts)
