"""A join larger than memory partitions both sides on disk and joins them part by part.

Rows go into parts by a hash of their key, so that a part of one side meets only that part of the
other. The result of a part is a run in the order of the left side, and all runs are merged. A part
of the right side that does not fit either (most rows have one key) is joined in several pieces,
each of which makes a run of its own. Source: Grace hash join (Kitsuregawa, Tanaka, Moto-oka, 1983).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from dml.data.block import Block, concat
from dml.data.schema import Schema
from dml.errors import DmlError
from dml.expr.flow import CHUNK, pass_over
from dml.kernels.rows.ids import mix64
from dml.kernels.rows.key_matching import INDEX_BYTES, hashed
from dml.kernels.vec import Vec
from dml.ops.join.join_node import JoinNode
from dml.ops.join.matches import JoinSide, Matches, Unmet, keys_in, not_allowed
from dml.ops.merge.merge import PORTION_BYTES
from dml.ops.sort.external_sort import LEAST_RUNS, MERGE_HELD, block_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dml.expr.flow import At, Flow, Position, Spill

Mask: TypeAlias = "NDArray[np.bool_]"
# Memory per byte of rows while they are indexed or divided: the rows as they came, the joined
# copy, and the result.
HELD = 3
# Beside its columns a row has an id and its number, in memory also its place in the index.
NUMBERED_BYTES = 24
ROW_BYTES = NUMBERED_BYTES + INDEX_BYTES
# Most bytes of rows with texts or lists that are joined to one array, whose offsets have 31 bits.
MOST_JOINED = 3 << 29
# Parts are a power of two, so many that a right side of some ten budgets needs no second pass.
PART_BITS = 5
# Beside the columns of a side stands the number of the row; beside those of the result the numbers
# of the two rows. No row has the last number: it stands for a missing one, and sorts behind all.
ROW, LEFT_ROW, RIGHT_ROW = "\0row", "\0left", "\0right"
NONE = 2**64 - 1


def fitting(row_bytes: int) -> int:
    """Return how many rows of ``row_bytes`` bytes to make at once: about 4 MiB of them."""
    return max(1, min(CHUNK, PORTION_BYTES // max(1, row_bytes)))


def room(schema: Schema, budget: int) -> int:
    """Return how many bytes of rows of ``schema`` may be in memory, within ``budget`` bytes."""
    offsets = any(code == "arrow" for code, _ in schema.forms)
    return min(budget // HELD, MOST_JOINED) if offsets else budget // HELD


def numbered(block: Block, numbers: dict[str, np.ndarray]) -> Block:
    """Return ``block`` with the columns ``numbers``, row numbers by column name, at the end."""
    kinds = [*block.schema.items(), *((name, pa.uint64()) for name in numbers)]
    columns = (*block.columns, *(Vec(values, None) for values in numbers.values()))
    return Block(Schema(kinds), columns, block.ids)


def numbers_of(block: Block, name: str) -> np.ndarray:
    """Return the row numbers in column ``name`` of ``block``: (n,) uint64."""
    return np.asarray(block[name][0])


class Parts:
    """The rows of one side of a join, numbered, in order, and divided by key into parts on disk."""

    def __init__(self, node: JoinNode, names: tuple[str, ...], at: At) -> None:
        self.node, self.names, self.at = node, names, at
        self.spills: dict[int, Spill] = {}
        self.held: list[Block] = []
        self.rows = self.held_bytes = 0

    def add(self, block: Block) -> None:
        """Number and buffer the rows of ``block``; write the buffer to disk above the budget."""
        rows = np.arange(self.rows, self.rows + block.n, dtype="u8")
        self.rows += block.n
        self.held.append(numbered(block.bare(), {ROW: rows}))
        self.held_bytes += block.nbytes + NUMBERED_BYTES * block.n
        if self.held_bytes > room(block.schema, self.at.budget):
            self.leave()

    def leave(self) -> None:
        """Write the buffered rows to disk, as one run for each part."""
        if not self.held:
            return
        whole = concat(self.held)
        self.held, self.held_bytes = [], 0
        parts = self._parts_of(whole)
        order = np.argsort(parts, kind="stable")
        counts = np.bincount(parts, minlength=1 << PART_BITS)
        stops = np.cumsum(counts)
        for part in np.flatnonzero(counts).tolist():
            if part not in self.spills:
                self.spills[part] = self.at.spill(whole.schema)
            rows = order[stops[part] - counts[part] : stops[part]]
            self.spills[part].write(_pieces(whole, rows, self.at.budget))

    def _parts_of(self, block: Block) -> np.ndarray:
        # mixed once more, since the index orders rows by the same hash
        codes = mix64(hashed(keys_in(self.node, block, self.names), 0))
        return (codes >> np.uint64(64 - PART_BITS)).view("i8")

    def blocks(self, part: int) -> Iterator[Block]:
        """Yield the rows of one part; may be called repeatedly."""
        if part in self.spills:
            for run in self.spills[part].runs(keep=True):
                yield from run

    def drop(self, part: int) -> None:
        """Delete the rows of one part."""
        if part in self.spills:
            self.spills.pop(part).close()

    def close(self) -> None:
        """Delete all rows."""
        self.held = []
        for part in list(self.spills):
            self.drop(part)


def _pieces(block: Block, rows: np.ndarray, budget: int) -> Iterator[Block]:
    """Yield the rows of ``block`` at indices ``rows``, in blocks small enough for a merge."""
    row_bytes = block.nbytes // max(1, block.n) + NUMBERED_BYTES
    each = max(1, min(CHUNK, block_bytes(budget) // row_bytes))
    for start in range(0, len(rows), each):
        yield block.take(rows[start : start + each])


class Partitioned:
    """A flow of joined rows, for a right side that exceeds the memory budget.

    ``sides`` are the left and the right flow; ``held`` are the right rows that were read before.
    """

    def __init__(
        self, node: JoinNode, sides: tuple[Flow, Flow], held: list[Block], at: At, start: Position
    ) -> None:
        self.node, self.at, self.start = node, at, start
        self.left, self.right = sides
        self.lefts = Parts(node, node.left_on, at)
        self.rights = Parts(node, node.right_on, at)
        self.made: Spill | None = None
        # the number of the first left row that an error replaces, and the error
        self.bad: tuple[int, DmlError] | None = None
        self.out = self._joined(held)
        self.rest: Block | None = None
        self.given = 0

    def skip(self, rows: int) -> None:
        """Skip ``rows`` result rows that were returned before the saved position."""
        pass_over(self, rows)

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows; None at the end."""
        while self.rest is None or not self.rest.n:
            self.rest = next(self.out, None)
            if self.rest is None:
                if self.bad is not None:
                    raise self.bad[1]
                return None
        block = self.rest.slice(0, min(most, self.rest.n))
        self.rest = self.rest.slice(block.n, self.rest.n)
        self.given += block.n
        return block

    def position(self) -> Position:
        """Return the left position at the start, and the number of rows returned since."""
        return {"in": self.start["in"], "drop": self.given}

    def close(self) -> None:
        """Delete all rows, in memory and on disk."""
        self.out, self.rest = iter(()), None
        self.lefts.close()
        self.rights.close()
        if self.made is not None:
            self.made.close()

    def _joined(self, held: list[Block]) -> Iterator[Block]:
        if not self._divide(held):
            return
        for part in range(1 << PART_BITS):
            self._join_part(part)
        if self.made is not None:
            runs = merged(self.made, self.at.budget)
            names = self.node.schema.names
            for block in self._finished(runs):
                yield block.select(names)

    def _divide(self, held: list[Block]) -> bool:
        """Write both sides to disk; return False if the right side fails: its error comes first."""
        try:
            while (block := held.pop(0) if held else self.right.pull(CHUNK)) is not None:
                self._add_right(block)
        except DmlError as error:
            self.bad = 0, error
            return False
        self.right.close()
        self.rights.leave()
        try:
            while (block := self.left.pull(CHUNK)) is not None:
                self.lefts.add(block)
        except DmlError as error:
            self.bad = self.lefts.rows, error
        self.left.close()
        self.lefts.leave()
        return True

    def _add_right(self, block: Block) -> None:
        """Add right rows, except unmatchable null keys if the join drops unmatched right rows."""
        if not self.node.coalesced:
            present = keys_in(self.node, block, self.node.right_on).present
            block = block if present is None else block.take(np.flatnonzero(present))
        self.rights.add(block)

    def _join_part(self, part: int) -> None:
        if part not in self.lefts.spills and not self.node.coalesced:
            return
        for piece in self._right_pieces(part):
            blocks = self._met(part, *piece)
            first = next(blocks, None)
            if first is None:
                continue
            if self.made is None:
                self.made = self.at.spill(first.schema)
            self.made.write(_recut(chain([first], blocks), self.at.budget))
        self.lefts.drop(part)
        self.rights.drop(part)

    def _right_pieces(self, part: int) -> Iterator[tuple[list[Block], bool]]:
        """Yield the right rows of a part, as many as fit, with a flag: True for the last piece."""
        held: list[Block] = []
        held_bytes = 0
        for block in self.rights.blocks(part):
            if held and held_bytes + block.nbytes > room(block.schema, self.at.budget):
                yield held, False
                held, held_bytes = [], 0
            held.append(block)
            held_bytes += block.nbytes + ROW_BYTES * block.n
        yield held, True

    def _met(self, part: int, right: list[Block], last: bool) -> Iterator[Block]:  # noqa: FBT001
        """Yield the join of a part's left rows with ``right``, one piece of its right rows.

        ``last`` is True for the last piece. Two columns with the row numbers of both sides are
        added.
        """
        node = self.node
        rows = np.concatenate([numbers_of(b, ROW) for b in right]) if right else np.zeros(0, "u8")
        side = JoinSide(node, right)
        how = node.how if last else {"semi": "semi", "anti": "semi"}.get(node.how, "inner")
        for block in self.lefts.blocks(part):
            numbers = numbers_of(block, ROW)
            left = block.select(node.input.schema.names)
            if self.bad is not None:
                left = left.slice(0, int(np.searchsorted(numbers, np.uint64(self.bad[0]))))
            yield from self._matched(Matches(node, left, side, how), numbers, rows)
        if node.coalesced:
            unmet = Unmet(node, side)
            each = fitting(side.row_bytes)
            for start in range(0, unmet.n, each):
                made = unmet.rows(start, start + each)
                found = rows[unmet.places[start : start + each]]
                yield numbered(made, {LEFT_ROW: np.full(made.n, NONE, "u8"), RIGHT_ROW: found})

    def _matched(self, found: Matches, lefts: np.ndarray, rights: np.ndarray) -> Iterator[Block]:
        if found.error is not None:
            self.bad = int(lefts[found.left.n]), found.error
        each = fitting(found.side.row_bytes + found.left.nbytes // max(1, found.left.n))
        rights = np.append(rights, np.uint64(NONE))  # the partner -1
        for start in range(0, found.n, each):
            picked, partners = found.pairs(start, min(start + each, found.n))
            numbers = {LEFT_ROW: lefts[picked], RIGHT_ROW: rights[partners]}
            yield numbered(found.take_pairs(picked, partners), numbers)

    def _finished(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Yield the merged rows, without rows that are wrong since another right piece matched."""
        single = self.node.validate in ("1:1", "m:1")
        last = NONE
        for block in _undivided(blocks) if single else blocks:
            lefts, rights = numbers_of(block, LEFT_ROW), numbers_of(block, RIGHT_ROW)
            again = lefts == np.append(np.uint64(last), lefts[:-1])
            again &= lefts != np.uint64(NONE)
            last = int(lefts[-1])
            if single and (twice := again & (rights != np.uint64(NONE))).any():
                row = int(np.argmax(twice))
                self._spoil(int(lefts[row]), not_allowed(self.node, block, row))
            keep = self._rows_to_keep(again, rights == np.uint64(NONE))
            if self.bad is not None:
                keep &= lefts < np.uint64(self.bad[0])
            yield block.take(np.flatnonzero(keep))
            if self.bad is not None and last >= self.bad[0]:
                return

    def _spoil(self, row: int, error: DmlError) -> None:
        if self.bad is None or row < self.bad[0]:
            self.bad = row, error

    def _rows_to_keep(self, again: Mask, missing: Mask) -> Mask:
        """Return a mask of the merged rows that stay in the result.

        ``again`` is True where the row before has the same left row, ``missing`` where a row has no
        right row.
        """
        kept = {"semi": ~again, "anti": missing & ~again}
        return kept.get(self.node.how, ~(missing & again))


def _undivided(blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield the rows of ``blocks``, recut so that all rows of one left row are in one block."""
    held: Block | None = None
    for block in blocks:
        whole = block if held is None else concat([held, block])
        lefts = numbers_of(whole, LEFT_ROW)
        cut = whole.n
        if lefts[-1] != np.uint64(NONE):
            cut = int(np.searchsorted(lefts, lefts[-1]))
        held = whole.slice(cut, whole.n) if cut < whole.n else None
        if cut:
            yield whole.slice(0, cut)
    if held is not None:
        yield held


class _Head:
    """The current rows of one run, in order of (left row, right row); None at the run's end."""

    def __init__(self, run: Iterator[Block]) -> None:
        self.run = run
        self.block = next(run, None)
        self.few = 0 if self.block is None else self.block.n // 2

    def fill(self) -> None:
        """Append the next block of the run if at most half a block of current rows is left."""
        if self.block is not None and self.block.n <= self.few:
            more = next(self.run, None)
            self.block = self.block if more is None else concat([self.block, more])

    @property
    def last(self) -> tuple[int, int]:
        """Return the left and right row numbers of the last current row."""
        if self.block is None:
            return NONE, NONE
        return int(numbers_of(self.block, LEFT_ROW)[-1]), int(numbers_of(self.block, RIGHT_ROW)[-1])

    def up_to(self, left: int, right: int) -> Block | None:
        """Remove and return the rows up to row (``left``, ``right``), or None if there are none."""
        block = self.block
        if block is None:
            return None
        lefts = numbers_of(block, LEFT_ROW)
        low, high = (np.searchsorted(lefts, np.uint64(left), side) for side in ("left", "right"))
        rights = numbers_of(block, RIGHT_ROW)[low:high]
        stop = int(low + np.searchsorted(rights, np.uint64(right), "right"))
        self.block = block.slice(stop, block.n) if stop < block.n else next(self.run, None)
        return block.slice(0, stop) if stop else None


def merged(spill: Spill, budget: int) -> Iterator[Block]:
    """Merge all runs, in several passes if two blocks of each run exceed half of the budget."""
    most = max(LEAST_RUNS, budget // (MERGE_HELD * block_bytes(budget)))
    while spill.count > most:
        few = max(2, min(most, spill.count - most + 1))
        spill.write(_recut(_merged(spill.runs(few)), budget))
    return _merged(spill.runs())


def _recut(blocks: Iterable[Block], budget: int) -> Iterator[Block]:
    """Yield the rows of ``blocks``, in blocks small enough for a merge."""
    for block in blocks:
        yield from _pieces(block, np.arange(block.n), budget)


def _merged(runs: list[Iterator[Block]]) -> Iterator[Block]:
    """Yield the rows of sorted runs merged in order, at most two blocks of each in memory."""
    heads = [head for head in map(_Head, runs) if head.block is not None]
    while heads:
        for head in heads:
            head.fill()
        bound = min(head.last for head in heads)
        parts = [part for head in heads if (part := head.up_to(*bound)) is not None]
        whole = concat(parts)
        if len(parts) > 1:
            order = np.lexsort((numbers_of(whole, RIGHT_ROW), numbers_of(whole, LEFT_ROW)))
            whole = whole.take(order)
        yield whole
        heads = [head for head in heads if head.block is not None]
