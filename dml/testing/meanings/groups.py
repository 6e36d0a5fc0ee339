"""The oracle computes ``batch``, and calls functions of batches and of groups of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from dml.ops.batch.batch import Batch
from dml.ops.batch.map_batch import MapBatch
from dml.ops.row.map_batches import MapBatches
from dml.testing import row_functions
from dml.testing.draws import Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units
from dml.testing.oracle_arrays import are_wide, as_settled, as_wide, batch_seen, columns_of
from dml.testing.oracle_steps import declared, spared
from dml.testing.scalars import ids as scalar_ids

BATCH_CHILD = int.from_bytes(b"map_batc", "big")
GROUP_CHILD = int.from_bytes(b"map_grou", "big")
# Rows of a group if no batch size is given.
GROUP = 1024


def map_batch(oracle: OracleRun, node: MapBatch, epoch: int, units: Units) -> Iterator[Any]:
    """Call the function with each batch's dict of arrays."""
    for batch in oracle.stream(node.input, epoch, units):
        if made := made_of_batch(oracle, node, batch, BATCH_CHILD):
            yield made


def map_batches(
    oracle: OracleRun, node: MapBatches, epoch: int, units: Units
) -> Iterator[TypedRow]:
    """Call the function for each group, except for a group with a row that raises."""
    number = 0
    for rows in _atoms(oracle, node, epoch, units):
        while group := list(islice(rows, node.batch_size or GROUP)):
            for made in _made_of_group(oracle, node, group):
                for one in made:
                    yield one.made(one.row.values, one.kinds, atom=number)
                number += 1


def _atoms(oracle: OracleRun, node: MapBatches, epoch: int, units: Units) -> Iterator[Any]:
    """Yield the rows that reach ``node``, atom by atom."""
    if node.counted:
        rows = oracle.stream(node.input, epoch, units)
        while first := list(islice(rows, 1)):
            yield chain(first, islice(rows, (node.batch_size or GROUP) - 1))
        return
    oracle.settle(node.input, epoch, units)
    source = oracle.stream(node.chain()[0], epoch, units)
    for atom in dict.fromkeys(one.row.atom for one in source):
        yield oracle.stream(node.input, epoch, [("atom", atom)])


def _made_of_group(
    oracle: OracleRun, node: MapBatches, group: list[TypedRow]
) -> Iterator[list[TypedRow]]:
    """Yield the batches that the function makes of a group: a single batch or an iterator's."""
    key, hi, lo = GROUP_CHILD + oracle.level(node), *group[0].row.id
    returned = spared(node, node.fn.call, _given(node, group))
    if not returned or not isinstance(returned[0], Iterator):
        yield from (_rows_of(oracle, node, group, made, key) for made in returned)
        return
    number, end = 0, object()
    while (batch := spared(node, next, returned[0], end)) and batch[0] is not end:
        made = _rows_of(oracle, node, group, batch[0], key)
        ids = [scalar_ids.derive(hi, lo, key, number + i) for i in range(len(made))]
        number += len(made)
        yield [
            group[0].made(one.row.values, one.kinds, id=i) for one, i in zip(made, ids, strict=True)
        ]


def made_of_batch(
    oracle: OracleRun,
    node: Any,
    batch: list[TypedRow],
    key: int,
    shaped: Callable[[Any], Any] = lambda returned: returned,
) -> list[TypedRow]:
    """Return the rows that the function makes of one batch."""
    made = spared(node, node.fn.call, _given(node, batch))
    return _rows_of(oracle, node, batch, shaped(made[0]), key) if made else []


def _given(node: Any, batch: list[TypedRow]) -> Any:
    return batch_seen(node, [one.row.values for one in batch], batch[0].kinds)


def _rows_of(
    oracle: OracleRun, node: Any, batch: list[TypedRow], made: Any, key: int
) -> list[TypedRow]:
    """Return the rows of a function's result; as many rows as in the batch keep their ids."""
    n, found, rows = columns_of(made)
    if not n:
        return []
    wide = isinstance(node, MapBatch) and are_wide(batch[0].kinds)
    first = as_wide(found) if wide else found
    kinds = oracle.settled.setdefault(id(node), declared(node) or first)
    rows = rows if found == kinds else as_settled(kinds, found, rows)
    if n == len(batch):
        return [one.made(values, kinds) for one, values in zip(batch, rows, strict=True)]
    hi, lo = batch[0].row.id
    ids = [scalar_ids.derive(hi, lo, key, i) for i in range(n)]
    return [batch[0].made(rows[i], kinds, id=ids[i]) for i in range(n)]


def batch(oracle: OracleRun, node: Batch, epoch: int, units: Units) -> Iterator[list[TypedRow]]:
    """Yield runs of n rows; ``drop_last`` drops a shorter last run."""
    rows = oracle.stream(node.input, epoch, units)
    while batch := list(islice(rows, node.n)):
        if len(batch) == node.n or not node.drop_last:
            yield batch


def _draw_map_batch(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    fn, kinds = row_functions.batch_function(draw, drawn.kinds)
    skips = draw.random() < 0.3
    fn = row_functions.losing_groups(draw, fn) if skips else fn
    drawn.then(drawn.dataset.map(fn, on_error="skip" if skips else "raise"), kinds)
    return None


def _draw_map_batches(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    rough = drawn.rough and draw.random() < 0.5
    fn, kinds, form = row_functions.group_function(draw, drawn.kinds, rough=rough)
    size = draw.choice([None, None, 1, 2, 5, 40])
    declared = kinds if draw.random() < 0.3 else None
    how = "skip" if draw.random() < 0.3 else "raise"
    fn = row_functions.losing_groups(draw, fn) if how == "skip" else fn
    breaks = how == "skip" or rough
    fn = row_functions.in_parts(draw, fn, breaks=breaks) if draw.random() < 0.3 else fn
    made = drawn.dataset.map_batches(
        fn, batch_size=size, batch_format=form, schema=declared, on_error=how
    )
    drawn.then(made, kinds)
    return None


def _draw_batch(draw: Draw, drawn: Drawn) -> None:
    drawn.then(drawn.dataset.batch(draw.choice([1, 2, 3, 7, 32]), drop_last=draw.random() < 0.3))
    drawn.batched = True


MEANINGS = (
    OperatorMeaning(
        MapBatch, map_batch, (OperatorUse("map_batch", _draw_map_batch, rows=0, batches=2),)
    ),
    OperatorMeaning(
        MapBatches, map_batches, (OperatorUse("map_batches", _draw_map_batches),), makes_ids=True
    ),
    OperatorMeaning(Batch, batch, (OperatorUse("batch", _draw_batch),)),
)
