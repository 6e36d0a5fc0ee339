"""This file runs a pipeline as its pages of semantics read: one row at a time, slow and obvious.

Nothing is shared with the engine but the fields of nodes and the tables of arithmetic steps. What a
pipeline means is what this file does; plans, timing and partitions must not be seen to differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import DmlError, SchemaError, UDFError
from dml.expr.node import Node
from dml.expr.ops.batch import Batch
from dml.expr.ops.cast import Cast
from dml.expr.ops.drop import Drop
from dml.expr.ops.fill_null import FillNull
from dml.expr.ops.filter import Filter
from dml.expr.ops.filter_rows import FilterRows
from dml.expr.ops.flat_map import FlatMap
from dml.expr.ops.map_batch import MapBatch
from dml.expr.ops.map_batches import MapBatches
from dml.expr.ops.map_rows import MapRows
from dml.expr.ops.random_map import RandomMap
from dml.expr.ops.rename import Rename
from dml.expr.ops.repeat import Repeat
from dml.expr.ops.select import Select
from dml.expr.ops.shuffle_all import ShuffleAll
from dml.expr.ops.shuffle_atoms import ShuffleAtoms
from dml.expr.ops.shuffle_window import ShuffleWindow
from dml.expr.ops.skip import Skip
from dml.expr.ops.take import Take
from dml.expr.ops.with_columns import WithColumns
from dml.expr.sources.source import Source
from dml.testing import scalar_ids
from dml.testing.oracle_arrays import arrays, as_settled, batch_seen, columns_of
from dml.testing.oracle_rows import Kinds, fitted, settled
from dml.testing.oracle_sources import Row, Table, table_of
from dml.testing.oracle_steps import (
    called,
    called_many,
    columns_written,
    grouped,
    level,
    one_source,
    ordinal,
    permutation,
    seen,
    shuffled,
)
from dml.testing.oracle_types import Expr, typed
from dml.testing.oracle_values import Draws, value_of

# Children by which a flat_map's types are settled, if one atom makes more.
CHILDREN = 4096
ENDLESS = 1 << 32
WHOLE = int.from_bytes(b"shuffle", "big")
PIECES = int.from_bytes(b"pieces", "big")
CHILD = int.from_bytes(b"flat_map", "big")
BATCH_CHILD = int.from_bytes(b"map_batc", "big")
GROUP_CHILD = int.from_bytes(b"map_grou", "big")
# Rows of a group without a size, where the source's atoms are gone.
RUN = 8192
PASS = int.from_bytes(b"repeat", "big")
COLUMNS = (Select, Drop, Rename, WithColumns, Cast, FillNull)


@dataclasses.dataclass
class Typed:
    """A row with the types of its columns; the next operator's input."""

    row: Row
    kinds: Kinds

    def made(self, values: dict[str, Any], kinds: Kinds, **changes: Any) -> Typed:
        """A row that descends from this one."""
        return Typed(dataclasses.replace(self.row, values=values, **changes), kinds)


