"""This file takes the rows of slices from a flow: cut anywhere, in whole groups, in whole units."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from dml.errors import DmlError
from dml.exec.losses import Loss
from dml.exec.pace import PATIENCE_S
from dml.exec.work import Piece
from dml.expr.block import Block, concat
from dml.expr.flow import Position, Room


class SliceInput(Protocol):
    """Takes rows of the input."""

    def take(self, rows: int) -> tuple[Position, list[Piece]] | None:
        """The position before the next rows, and those; None at the end."""

    @property
    def after(self) -> Position:
        """The position behind all that was taken."""

    @property
    def heard(self) -> Callable[[], tuple[Loss, ...]]:
        """Gives what was lost below, in front of the rows that come next."""

    def close(self) -> None:
        """Take no more."""


class _Taker:
    """Takes from ``flow``; ``heard`` gives what was lost below, in front of what comes next."""

    def __init__(self, flow: Any, heard: Callable[[], tuple[Loss, ...]] = tuple) -> None:
        self.flow, self.heard = flow, heard
        self.after: Position = flow.position()

    def close(self) -> None:
        """Close the flow."""
        self.flow.close()


class OneByOne(_Taker):
    """Takes rows of a flow, or batches, for slices that may be cut anywhere."""

    def __init__(self, *below: Any, batched: bool, patience_s: float = PATIENCE_S) -> None:
        super().__init__(*below)
        self.batched, self.patience_s = batched, patience_s
        self.error: DmlError | None = None

    def take(self, rows: int) -> tuple[Position, list[Piece]] | None:
        """Up to so many rows, in the blocks that they come in."""
        before, pieces, count = self.after, list[Piece](), 0
        started = perf_counter()
        while count < rows:
            block = self._pull(1 if self.batched else rows - count, begun=bool(pieces))
            if block is None:
                break
            place, atom = getattr(self.flow, "where", (0, 0))
            if self.batched:
                atom = count  # each batch by itself
            pieces.append(Piece(place, atom, block.bare(), losses=self.heard()))
            count += 1 if self.batched else block.n
            if perf_counter() - started > self.patience_s:
                break
        self.after = self.flow.position()
        if self.heard is not tuple and not self.batched:
            pieces = _together(pieces)
        return (before, pieces) if pieces else None

    def _pull(self, most: int, *, begun: bool) -> Block | None:
        """Some rows; an error of the input waits for the rows before it to be taken."""
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


class Units(_Taker):
    """Takes all rows of one unit of a source."""

    def __init__(self, *below: Any, room: Room) -> None:
        super().__init__(*below)
        self.room = room

    def take(self, _rows: int) -> tuple[Position, list[Piece]] | None:
        """The rows of the next unit, which may have none."""
        before = self.after
        blocks = self.flow.pull_piece(self.room.empty())
        if blocks is None:
            return None
        self.after = self.flow.position()
        pairs = zip(self.flow.wheres, blocks, strict=True)
        pieces = [Piece(place, atom, block.bare()) for (place, atom), block in pairs if block.n]
        place, atom = self.flow.where
        pieces = pieces or [Piece(place, atom)]
        # a unit is taken as a whole: so is what was lost of it
        pieces[0] = dataclasses.replace(pieces[0], losses=self.heard())
        return before, pieces


class Groups(_Taker):
    """Takes whole groups of rows: so many of an atom, fewer at its end.

    A group with a row that cannot be made is not taken: the error stands in its place.
    """

    def __init__(self, *below: Any, size: int, room: Room, atoms: bool) -> None:
        super().__init__(*below)
        self.size, self.room, self.atoms = size, room, atoms
        self.error: DmlError | None = None
        self.held: tuple[Position, Piece] | None = None  # the begin of another atom

    def take(self, rows: int) -> tuple[Position, list[Piece]] | None:
        """As many whole groups as have so many rows, of one atom."""
        before, pieces, count = self.after, list[Piece](), 0
        block = self.held[1].block if self.held is not None else None
        wanted = -(-max(rows, block.n if block is not None else 0) // self.size) * self.size
        while count < wanted:
            found = self._next(wanted - count)
            if found is None:
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

    def _hold(self, pieces: Sequence[Piece], count: int) -> None:
        """Count the rows of a group that comes in several blocks; too much is an error."""
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
        place, atom = getattr(self.flow, "where", (0, 0)) if self.atoms else (0, 0)
        return position, Piece(place, atom, block.bare(), losses=self.heard())

    def _lost(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What was lost behind the last row of a group, which comes before the group."""
        losses = self.heard() if pieces else ()
        return [dataclasses.replace(pieces[-1], block=None, losses=losses)] if losses else []


def _cut(pieces: Sequence[Piece], rows: int) -> list[Piece]:
    """The first ``rows`` rows, and what was lost among the others."""
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
    """The pieces, those of one atom as one where nothing was lost between them."""
    groups = list[list[Piece]]()
    for piece in pieces:
        if not groups or piece.losses or piece.where != groups[-1][0].where:
            groups.append([])
        groups[-1].append(piece)
    return [_whole(group) if len(group) > 1 else group[0] for group in groups]


def _whole(pieces: Sequence[Piece]) -> Piece:
    blocks = [piece.block for piece in pieces if piece.block is not None]
    return dataclasses.replace(pieces[0], block=concat(blocks))
