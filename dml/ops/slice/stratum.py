"""``Stratum`` keeps the rows of one part of a stratified split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.data.block import Block, to_arrow
from dml.data.schema import Schema
from dml.errors import MemoryContractError, PlanError, SchemaError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import CHUNK, LocalFlow, pass_over
from dml.expr.node import Node, op
from dml.expr.user_call import blamed
from dml.kernels.rows.ids import source_key
from dml.kernels.rows.random import row_key, uniform
from dml.ops.batch.group_by_window import key_of
from dml.ops.batch.keyed_batches import Key, saved_counts
from dml.ops.merge.mix import FINEST, in_whole
from dml.ops.shuffle.shuffle_window import seeded
from dml.ops.slice.part import Part
from dml.ops.unary import require_rows

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

# Used in keys in place of a random operator's ordinal.
STRATA = int.from_bytes(b"strata", "big")
MOST_CLASSES = 1 << 16


@op
class Stratum(Node):
    """Keeps the rows of part ``index``; every part has its share of each class by ``weights``.

    A class has the rows with one value of ``column``, numbered from 0 in order. Its rows are cut
    into cells, and the last part gets one row of each cell. For a part of share p, cell k begins at
    row k / p, rounded up; a random draw, keyed by (seed, ``nth``, part, class, k), picks the row.
    The part before the last gets its share of the remaining rows in the same way, and so on.
    """

    input: Node
    column: str
    weights: tuple[int, ...]
    index: int
    seed: int | None
    nth: int

    # keeps rows by value and place, as they are
    rows: ClassVar[Rows] = Rows.RUNS
    # Counts by class are saved, one chunk is read again; all rows, if the classes are too many to
    # save.
    resume_cost = ResumeCost(
        state_bytes=2560, work_rows=CHUNK, work=f"at most {CHUNK} rows, or one pass"
    )
    splits: ClassVar[bool] = True

    def check(self) -> None:
        """Raise PlanError for a bad seed or column, batches, or rows that differ between epochs."""
        seeded(self.seed)
        if not isinstance(self.column, str):
            raise PlanError(
                f"split with stratify={self.column!r}",
                why=f"it is of type {type(self.column).__name__}; a column has a name",
                try_='stratify="label", made by .with_columns(label=...) if it is not there',
            )
        require_rows(self.input, "split with stratify=", "divides", "split before .batch()")
        for node in self.input.walk():
            if node.random and not isinstance(node, Part) and node.fresh:
                raise PlanError(
                    "split with stratify= of rows that are others in every epoch",
                    why=f"it counts the rows of a class in order, and {node.title()} is below",
                    try_="split first; or reshuffle_each_iteration=False in a shuffle below",
                )

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema; raise SchemaError if ``column`` cannot be a class."""
        key_of(given, self.column, "split with stratify=")
        return given

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that counts the rows of each class."""
        return _Dividing(self, open_input, epoch, position, at)

    def parts(self, classes: np.ndarray, rows: np.ndarray, at: At) -> np.ndarray:
        """Return each row's part, by its class key (n,) u8 and its number in the class (n,) i8."""
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

    def parameters_text(self) -> str:
        """Return the part, the shares, the column and the seed as text."""
        return f"part {self.index} of {list(self.weights)} by {self.column!r}, seed={self.seed}"


def strata(fractions: Sequence[Any]) -> tuple[int, ...]:
    """Return whole numbers in the ratio of ``fractions``, which add up to 1."""
    return in_whole([Fraction(each).limit_denominator(FINEST) for each in fractions])


class _Dividing:
    """A flow of the rows of one part, computed chunk by chunk of the input.

    ``before`` has the counts by class before the current chunk (None: too many for a saved state),
    ``earlier`` is the number of rows that were returned before this chunk.
    """

    def __init__(
        self, node: Stratum, open_input: Opener, epoch: int, position: Position | None, at: At
    ) -> None:
        start = position or {"in": None, "drop": 0, "counts": [], "given": 0}
        self.node, self.at = node, at
        self.counts: dict[Key, int] = dict(start["counts"])
        self.before = saved_counts(self.counts, self.counts.values())
        self.given = self.earlier = int(start["given"])
        self.rows = LocalFlow(self._begin, open_input, epoch, {"in": start["in"], "drop": 0})
        pass_over(self, start["drop"])

    def _begin(self, input_: Flow) -> Iterator[Block] | None:
        self.before, self.earlier = saved_counts(self.counts, self.counts.values()), self.given
        block = input_.pull(CHUNK)
        return None if block is None else self._select(block)

    def _select(self, block: Block) -> Iterator[Block]:
        """Yield the rows of ``block`` that belong to the part, and count the rows by class."""
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
        """Return the first row that exceeds the limit of classes; the row count if none does."""
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

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows of the part; None at the end."""
        block = self.rows.pull(most)
        self.given += 0 if block is None else block.n
        return block

    def position(self) -> Position:
        """Return where the chunk began, the counts there, and the rows returned since then."""
        if self.before is None:
            return {"in": None, "drop": self.given, "counts": [], "given": 0}
        place = {"in": self.rows.before, "drop": self.given - self.earlier}
        return {**place, "counts": self.before, "given": self.earlier}

    def close(self) -> None:
        """Close the input."""
        self.rows.close()


def _ranks(codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return, for each row, how many rows before it have its code, (n,) i8."""
    order = np.argsort(codes, kind="stable")
    starts = np.cumsum(counts) - counts
    ranks = np.empty(len(codes), dtype=np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(starts, counts)
    return ranks
