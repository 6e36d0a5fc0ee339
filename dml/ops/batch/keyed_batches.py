"""Rows are gathered into batches by a key, such as the bucket of their length.

A position holds no rows. It has the input's position before the oldest buffered row, the number of
buffered rows of each key at that point, and the number of rows read since. A resumed run reads
these rows again, and does not emit the batches that they fill a second time.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from dml.data.block import Block, concat
from dml.errors import DmlError
from dml.expr.batch_run import ScatteredBatch
from dml.expr.flow import CHUNK, GATHERED, GatherQuota

if TYPE_CHECKING:
    from dml.expr.flow import At, Opener, Position

Key: TypeAlias = "int | str | None"
# A saved state has at most so many keys and letters; with more, all rows are read again.
MOST_KEYS, MOST_LETTERS = 64, 1024


class KeyedRows(NamedTuple):
    """Keys of a block's rows: row i has ``keys[codes[i]]``; the row after them has ``error``."""

    codes: np.ndarray
    keys: list[Key]
    error: DmlError | None = None


@dataclasses.dataclass(eq=False)
class _Origin:
    """A block with buffered rows: the input's position ``before`` it, and its first ``row``.

    ``counts`` has the buffered rows by key at that point (None: too many keys), ``held`` the number
    of rows of the block that are still buffered.
    """

    before: Position | None
    row: int
    counts: list[list[Any]] | None
    held: int = 0


class _Group:
    """The buffered rows of one key: their number ``rows``, and the ``blocks`` that contain them.

    In a resumed run ``rows`` also counts rows of a batch emitted before, which are not buffered.
    """

    def __init__(self, rows: int = 0) -> None:
        self.rows, self.nbytes = rows, 0
        self.blocks: list[Block] = []
        self.origins: list[tuple[_Origin, int]] = []

    @property
    def whole(self) -> bool:
        """True if all counted rows are buffered, and there is at least one."""
        return self.rows > 0 and self.rows == sum(block.n for block in self.blocks)

    def add(self, block: Block, origin: _Origin) -> None:
        """Buffer the rows of ``block``; ``origin`` is the input block that they came from."""
        self.blocks.append(block)
        self.origins.append((origin, block.n))
        self.rows += block.n
        self.nbytes += block.nbytes
        # blocks of similar size are joined, so that blocks are few and each row is copied rarely
        while len(self.blocks) > 1 and self.blocks[-2].n <= self.blocks[-1].n:
            self.blocks[-2:] = [concat(self.blocks[-2:])]


class _Turn(NamedTuple):
    """A full batch of ``key``: ``rows`` of the current block are in it; ``row`` is its last."""

    row: int
    key: Key
    rows: np.ndarray


def saved_counts(keys: Collection[Key], counts: Iterable[int]) -> list[list[Any]] | None:
    """Return pairs of a key and its number of rows; None if too large for a saved state."""
    if len(keys) > MOST_KEYS:
        return None
    letters = sum(len(key) for key in keys if isinstance(key, str))
    return list(map(list, zip(keys, counts, strict=True))) if letters <= MOST_LETTERS else None