class Oracle:
    """One run of a pipeline: ``elements`` are what a user gets, ``typed`` rows know their ids."""

    def __init__(self, node: Node, *, epoch: int = 0, seed: int = 0) -> None:
        self.node, self.epoch, self.seed = node, epoch, seed
        self.tables: dict[int, Table] = {}
        self.settled: dict[int, Kinds] = {}
        self.exprs: dict[tuple[int, int], tuple[Kinds, Any]] = {}

    def elements(self) -> Iterator[dict[str, Any]]:
        """Batches (dicts of arrays) or rows (dicts), in order; errors come at their place."""
        for element in self.stream(self.node, self.epoch):
            if isinstance(element, list):
                yield arrays([t.row.values for t in element], element[0].kinds, keep=False)
            else:
                yield dict(element.row.values)

    def ids(self) -> Iterator[tuple[int, int]]:
        """The ids of all rows, in order, batched or not."""
        for element in self.stream(self.node, self.epoch):
            for one in element if isinstance(element, list) else [element]:
                yield one.row.id

    def stream(self, node: Node, epoch: int, units: list[Any] | None = None) -> Iterator[Any]:
        """What flows out of ``node``; ``units`` are the source's units to read, in that order."""
        if isinstance(node, Source):
            yield from self._read(node, units)
            return
        yield from STREAMS[type(node)](self, node, epoch, units)

    def _read(self, node: Source, units: list[Any] | None) -> Iterator[Typed]:
        table = self._table(node)
        if units is None:
            yield from (Typed(row, table.kinds) for row in table.rows)
            return
        for unit in units:  # or a single atom
            for row in table.rows:
                if unit in (row.unit, ("atom", row.atom)):
                    yield Typed(row, table.kinds)

    def _table(self, source: Node) -> Table:
        if id(source) not in self.tables:
            self.tables[id(source)] = table_of(source)
        return self.tables[id(source)]

    # ------------------------------------------------------------------------- columns, filters

    def columns(self, node: Any, epoch: int, units: list[Any] | None) -> Iterator[Any]:
        """select, drop, rename, with_columns, cast, fill_null: every row's columns anew."""
        for element in self.stream(node.input, epoch, units):
            if isinstance(element, list):
                yield [self._computed(node, one, epoch) for one in element]
            else:
                yield self._computed(node, element, epoch)

    def _computed(self, node: Node, one: Typed, epoch: int) -> Typed:
        exprs, kinds = self._exprs(node, one.kinds)
        values = {}
        for place, (name, expr) in enumerate(exprs.items()):
            draws = Draws(ordinal(node), place, epoch, self.seed)
            values[name] = value_of(expr, one.row.values, one.row.id, draws)
        return one.made(values, kinds)

    def _exprs(self, node: Any, given: Kinds) -> tuple[dict[str, Expr], Kinds]:
        """The output columns of ``node`` over these input columns, and their types."""
        key = (id(node), id(given))
        if key not in self.exprs:
            exprs = {name: typed(v, given) for name, v in columns_written(node, given).items()}
            kinds = {name: expr.kind for name, expr in exprs.items()}
            self.exprs[key] = (given, (exprs, kinds))
        found: tuple[dict[str, Expr], Kinds] = self.exprs[key][1]
        return found

    def filter(self, node: Filter, epoch: int, units: list[Any] | None) -> Iterator[Any]:
        """Rows (or rows of batches) where the predicate is true; batches without rows vanish."""
        for element in self.stream(node.input, epoch, units):
            if isinstance(element, list):
                kept = [one for one in element if self._passes(node, one, epoch)]
                if kept:
                    yield kept
            elif self._passes(node, element, epoch):
                yield element

    def _passes(self, node: Filter, one: Typed, epoch: int) -> bool:
        key = (id(node), id(one.kinds))
        if key not in self.exprs:
            expr = typed(node.predicate, one.kinds)
            if expr.kind not in (pa.bool_(), pa.null()):
                raise SchemaError(f"{node.predicate!r} is {expr.kind}, no boolean")
            self.exprs[key] = (one.kinds, expr)
        draws = Draws(ordinal(node), 0, epoch, self.seed)
        return value_of(self.exprs[key][1], one.row.values, one.row.id, draws) is True

    # -------------------------------------------------------------------------------- functions

    def filter_rows(self, node: FilterRows, epoch: int, units: list[Any] | None) -> Iterator[Typed]:
        """Rows for which the function returns something true."""
        for one in self.stream(node.input, epoch, units):
            if called(node.fn.call, seen(one)):
                yield one

    def map_rows(self, node: Any, epoch: int, units: list[Any] | None) -> Iterator[Typed]:
        """Map and random_map: what the function returns for each row."""

        def children(one: Typed) -> Iterator[tuple[Typed, Any]]:
            arguments = [seen(one)]
            if isinstance(node, RandomMap):
                arguments.append(self._generator(node, one.row.id, epoch))
            yield one, called(node.fn.call, *arguments)

        yield from self._returned(node, epoch, units, children)

    def _generator(self, node: RandomMap, row_id: tuple[int, int], epoch: int) -> Any:
        seed = self.seed if node.seed is None else node.seed
        key = scalar_ids.row_key(*row_id, seed, ordinal(node), epoch)
        second = scalar_ids.mix64(key ^ 0x9E3779B97F4A7C15)
        philox = np.random.Philox(key=np.array([key, second], dtype=np.uint64), counter=0)
        return np.random.Generator(philox)

    def flat_map(self, node: FlatMap, epoch: int, units: list[Any] | None) -> Iterator[Typed]:
        """Every row that the function yields for each row, with ids of their own."""
        made = CHILD + level(node)

        def children(one: Typed) -> Iterator[tuple[Typed, Any]]:
            for number, child in enumerate(called_many(node.fn.call, seen(one))):
                row = dataclasses.replace(one.row, id=scalar_ids.derive(*one.row.id, made, number))
                yield Typed(row, one.kinds), child

        yield from self._returned(node, epoch, units, children)

    def _returned(
        self,
        node: Any,
        epoch: int,
        units: list[Any] | None,
        children: Callable[[Typed], Iterator[tuple[Typed, Any]]],
    ) -> Iterator[Typed]:
        """Returned rows in settled types; errors after the rows before them."""
        rows = self.stream(node.input, epoch, units)
        for group in grouped(rows, mixed=shuffled(node.input)):
            made: list[tuple[Typed, Any]] = []
            error: DmlError | None = None
            try:
                for one in group.rows:
                    made.extend(children(one))  # keeps what came before an error
            except DmlError as raised:
                error = raised
            for number, (values, kinds) in enumerate(self._rows(node, made)):
                atom = (made[number][0].row.atom, number // CHILDREN)
                yield made[number][0].made(values, kinds, atom=atom)
            if error or group.error:
                raise error or group.error  # type: ignore[misc]

    def _rows(self, node: Any, made: list[tuple[Typed, Any]]) -> Iterator[tuple[Any, Kinds]]:
        """Returned rows in their types: those before one that does not fit, then its error."""
        fit, error = self._fitting(node, [returned for _, returned in made])
        yield from ((values, self.settled[id(node)]) for values in fit)
        if error is not None:
            raise error

    def _fitting(self, node: Any, returned: list[Any]) -> tuple[list[Any], UDFError | None]:
        """The rows before the first that does not fit, typed by what they settle, and its error."""
        if not returned:
            return [], None
        kinds = self.settled.get(id(node)) or _declared(node)
        fit: list[Any] = []
        try:
            kinds = kinds or settled(returned[:CHILDREN], node.schema)
            fit.extend(fitted(row, kinds) for row in returned)  # keeps those before an error
        except UDFError as error:
            return self._fitting(node, returned[: len(fit)])[0], error
        self.settled[id(node)] = kinds
        return fit, None

    def map_batch(self, node: MapBatch, epoch: int, units: list[Any] | None) -> Iterator[Any]:
        """What the function makes of each batch's dict of arrays."""
        for batch in self.stream(node.input, epoch, units):
            if made := self._batch(node, batch, BATCH_CHILD):
                yield made

    def map_batches(self, node: MapBatches, epoch: int, units: list[Any] | None) -> Iterator[Typed]:
        """What the function makes of each group; one with a row that raises is not called."""
        number = 0
        for rows in self._atoms(node, epoch, units):
            while group := list(islice(rows, node.batch_size)):
                for one in self._batch(node, group, GROUP_CHILD + level(node)):
                    yield one.made(one.row.values, one.kinds, atom=number)
                number += 1

    def _atoms(self, node: MapBatches, epoch: int, units: list[Any] | None) -> Iterator[Any]:
        """The rows that reach ``node``, atom by atom."""
        if node.counted:
            rows = self.stream(node.input, epoch, units)
            while first := list(islice(rows, 1)):
                yield chain(first, islice(rows, (node.batch_size or RUN) - 1))
            return
        source = self.stream(node.chain()[0], epoch, units)
        for atom in dict.fromkeys(one.row.atom for one in source):
            yield self.stream(node.input, epoch, [("atom", atom)])

    def _batch(self, node: Any, batch: list[Typed], key: int) -> list[Typed]:
        """The rows of the batch that the function makes of one."""
        given = batch_seen(node, [one.row.values for one in batch], batch[0].kinds)
        n, found, rows = columns_of(called(node.fn.call, given))
        if not n:
            return []
        kinds = self.settled.setdefault(id(node), _declared(node) or found)
        rows = rows if found == kinds else as_settled(kinds, found, rows)
        if n == len(batch):
            return [one.made(values, kinds) for one, values in zip(batch, rows, strict=True)]
        hi, lo = batch[0].row.id
        made = [scalar_ids.derive(hi, lo, key, i) for i in range(n)]
        return [batch[0].made(rows[i], kinds, id=made[i]) for i in range(n)]

    # -------------------------------------------------------------------- positions and passes

    def take(self, node: Take, epoch: int, units: list[Any] | None) -> Iterator[Any]:
        """The first elements."""
        yield from islice(self.stream(node.input, epoch, units), node.n)

    def skip(self, node: Skip, epoch: int, units: list[Any] | None) -> Iterator[Any]:
        """All but the first elements."""
        yield from islice(self.stream(node.input, epoch, units), node.n, None)

    def batch(self, node: Batch, epoch: int, units: list[Any] | None) -> Iterator[list[Typed]]:
        """Runs of n rows; a shorter last one only if that is wanted."""
        rows = self.stream(node.input, epoch, units)
        while batch := list(islice(rows, node.n)):
            if len(batch) == node.n or not node.drop_last:
                yield batch

    def repeat(self, node: Repeat, epoch: int, units: list[Any] | None) -> Iterator[Any]:
        """Pass after pass: pass p of epoch k is epoch k * n + p of the input."""
        each = ENDLESS if node.n is None else node.n
        turn = 0
        while turn < each:
            empty = True
            for element in self.stream(node.input, epoch * each + turn, units):
                empty = False
                yield self._again(element, node, turn)
            if empty and node.n is None:
                return
            turn += 1

    def _again(self, element: Any, node: Repeat, turn: int) -> Any:
        if isinstance(element, list):
            return [self._again(one, node, turn) for one in element]
        hi, lo = element.row.id
        made = scalar_ids.derive(hi, lo, PASS + level(node), turn)
        atom = (turn, element.row.atom)
        return element.made(element.row.values, element.kinds, id=made, atom=atom)

    # --------------------------------------------------------------------------------- shuffles

    def _key(self, node: Any, row_id: tuple[int, int], epoch: int) -> int:
        seed = self.seed if node.seed is None else node.seed
        ruling = epoch if node.fresh else 0
        return scalar_ids.row_key(*row_id, seed, ordinal(node), ruling)

    def shuffle_window(
        self, node: ShuffleWindow, epoch: int, units: list[Any] | None
    ) -> Iterator[Any]:
        """Every run of n elements in the order of its own permutation."""
        elements = self.stream(node.input, epoch, units)
        number = 0
        while window := list(islice(elements, node.n)):
            order = scalar_ids.window_permutation(self._key(node, (number, 0), epoch), len(window))
            yield from (window[i] for i in order)
            number += 1

    def shuffle_all(self, node: ShuffleAll, epoch: int, units: list[Any] | None) -> Iterator[Typed]:
        """All rows: by rank of their position in one source, otherwise by hash of their ids."""
        rows = list(self.stream(node.input, epoch, units))
        source = one_source(node.input)
        if source is None:
            rows.sort(key=lambda one: (self._key(node, one.row.id, epoch), one.row.id))
        else:
            n, key = len(self._table(source).rows), self._key(node, (WHOLE, 0), epoch)
            rank = {position: place for place, position in enumerate(permutation(n, key))}
            rows.sort(key=lambda one: rank[one.row.position])
        yield from rows

    def shuffle_atoms(
        self, node: ShuffleAtoms, epoch: int, units: list[Any] | None
    ) -> Iterator[Typed]:
        """Pieces in permuted order, the rows of ``size`` pieces at a time by hash of their ids."""
        n = self._table(node.chain()[0]).units
        key = self._key(node, (PIECES, 0), epoch)
        order = permutation(n, key)
        for start in range(0, n, node.size):
            rows = list(self.stream(node.input, epoch, order[start : start + node.size]))
            rows.sort(key=lambda one: (self._key(node, one.row.id, epoch), one.row.id))
            yield from rows


STREAMS: dict[type, Callable[..., Iterator[Any]]] = {
    **dict.fromkeys(COLUMNS, Oracle.columns),
    Filter: Oracle.filter,
    FilterRows: Oracle.filter_rows,
    MapRows: Oracle.map_rows,
    RandomMap: Oracle.map_rows,
    FlatMap: Oracle.flat_map,
    MapBatch: Oracle.map_batch,
    MapBatches: Oracle.map_batches,
    Take: Oracle.take,
    Skip: Oracle.skip,
    Batch: Oracle.batch,
    Repeat: Oracle.repeat,
    ShuffleWindow: Oracle.shuffle_window,
    ShuffleAll: Oracle.shuffle_all,
    ShuffleAtoms: Oracle.shuffle_atoms,
}


def _declared(node: Any) -> Kinds | None:
    return None if node.declared is None else dict(node.declared)
