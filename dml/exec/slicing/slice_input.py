"""Take the rows of slices from a flow: single rows, whole groups, or whole units."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from dml.data.block import Block, concat
from dml.errors import DmlError
from dml.exec.slicing.slice_sizes import PATIENCE_S
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.skipped_rows import Loss
from dml.expr.flow import GatherQuota, Position


class SliceInput(abc.ABC):
    """Takes rows from ``flow``, a lane's input; ``after`` is its position after the rows taken.

    If the input raised an error behind the rows taken, ``after`` is the position before these rows:
    an operator below may have lost rows that it had gathered, and a resumed run takes them again.
    ``heard`` returns the losses of operators below the lane since the last call.
    """

    def __init__(self, flow: Any, heard: Callable[[], tuple[Loss, ...]] = tuple) -> None:
        self.flow, self.heard = flow, heard
        self.after: Position = flow.position()

    @abc.abstractmethod
    def take(self, rows: int) -> tuple[Position, list[Piece]] | None:
        """Return the position before the next rows, and about ``rows`` rows; None if exhausted."""

    @property
    def where(self) -> tuple[int, int]:
        """Place of the unit and number of the atom of the last rows or error; else (0, 0)."""
        found: tuple[int, int] = getattr(self.flow, "where", (0, 0))
        return found

    def close(self) -> None:
        """Close the flow."""
        self.flow.close()


class OneByOne(SliceInput):
    """Takes any number of rows or batches, for a lane that processes them one by one."""

    def __init__(self, *below: Any, batched: bool, patience_s: float = PATIENCE_S) -> None:
        super().__init__(*below)
        self.batched, self.patience_s = batched, patience_s
        self.error: DmlError | None = None

    def take(self, rows: int) -> tuple[Position, list[Piece]] | None:
        """Return the position before the next rows, and up to ``rows`` rows; None if exhausted."""
        before, pieces, count = self.after, list[Piece](), 0
        started = perf_counter()
        while count < rows:
            block = self._pull(1 if self.batched else rows - count, begun=bool(pieces))
            if block is None:
                break
            place, atom = self.where
            if self.batched:
                atom = count  # each batch by itself
            pieces.append(Piece(place, atom, block.bare(), losses=self.heard()))
            count += 1 if self.batched else block.n
            if perf_counter() - started > self.patience_s:
                break
        if self.error is None:
            self.after = self.flow.position()
        if self.heard is not tuple and not self.batched:
            pieces = _together(pieces)
        return (before, pieces) if pieces else None

    def _pull(self, most: int, *, begun: bool) -> Block | None:
        """Return up to ``most`` rows or None; with ``begun``, raise an error at the next call."""
        if self.error is not None:
            raise self.error
        try:
            block: Block | None = self.flow.pull(most)
        except DmlError as error:
            if not begun:
                raise
            self.error = error
            return None
        return block


class Units(SliceInput):
    """Takes all rows of one unit of a source."""

    def __init__(self, *below: Any, room: GatherQuota) -> None:
        super().__init__(*below)
        self.room = room

    def take(self, rows: int) -> tuple[Position, list[Piece]] | None:
        """Return the position before the next unit, and all its rows; None if exhausted."""
        before = self.after
        blocks = self.flow.pull_piece(self.room.empty())
        if blocks is None:
            return None
        self.after = self.flow.position()
        pairs = zip(self.flow.wheres, blocks, strict=True)
        pieces = [Piece(place, atom, block.bare()) for (place, atom), block in pairs if block.n]
        place, atom = self.flow.where
        pieces = pieces or [Piece(place, atom)]
        # a unit is taken as a whole, and so are the losses in it
        pieces[0] = dataclasses.replace(pieces[0], losses=self.heard())
        return before, pieces


class GroupTaker(SliceInput):
    """Takes whole groups of ``size`` rows; only the last one of the input may be smaller.

    With ``atoms``, a group ends with its atom, and the last one of an atom may be smaller. If the
    input raises an error inside a group, the error is raised in place of the group.
    """

    def __init__(self, *below: Any, size: int, room: GatherQuota, atoms: bool) -> None:
        super().__init__(*below)
        self.size, self.room, self.atoms = size, room, atoms
        self.error: DmlError | None = None
        self.held: tuple[Position, Piece] | None = None  # position and first rows of the next atom

    def take(self, rows: int) -> tuple[Position, list[Piece]] | None:
        """Return the position before the rows, and whole groups of at least ``rows`` rows in all.

        They have fewer rows if the atom (with ``atoms``) or the input ends, or if an error follows.
        The result is None if the input is exhausted.
        """
        before, pieces, count = self.after, list[Piece](), 0
        block = self.held[1].block if self.held is not None else None
        wanted = -(-max(rows, block.n if block is not None else 0) // self.size) * self.size
        while count < wanted:
            found = self._next(wanted - count)
            if found is None:
                if self._ended(pieces):
                    return before, pieces
                pieces += self._lost(pieces)
                break
            position, piece = found
            if pieces and piece.where != pieces[0].where:
                self.held, self.after = found, position
                return before, pieces
            pieces.append(piece)
            count += 0 if piece.block is None else piece.block.n
            self._hold(pieces, count)
        if self.error is not None:
            whole = _cut(pieces, count // self.size * self.size)
            if not whole:
                raise self.error
            return before, whole
        self.after = self.flow.position()
        return (before, pieces) if pieces else None

    def _ended(self, pieces: Sequence[Piece]) -> bool:
        """Return whether the input raised an error in a later atom than that of ``pieces``."""
        there = self.error is not None and self.atoms and bool(pieces)
        return there and self.where != pieces[0].where

    def _hold(self, pieces: Sequence[Piece], count: int) -> None:
        """Count the bytes of a group that comes in several blocks; set ``error`` if too many."""
        rows, last = count % self.size, pieces[-1].block
        if last is None or not 0 < rows < self.size or rows <= last.n < self.size:
            self.room.empty()
            return
        try:
            self.room.take(last)
        except DmlError as error:
            self.error = error

    def _next(self, most: int) -> tuple[Position, Piece] | None:
        if self.held is not None:
            found, self.held = self.held, None
            return found
        if self.error is not None:
            return None
        position = self.flow.position()
        try:
            block = self.flow.pull(most)
        except DmlError as error:
            self.error = error
            return None
        if block is None:
            return None
        place, atom = self.where if self.atoms else (0, 0)
        return position, Piece(place, atom, block.bare(), losses=self.heard())

    def _lost(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the losses after the last row as a piece without rows; [] if there are none."""
        losses = self.heard() if pieces else ()
        return [dataclasses.replace(pieces[-1], block=None, losses=losses)] if losses else []


def _cut(pieces: Sequence[Piece], rows: int) -> list[Piece]:
    """Return the first ``rows`` rows, and the losses among the remaining rows, as pieces."""
    out = list[Piece]()
    for piece in pieces:
        block = piece.block
        if block is not None and rows:
            part = block.slice(0, min(rows, block.n))
            out.append(dataclasses.replace(piece, block=part))
            rows -= part.n
        elif piece.losses:
            out.append(dataclasses.replace(piece, block=None))
    return out


def _together(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces, with neighbours of an atom joined unless rows were lost between them."""
    groups = list[list[Piece]]()
    for piece in pieces:
        if not groups or piece.losses or piece.where != groups[-1][0].where:
            groups.append([])
        groups[-1].append(piece)
    return [_whole(group) if len(group) > 1 else group[0] for group in groups]


def _whole(pieces: Sequence[Piece]) -> Piece:
    blocks = [piece.block for piece in pieces if piece.block is not None]
    return dataclasses.replace(pieces[0], block=concat(blocks))