class KeyedBatches:
    """A flow of batches of ``node.size(key)`` rows of a key, in the order in which they are full.

    At the end the remaining rows of each key follow as a shorter batch, in ascending order of keys,
    None last; with ``drop_last`` they are dropped.
    """

    def __init__(
        self,
        node: Any,
        open_input: Opener,
        epoch: int,
        position: Position | None,
        at: At,
    ) -> None:
        start = position or {"in": None, "row": 0, "counts": [], "since": 0, "rest": 0}
        self.node, self.room = node, GatherQuota(node, at.hold_bytes)
        self.groups = {key: _Group(rows) for key, rows in start["counts"]}
        self.origins: dict[int, _Origin] = {}  # of buffered rows, by first row
        self.held_bytes = 0
        self.input = open_input(epoch, start["in"])
        self.origin = _Origin(self.input.position(), start["row"], self._counts())
        self.block: Block | None = None
        self.turns: deque[_Turn] = deque()
        self.left: list[tuple[Key, np.ndarray]] = []
        self.seen = self.given = 0  # rows of the block: up to the last batch, and in batches
        self.error: DmlError | None = None
        self.rest: Iterator[ScatteredBatch] | None = None
        self.rests: int = start["rest"]
        self._again(start["since"])

    def _again(self, rows: int) -> None:
        """On resumption, read ``rows`` rows again and drop the batches that they fill."""
        while rows and self._next(rows):
            rows -= 0 if self.block is None else self.block.n
            while self._full() is not None:
                pass
        if not all(group.whole for group in self.groups.values()):
            self.close()
            raise KeyError("counts")  # the position does not fit: counted rows fill no batch
        if self.rests:
            self._keep()
            self.rest = self._rests(self.rests)

    def pull(self, most: int) -> Block | None:
        """Return the next batch; None at the end."""
        del most  # a pull returns one element
        found = self.pull_scattered()
        return None if found is None else found.block()

    def pull_scattered(self) -> ScatteredBatch | None:
        """Return the next batch without copying its rows; None at the end."""
        while self.rest is None:
            batch = self._full()
            if batch is not None:
                return batch
            if not self._next(CHUNK):
                self.rest = self._rests(0)
        return next(self.rest, None)

    def _next(self, most: int) -> bool:
        """Read a block of up to ``most`` rows; return False at the end of the input."""
        self._keep()
        if self.error is not None:
            raise self.error
        row = self.origin.row + self.seen
        self.seen = self.given = 0
        self.origin = _Origin(self.input.position(), row, self._counts())
        block = self.input.pull(min(most, CHUNK))
        if block is None:
            return False
        self.room.rows = sum(origin.held for origin in self.origins.values())
        self.room.held_bytes = GATHERED * self.held_bytes
        self.room.take(block)
        found = self.node.keyed(block)
        self.error = found.error
        self.block = block.slice(0, len(found.codes)) if found.error is not None else block
        self._plan(found)
        return True

    def _plan(self, found: KeyedRows) -> None:
        """Plan which rows of the current block fill which batches, and which remain."""
        order = np.argsort(found.codes, kind="stable")
        ends = np.cumsum(np.bincount(found.codes, minlength=len(found.keys)))
        turns: list[_Turn] = []
        for code, index in enumerate(np.split(order, ends[:-1])):
            key, start = found.keys[code], 0
            group = self.groups.get(key)
            stop = size = self.node.size(key)
            stop -= 0 if group is None else group.rows
            while stop <= len(index):
                turns.append(_Turn(int(index[stop - 1]), key, index[start:stop]))
                start, stop = stop, stop + size
            if start < len(index):
                self.left.append((key, index[start:]))
        self.turns = deque(sorted(turns, key=lambda turn: turn.row))

    def _full(self) -> ScatteredBatch | None:
        """Return the next batch that the current block fills; None if there are no more."""
        if not self.turns or self.block is None:
            return None
        turn = self.turns.popleft()
        self.seen, self.given = turn.row + 1, self.given + len(turn.rows)
        parts = ((block, None) for block in self._take_group(turn.key))
        return ScatteredBatch((*parts, (self.block, turn.rows)))

    def _take_group(self, key: Key) -> list[Block]:
        """Remove and return the buffered rows of ``key``."""
        group = self.groups.pop(key, None)
        if group is None:
            return []
        self.held_bytes -= group.nbytes
        for origin, rows in group.origins:
            origin.held -= rows
            if not origin.held:
                self.origins.pop(origin.row, None)
        return group.blocks

    def _keep(self) -> None:
        """Buffer the rows of the current block that are in no full batch."""
        block, self.block = self.block, None
        if block is None:
            return
        self.seen = block.n
        for key, index in self.left:
            group = self.groups.setdefault(key, _Group())
            part, before = block.take(index), group.nbytes
            group.add(part, self.origin)
            self.held_bytes += group.nbytes - before
            self.origin.held += part.n
        if self.left:
            self.origins[self.origin.row] = self.origin
        self.left = []

    def _rests(self, skip: int) -> Iterator[ScatteredBatch]:
        """Yield the batches that never became full, without the first ``skip`` of them."""
        keys = [] if self.node.drop_last else sorted(self.groups, key=_placed)
        self.rests = skip
        for key in keys[skip:]:
            self.rests += 1
            yield ScatteredBatch(tuple((block, None) for block in self.groups[key].blocks))

    def _counts(self) -> list[list[Any]] | None:
        return saved_counts(self.groups, (group.rows for group in self.groups.values()))

    def position(self) -> Position:
        """Return the input position before the oldest buffered row, and the rows read since."""
        row = self.origin.row + self.seen
        here = self.block is not None and self.seen > self.given
        oldest = next(iter(self.origins.values()), self.origin if here else None)
        if oldest is None and (self.block is None or self.seen == self.block.n):
            return {"in": self.input.position(), "row": row, "counts": [], "since": 0, "rest": 0}
        oldest = oldest or self.origin
        if oldest.counts is None:
            oldest = _Origin(None, 0, [])
        return {
            "in": oldest.before,
            "row": oldest.row,
            "counts": [list(pair) for pair in oldest.counts or ()],
            "since": row - oldest.row,
            "rest": self.rests,
        }

    def close(self) -> None:
        """Close the input and drop the buffered rows."""
        self.block = None
        self.turns.clear()
        self.groups.clear()
        self.origins.clear()
        self.rest = iter(())
        self.input.close()


def _placed(key: Key) -> tuple[bool, Any]:
    return (key is None, 0 if key is None else key)
