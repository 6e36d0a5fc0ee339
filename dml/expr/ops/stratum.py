"""This file holds the stratum: one side of a split that has its share of every class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.errors import MemoryContractError, PlanError, SchemaError
from dml.expr.block import Block, to_arrow
from dml.expr.calls import blamed
from dml.expr.facts import Held, Rows
from dml.expr.flow import CHUNK, LocalFlow
from dml.expr.keyed_batches import MOST_KEYS, MOST_LETTERS, Key
from dml.expr.node import Node, op
from dml.expr.ops.group_by_window import key_of
from dml.expr.ops.mix import FINEST
from dml.expr.ops.part import Part
from dml.expr.ops.shuffle_window import seeded
from dml.expr.schema import Schema
from dml.kernels.ids import source_key
from dml.kernels.random import row_key, uniform

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

# Stands where the ordinal of a random operator would stand.
STRATA = int.from_bytes(b"strata", "big")
MOST_CLASSES = 1 << 16


@op
class Stratum(Node):
    """The rows of part ``index``; of each class, every part has its share of ``weights``.

    The rows of a class are counted in order. The last part, of share p, has one row of every cell
    of them, the k-th of which begins at row k / p, rounded up: which one is drawn, keyed by (seed,
    ``nth``, class, k). The part before it has its share of the others in the same way, and so on.
    """

    input: Node
    column: str
    weights: tuple[int, ...]
    index: int
    seed: int | None
    nth: int

    # keeps rows by value and place, as they are
    rows: ClassVar[Rows] = Rows.RUNS

    def check(self) -> None:
        """A seed; rows below, in one order for all epochs."""
        seeded(self.seed)
        if not isinstance(self.column, str):
            raise PlanError(
                f"split with stratify={self.column!r}",
                why=f"it is of type {type(self.column).__name__}; a column has a name",
                try_='stratify="label", made by .with_columns(label=...) if it is not there',
            )
        if self.input.batched:
            raise PlanError(
                "split with stratify= after batch",
                why="it divides rows, and its input is batches",
                try_="split before .batch()",
            )
        for node in self.input.walk():
            if node.random and not isinstance(node, Part) and getattr(node, "fresh", True):
                raise PlanError(
                    "split with stratify= of rows that are others in every epoch",
                    why=f"it counts the rows of a class in order, and {node.title()} is below",
                    try_="split first; or reshuffle_each_iteration=False in a shuffle below",
                )

    def infer(self) -> Schema:
        """The input's schema, whose ``column`` can be a class."""
        given = self.input.schema
        if given.known:
            key_of(given, self.column, "split with stratify=")
        return given

    @property
    def held(self) -> Held:
        """How many rows of each class came before a piece, if classes are few."""
        work = f"at most {CHUNK} rows, or one pass"
        return Held(state_bytes=2560, work_rows=CHUNK, work=work)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Count the rows of each class."""
        return _Dividing(self, open_input, epoch, position, at)

    def parts(self, classes: np.ndarray, rows: np.ndarray, at: At) -> np.ndarray:
        """The part of each row: of a class (n,) u8 by its key, as the ``rows``-th (n,) i8 of it."""
        found = np.zeros(len(rows), dtype=np.int64)
        left, free = rows, np.ones(len(rows), dtype=bool)
        for part in range(len(self.weights) - 1, 0, -1):
            share, whole = self.weights[part], sum(self.weights[: part + 1])
            if not share:
                continue
            cell = left * share // whole
            first = -(-cell * whole // share)
            size = -(-(cell + 1) * whole // share) - first
            keys = row_key(
                classes, cell.astype(np.uint64), at.key(self.seed), STRATA + self.nth, part
            )
            chosen = first + np.floor(uniform(keys) * size).astype(np.int64)
            found[free & (left == chosen)] = part
            free &= left != chosen
            left = left - cell - (left > chosen)
        return found

    def shown(self) -> str:
        """Which part of which shares, by which column."""
        return f"part {self.index} of {list(self.weights)} by {self.column!r}, seed={self.seed}"


def strata(fractions: Sequence[Any]) -> tuple[int, ...]:
    """Whole numbers in the ratio of ``fractions``, which make a whole."""
    parts = [Fraction(fraction).limit_denominator(FINEST) for fraction in fractions]
    scale = lcm(*(part.denominator for part in parts))
    whole = [int(part * scale) for part in parts]
    return tuple(weight // gcd(*whole) for weight in whole)


class _Dividing:
    """``before`` are the counts where the piece at hand began, ``earlier`` the rows given then."""

    def __init__(
        self, node: Stratum, open_input: Opener, epoch: int, position: Position | None, at: At
    ) -> None:
        start = position or {"in": None, "drop": 0, "counts": [], "given": 0}
        self.node, self.at = node, at
        self.counts: dict[Key, int] = dict(start["counts"])
        self.before = self._counted()
        self.given = self.earlier = int(start["given"])
        self.rows = LocalFlow(self._begin, open_input, epoch, {"in": start["in"], "drop": 0})
        drop = start["drop"]
        while drop and (block := self.pull(drop)) is not None:
            drop -= block.n

    def _begin(self, input_: Flow) -> Iterator[Block] | None:
        self.before, self.earlier = self._counted(), self.given
        block = input_.pull(CHUNK)
        return None if block is None else self._kept(block)

    def _kept(self, block: Block) -> Iterator[Block]:
        """The rows of ``block`` that belong to the part."""
        try:
            kind = key_of(block.schema, self.node.column, "split with stratify=")
        except SchemaError as error:
            raise error.located(self.node.label()) from None
        column = to_arrow(block[self.node.column], kind).dictionary_encode(null_encoding="encode")
        codes, keys = np.asarray(column.indices), column.dictionary.to_pylist()
        stop = self._room(codes, keys)
        counts = np.bincount(codes[:stop], minlength=len(keys))
        before = np.array([self.counts.get(key, 0) for key in keys], dtype=np.int64)
        rows = before[codes[:stop]] + _ranks(codes[:stop], counts)
        classes = np.array([source_key(str(key)) for key in keys], dtype=np.uint64)
        parts = self.node.parts(classes[codes[:stop]], rows, self.at)
        new = zip(keys, (before + counts).tolist(), strict=True)
        self.counts.update((key, n) for key, n in new if n)
        kept = np.flatnonzero(parts == self.node.index)
        if len(kept):
            yield block.take(kept)
        if stop < block.n:
            raise blamed(self._too_many(), block.ids, stop)

    def _room(self, codes: np.ndarray, keys: list[Key]) -> int:
        """The first row whose class is one too many."""
        new = [code for code, key in enumerate(keys) if key not in self.counts]
        most = MOST_CLASSES - len(self.counts)
        if len(new) <= most:
            return len(codes)
        _, first = np.unique(codes, return_index=True)
        return int(np.sort(first[new])[most])

    def _too_many(self) -> MemoryContractError:
        return MemoryContractError(
            f"split with stratify={self.node.column!r} meets more than {MOST_CLASSES} classes",
            at=self.node.label(),
            why="the rows of each are counted",
            try_="a column of few values, such as a label",
        )

    def _counted(self) -> list[list[Any]] | None:
        """The counts by class; None where they are too many for a state."""
        if len(self.counts) > MOST_KEYS:
            return None
        letters = sum(len(key) for key in self.counts if isinstance(key, str))
        return [list(pair) for pair in self.counts.items()] if letters <= MOST_LETTERS else None

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows of the part."""
        block = self.rows.pull(most)
        self.given += 0 if block is None else block.n
        return block

    def position(self) -> Position:
        """Where the piece began, what was counted there, and how many rows were given since."""
        if self.before is None:
            return {"in": None, "drop": self.given, "counts": [], "given": 0}
        place = {"in": self.rows.before, "drop": self.given - self.earlier}
        return {**place, "counts": self.before, "given": self.earlier}

    def close(self) -> None:
        """Close the input."""
        self.rows.close()


def _ranks(codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How many rows before each have its code (n,) i8."""
    order = np.argsort(codes, kind="stable")
    starts = np.cumsum(counts) - counts
    ranks = np.empty(len(codes), dtype=np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(starts, counts)
    return ranks
