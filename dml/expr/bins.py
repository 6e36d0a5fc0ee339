"""This file puts rows into bins of tokens: which bin each goes to, and when a bin is given.

A row goes to one of the bins that are open, by a strategy, or else a new one is opened. A bin is
closed when it is full, when the ``most``-th bin after it is opened, or at the end. So what is held
is bounded by bins and never by rows, and where rows go follows from their lengths alone.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import numpy as np

from dml.expr.block import Values, join, take
from dml.kernels.ids import RowIds

STRATEGIES = ("first_fit", "best_fit", "concat_split")


@dataclasses.dataclass(eq=False, slots=True)
class Chunk:
    """Tokens end to end: of every column of lists, in the same places."""

    columns: dict[str, Values]
    ids: RowIds
    tokens: int


Piece: TypeAlias = "tuple[Chunk, int, int]"
"""Tokens of one row: where they lie, the first of them, how many."""


@dataclasses.dataclass(eq=False, slots=True)
class Bin:
    """Pieces of rows, with room for ``free`` tokens more; ``pieces`` None were given long ago.

    Its id is made of that of the first piece's row (``row``) and the piece's number in that
    (``part``); ``origin`` is where that row came from.
    """

    number: int
    free: int
    pieces: list[Piece] | None
    row: RowIds = dataclasses.field(default_factory=RowIds.none)
    part: int = 0
    origin: object = None


class Bins:
    """The bins that are open, oldest first; ``closed`` are those to be given, in order."""

    def __init__(self, size: int, most: int, strategy: str, state: list[list[int]]) -> None:
        self.size, self.most = size, most
        self.split, self.best = strategy == "concat_split", strategy == "best_fit"
        self.open = [Bin(-age, free, None) for age, free in state]
        self.next = 0
        self.closed: list[Bin] = []

    def state(self) -> list[list[int]]:
        """Of each open bin how many were opened since, itself too, and its room."""
        return [[self.next - each.number, each.free] for each in self.open]

    def add(self, chunk: Chunk, row: int, start: int, size: int, origin: object) -> None:
        """Put a row of ``size`` tokens where it belongs; at most a bin full, unless it is split."""
        part = 0
        while size:
            target = self._target(1 if self.split else size)
            if target is None:
                target = self._opened(chunk.ids.take(np.array([row])), part, origin)
            taken = min(size, target.free)
            if target.pieces is not None:
                target.pieces.append((chunk, start, taken))
            target.free -= taken
            if not target.free:
                self.open.remove(target)
                self.closed.append(target)
            start, size, part = start + taken, size - taken, part + 1

    def _target(self, size: int) -> Bin | None:
        fitting = (each for each in self.open if each.free >= size)
        if self.best:
            return min(fitting, key=_room, default=None)
        return next(fitting, None)

    def _opened(self, row: RowIds, part: int, origin: object) -> Bin:
        while self.open and self.next - self.open[0].number >= self.most:
            self.closed.append(self.open.pop(0))
        made = Bin(self.next, self.size, [], row, part, origin)
        self.next += 1
        self.open.append(made)
        return made

    def end(self) -> None:
        """Close what is open."""
        self.closed += self.open
        self.open = []


def _room(bin_: Bin) -> int:
    return bin_.free


def gathered(pieces: list[Piece]) -> dict[str, Values]:
    """The tokens of ``pieces``, end to end, by column."""
    chunks = list({id(chunk): chunk for chunk, _, _ in pieces}.values())
    of = {id(chunk): number for number, chunk in enumerate(chunks)}
    which = np.array([of[id(chunk)] for chunk, _, _ in pieces], dtype=np.intp)
    starts = np.array([start for _, start, _ in pieces], dtype=np.int64)
    sizes = np.array([size for _, _, size in pieces], dtype=np.int64)
    parts = [
        {
            name: take(values, spans(starts[which == n], sizes[which == n]))
            for name, values in columns
        }
        for n, columns in enumerate(list(chunk.columns.items()) for chunk in chunks)
    ]
    if len(parts) == 1:
        return parts[0]
    whose = np.repeat(which, sizes)
    places = np.empty(len(whose), dtype=np.intp)
    places[np.argsort(whose, kind="stable")] = np.arange(len(whose))
    return {name: take(join([part[name] for part in parts]), places) for name in parts[0]}


def spans(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The places of all tokens: ``sizes[i]`` from ``starts[i]`` on, for each i in turn."""
    before = np.cumsum(sizes) - sizes
    places: np.ndarray = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
    return places
