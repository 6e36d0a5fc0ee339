"""Cut the output of an operator at the rows that it loses, so that each loss has its place.

The rows before a lost row and those after it become separate blocks. This is done if a limit on
losses is set (``max_errors``), since the run must then always end at the same row.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from dml.data.block import Block
from dml.data.row_slicing import weighed
from dml.errors import DmlError
from dml.expr.flow import At
from dml.kernels.rows.ids import RowIds
from dml.udfs.calling.type_inference import Returned


def cuts(node: Any, at: At) -> bool:
    """Return whether the output of ``node`` is cut at the rows that it loses."""
    by_row = not node.by_atom and not node.inputs[0].batched
    return at.bounded and by_row and node.skips


def in_place(node: Any, block: Block, at: At) -> Iterator[Block]:
    """Return the output of ``node`` for ``block``; call ``at.lost`` for lost rows, in row order."""
    if not cuts(node, at):
        made: Iterator[Block] = node.run(block, at)
        return made
    cut = LossCutter(block, at)
    return cut.blocks(node.run(block, cut.at))


def returned_in_place(node: Any, block: Block, at: At) -> Iterator[Returned]:
    """Return the untyped results of the function of ``node``; call ``at.lost`` in row order."""
    if not cuts(node, at):
        made: Iterator[Returned] = node.returned(block, at)
        return made
    cut = LossCutter(block, at)
    return cut.returned(node.returned(block, cut.at))


class _Lost(NamedTuple):
    """An error at row ``row``, which cost ``rows`` rows, after ``made`` outputs (None: unknown)."""

    row: int
    made: int | None
    error: DmlError
    rows: int


class LossCutter:
    """Cuts an operator's output for ``block`` at lost rows; its calls must use ``self.at``."""

    def __init__(self, block: Block, at: At) -> None:
        self.block, self.tell = block, at.lost
        self.at = dataclasses.replace(at, lost=self._hold)
        self.held, self.given = list[_Lost](), 0

    @cached_property
    def _numbers(self) -> dict[tuple[int, int], int]:
        """Map each row id, as (high half, low half), to its row number in the block."""
        return {each: number for number, each in enumerate(_pairs(self.block.ids))}

    def _rows(self, ids: RowIds) -> list[int]:
        return [self._numbers[each] for each in _pairs(ids)]

    def _hold(self, error: DmlError, rows: int) -> None:
        known = error.__dict__
        (row,) = self._rows(known["row_id"])
        self.held.append(_Lost(row, known.pop("made", None), error, rows))

    def _report_first(self) -> None:
        """Remove the first collected loss, and report it to ``at.lost``."""
        _, _, error, rows = self.held.pop(0)
        self.tell(error, rows)

    def blocks(self, made: Iterator[Block]) -> Iterator[Block]:
        """Yield the blocks ``made``, cut; report the losses before an error, then raise it."""
        while (out := self._next(made)) is not None:
            yield from self._cut(out)
        while self.held:
            self._report_first()

    def _next(self, made: Iterator[Block]) -> Block | None:
        try:
            return next(made, None)
        except DmlError as error:
            ids = error.__dict__.get("row_id")
            row = self.block.n if ids is None else self._numbers.get(_pairs(ids)[0], self.block.n)
            while self.held and self.held[0].row < row:
                self._report_first()
            raise

    def _cut(self, out: Block) -> Iterator[Block]:
        self.held.sort(key=lambda lost: lost.row)  # non-boolean results are found late
        rows = self._rows(out.ids) if self.held and self.held[0].made is None else []
        start = 0
        while self.held:
            first = self.held[0]
            stop = bisect_left(rows, first.row) if first.made is None else first.made - self.given
            if stop >= out.n:
                break  # rows before the loss may still come
            if stop > start:
                yield out.slice(start, stop)
            start = stop
            self._report_first()
        self.given += out.n
        yield out.slice(start, out.n) if start else out

    def returned(self, made: Iterator[Returned]) -> Iterator[Returned]:
        """Yield the results ``made``, whose types are not settled, cut at lost rows."""
        begun = 0  # rows of the block whose results were delivered
        for out in made:
            rest, begin = out, begun
            while self.held:
                first, rows = self.held[0], self._rows(rest.parents)
                part, rest = _split(rest, bisect_right(rows, first.row), first.row + 1 - begin)
                begin += len(part.ends)
                yield part
                self._report_first()
            if rest.out or rest.ends or rest.error is not None:
                yield rest
            begun += len(out.ends)


def _split(made: Returned, count: int, rows: int) -> tuple[Returned, Returned]:
    """Split ``made`` after ``count`` results, which are those of the first ``rows`` rows."""
    all_, out = len(made.out), made.out[:count]
    ids, parents = made.ids.slice(0, count), made.parents.slice(0, count)
    nbytes = weighed(out)
    first = Returned(out, made.ends[:rows], ids, parents, nbytes)
    ends = [end - count for end in made.ends[rows:]]
    ids, parents = made.ids.slice(count, all_), made.parents.slice(count, all_)
    rest = made.nbytes - nbytes
    return first, Returned(made.out[count:], ends, ids, parents, rest, made.error)


def _pairs(ids: RowIds) -> list[tuple[int, int]]:
    high, low = ids.arrays()
    return list(zip(high.tolist(), low.tolist(), strict=True))
