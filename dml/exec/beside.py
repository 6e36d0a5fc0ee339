"""This file puts columns of equal rows side by side that come from different entries of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from dml.errors import NonDeterminismError, SchemaError
from dml.expr import compute
from dml.expr.block import Block, concat
from dml.expr.cutting import PART_BYTES
from dml.expr.flow import At
from dml.expr.implied import Made
from dml.expr.schema import Schema
from dml.kernels.ids import RowIds


class Shaped:
    """Columns of ``schema`` made of stored ones, as ``made`` says; without it, those of that name.

    Without a schema, all as they are.
    """

    def __init__(self, made: Made | None, schema: Schema | None) -> None:
        self.schema = schema
        self.segment: compute.Segment | None = None
        self.stored: dict[str, str] = {}
        if made is None or schema is None:
            self.stored = {name: name for name in schema or ()}
            return
        values = {name: value for name, value in made.columns if name in schema}
        if made.residual or any(value.op != "col" for value in values.values()):
            names = list(schema)
            self.segment = compute.Segment(made.residual, names, [values[name] for name in names])
        else:
            self.stored = {name: value.params[0] for name, value in values.items()}

    def fits(self, block: Block) -> bool:
        """Whether the columns of a stored block become what they are to be, by their types."""
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
        """The columns of a stored block."""
        if self.schema is None:
            yield block
        elif self.segment is not None:
            yield from self.segment.run(block, at)
        else:
            columns = tuple(block[self.stored[name]] for name in self.schema)
            yield Block(self.schema, columns, block.ids)


class Cursor:
    """The blocks of an atom, taken as many rows at a time as others have."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._left = [block for block in blocks if block.n][::-1]
        self.blocks = len(self._left)
        self.ends = list(accumulate(block.n for block in self._left[::-1]))

    def rows(self, count: int, label: str) -> Block:
        """The next rows; NonDeterminismError if there are no more so many."""
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
        """NonDeterminismError if there are rows left."""
        if self._left:
            raise differing(label)


def all_beside(lists: Sequence[Iterable[Block]], schema: Schema, label: str) -> Iterator[Block]:
    """Rows of an atom that all lists have, with the columns of all; cut where one of them is."""
    cursors = [Cursor(blocks) for blocks in lists]
    start = 0
    for end in sorted({end for cursor in cursors for end in cursor.ends}):
        yield _together([cursor.rows(end - start, label) for cursor in cursors], schema, label)
        start = end


def beside(
    cursors: Sequence[Cursor], blocks: Iterable[Block], schema: Schema, label: str
) -> Iterator[Block]:
    """The ``blocks`` of an atom with the columns that are there for their rows."""
    for block in blocks:
        if block.n:
            parts = [block, *(cursor.rows(block.n, label) for cursor in cursors)]
            yield _together(parts, schema, label)
    for cursor in cursors:
        cursor.end(label)


def recut(blocks: Iterable[Block]) -> Iterator[Block]:
    """The rows of an atom in blocks that end where they weigh ``PART_BYTES``, however they came.

    A task that is begun again must give the same partitions, which end with blocks; meanwhile
    others may have stored more of its rows, or less is left. What came before an error comes first.
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
    """How many of its first rows weigh so much, all if they do not."""
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
    """Whether these are the same rows."""
    if len(ids) != len(others):
        return False
    ours, theirs = ids.arrays(), others.arrays()
    return all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def differing(label: str) -> NonDeterminismError:
    """The error for rows that are not those that were stored."""
    return NonDeterminismError(
        "rows that were stored are not those that are computed now",
        at=label,
        why="a function below keeps, or makes, other rows than it did when columns were stored",
        try_="a function that depends on its row alone; dml.Catalog().evict(...) of what is stored",
    )
