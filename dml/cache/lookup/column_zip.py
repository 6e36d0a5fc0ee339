"""Zip columns of equal rows that come from different entries of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from dml.data.block import Block, concat
from dml.data.row_slicing import PART_BYTES
from dml.data.schema import Schema
from dml.errors import NonDeterminismError, SchemaError
from dml.expr.columns import computation
from dml.expr.flow import At
from dml.kernels.rows.ids import RowIds
from dml.ops.implication import Derivation


class Shaped:
    """The columns of ``schema``, derived from stored ones by ``made``, or else taken by name.

    Without a schema, all columns are taken unchanged.
    """

    def __init__(self, made: Derivation | None, schema: Schema | None) -> None:
        self.schema = schema
        self.segment: computation.ComputedSegment | None = None
        self.stored: dict[str, str] = {}
        if made is None or schema is None:
            self.stored = {name: name for name in schema or ()}
            return
        values = {name: value for name, value in made.columns if name in schema}
        if made.residual or any(value.op != "col" for value in values.values()):
            made_values = [values[name] for name in schema]
            self.segment = computation.ComputedSegment(made.residual, list(schema), made_values)
        else:
            self.stored = {name: value.params[0] for name, value in values.items()}

    def fits(self, block: Block) -> bool:
        """Return True if all columns can be derived from a stored block, with the right types."""
        if self.schema is None:
            return True
        if self.segment is None:
            kinds = {name: block.schema.get(stored) for name, stored in self.stored.items()}
            return kinds == dict(self.schema)
        try:
            self.segment.predicate.check(block.schema)
            return self.segment.schema(block.schema) == self.schema
        except SchemaError:
            return False

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the derived columns of a stored block."""
        if self.schema is None:
            yield block
        elif self.segment is not None:
            yield from self.segment.run(block, at)
        else:
            columns = tuple(block[self.stored[name]] for name in self.schema)
            yield Block(self.schema, columns, block.ids)


class Cursor:
    """Reads the blocks of an atom in pieces of as many rows as the caller wants."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._left = [block for block in blocks if block.n][::-1]
        self.blocks = len(self._left)
        self.ends = list(accumulate(block.n for block in self._left[::-1]))

    def rows(self, count: int, label: str) -> Block:
        """Return the next ``count`` rows; raise NonDeterminismError if fewer are left."""
        parts: list[Block] = []
        while count:
            if not self._left:
                raise differing(label)
            block = self._left.pop()
            if block.n > count:
                self._left.append(block.slice(count, block.n))
                block = block.slice(0, count)
            parts.append(block)
            count -= block.n
        return concat(parts)

    def end(self, label: str) -> None:
        """Raise NonDeterminismError if rows are left."""
        if self._left:
            raise differing(label)


def all_beside(lists: Sequence[Iterable[Block]], schema: Schema, label: str) -> Iterator[Block]:
    """Yield the rows of an atom with the columns of all lists.

    Blocks end wherever a block of any list ends.
    """
    cursors = [Cursor(blocks) for blocks in lists]
    start = 0
    for end in sorted({end for cursor in cursors for end in cursor.ends}):
        yield _together([cursor.rows(end - start, label) for cursor in cursors], schema, label)
        start = end


def beside(
    cursors: Sequence[Cursor], blocks: Iterable[Block], schema: Schema, label: str
) -> Iterator[Block]:
    """Yield the ``blocks`` of an atom, extended by the stored columns of their rows."""
    for block in blocks:
        if block.n:
            parts = [block, *(cursor.rows(block.n, label) for cursor in cursors)]
            yield _together(parts, schema, label)
    for cursor in cursors:
        cursor.end(label)


def recut(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the rows of an atom in blocks that end at ``PART_BYTES``, however they were cut.

    A retried task must return the same partitions, which end where blocks end, although more or
    fewer of the rows may be stored by then. Rows before an error are yielded before the error.
    """
    held: list[Block] = []
    weight = 0
    try:
        for block in blocks:
            rest = block
            while rest.n:
                count = _until(rest, PART_BYTES - weight)
                held.append(rest.slice(0, count))
                weight += held[-1].additive_weight
                rest = rest.slice(count, rest.n)
                if weight >= PART_BYTES:
                    yield concat(held)
                    held, weight = [], 0
    except Exception:
        if held:
            yield concat(held)
        raise
    if held:
        yield concat(held)


def _until(block: Block, nbytes: int) -> int:
    """Return how many of the first rows weigh ``nbytes`` together; all if they weigh less."""
    if block.additive_weight <= nbytes:
        return block.n
    low, high = 1, block.n
    while low < high:
        middle = (low + high) // 2
        if block.slice(0, middle).additive_weight >= nbytes:
            high = middle
        else:
            low = middle + 1
    return low


def _together(parts: Sequence[Block], schema: Schema, label: str) -> Block:
    first, *others = parts
    if not all(_same(first.ids, other.ids) for other in others):
        raise differing(label)
    columns = {name: part[name] for part in parts for name in part.schema}
    return Block(schema, tuple(columns[name] for name in schema), first.ids)


def _same(ids: RowIds, others: RowIds) -> bool:
    """Return True if ``ids`` and ``others`` are equal, in order."""
    return all(map(np.array_equal, ids.arrays(), others.arrays()))


def differing(label: str) -> NonDeterminismError:
    """Return the error for computed rows that differ from stored rows."""
    return NonDeterminismError(
        "rows that were stored are not those that are computed now",
        at=label,
        why="a function below keeps, or makes, other rows than it did when columns were stored",
        try_="a function that depends on its row alone; dml.Catalog().evict(...) of what is stored",
    )
