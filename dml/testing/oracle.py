"""The oracle runs a pipeline by its documented semantics: one row at a time, slow and obvious.

It shares nothing with the engine but the fields of nodes and the tables of arithmetic steps.
``dml/testing/meanings`` defines every operator; plans, timing and partitions must not change the
results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dml.errors import DmlError
from dml.expr.node import Node
from dml.io.source import Source
from dml.ops.batch.batch import Batch
from dml.testing.meaning import OperatorMeaning, TypedRow, Units
from dml.testing.meanings import MEANINGS
from dml.testing.oracle_arrays import arrays
from dml.testing.oracle_rows import Kinds
from dml.testing.oracle_sources import SourceTable, table_of
from dml.testing.scalars import ids as scalar_ids

MEANING: dict[type[Node], OperatorMeaning] = {each.operator: each for each in MEANINGS}


class Oracle:
    """One reference run of a pipeline, which yields the user's elements or the ids of all rows."""

    def __init__(self, node: Node, *, epoch: int = 0, seed: int = 0) -> None:
        self.node, self.epoch, self.seed = node, epoch, seed
        self.tables: dict[int, SourceTable] = {}
        self.settled: dict[int, Kinds] = {}
        self.exprs: dict[tuple[int, int], tuple[Kinds, Any]] = {}

    def elements(self) -> Iterator[dict[str, Any]]:
        """Yield batches (dicts of arrays) or rows (dicts) in order; errors are raised in place."""
        for element in self.stream(self.node, self.epoch):
            if isinstance(element, list):
                yield arrays([t.row.values for t in element], element[0].kinds, keep=False)
            else:
                yield dict(element.row.values)

    def ids(self) -> Iterator[tuple[int, int]]:
        """Yield the ids of all rows in order, batched or not."""
        for element in self.stream(self.node, self.epoch):
            for one in element if isinstance(element, list) else [element]:
                yield one.row.id

    def stream(self, node: Node, epoch: int, units: Units = None) -> Iterator[Any]:
        """Yield the elements of ``node`` in ``epoch``."""
        if isinstance(node, Source):
            yield from self._read(node, units)
            return
        yield from MEANING[type(node)].stream(self, node, epoch, units)

    def settle(self, node: Node, epoch: int, units: Units) -> None:
        """Infer the result types of functions below from all rows, before only some are read."""
        undeclared = (each for each in node.walk() if getattr(each, "declared", ()) is None)
        if any(id(each) not in self.settled for each in undeclared):
            with suppress(DmlError):  # it is raised again where its row is read
                deque(self.stream(node, epoch, units), maxlen=0)

    def _read(self, node: Source, units: Units) -> Iterator[TypedRow]:
        table = self.table(node)
        if units is None:
            yield from (TypedRow(row, table.kinds) for row in table.rows)
            return
        for unit in units:
            for row in table.rows:
                if unit in (row.unit, ("atom", row.atom)):
                    yield TypedRow(row, table.kinds)

    def table(self, source: Node) -> SourceTable:
        """Return all rows of a source."""
        if id(source) not in self.tables:
            self.tables[id(source)] = table_of(source)
        return self.tables[id(source)]

    def ordinal(self, node: Node) -> int:
        """Return how many random operators precede ``node``."""
        return sum(self.ordinal(each) + self._draws(each) for each in node.inputs)

    def _draws(self, node: Node) -> bool:
        return not isinstance(node, Source) and MEANING[type(node)].draws(node)

    def level(self, node: Node) -> int:
        """Return how many operators before ``node`` make new ids."""
        return sum(self.level(each) + self._makes_ids(each) for each in node.inputs)

    def _makes_ids(self, node: Node) -> bool:
        return not isinstance(node, Source) and MEANING[type(node)].makes_ids

    def descendant(self, element: Any, key: int, number: int) -> Any:
        """Return a row (or a batch) with ids derived from an operator's ``key`` and ``number``."""
        if isinstance(element, list):
            return [self.descendant(one, key, number) for one in element]
        hi, lo = element.row.id
        made, atom = scalar_ids.derive(hi, lo, key, number), (number, element.row.atom)
        return element.made(element.row.values, element.kinds, id=made, atom=atom)

    def one_source(self, node: Node) -> Source | None:
        """Return the source whose rows are the rows of ``node``; None if there is none."""
        chain = operators(node)
        if any(MEANING[type(each)].makes_ids or isinstance(each, Batch) for each in chain):
            return None
        source = node.chain()[0]
        return source if isinstance(source, Source) else None


def operators(node: Node) -> list[Node]:
    """Return ``node`` and the operators between it and the source, without the source."""
    return [each for each in node.chain() if not isinstance(each, Source)]
