"""The oracle calls functions of rows, one call a row; the first results determine the types."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dml.api.verbs.functions import udf
from dml.errors import DmlError, UDFError
from dml.expr.columns.column import col
from dml.ops.row.apply import Apply
from dml.ops.row.filter_rows import FilterRows
from dml.ops.row.flat_map import FlatMap
from dml.ops.row.map_rows import MapRows
from dml.ops.row.random_map import RandomMap
from dml.ops.row.resample import Resample
from dml.ops.row.scan import Scan
from dml.testing import row_functions
from dml.testing.draws import GROWTH, Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units, always
from dml.testing.oracle_inference import enough, first
from dml.testing.oracle_rows import fitted, settled
from dml.testing.oracle_steps import called, called_many, declared, seen, spared
from dml.testing.scalars import ids
from dml.udfs.calling.scan_state import of_json

CHILD = int.from_bytes(b"flat_map", "big")


def filter_rows(
    oracle: OracleRun, node: FilterRows, epoch: int, units: Units
) -> Iterator[TypedRow]:
    """Yield rows for which the function returns a true value."""
    for one in oracle.stream(node.input, epoch, units):
        if any(spared(node, lambda row: bool(node.fn.call(row)), seen(one, node.fn))):
            yield one


def resample(oracle: OracleRun, node: Resample, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Yield rows whose random draw is below the share of the class that the function returns."""
    seed = oracle.seed if node.seed is None else node.seed
    for one in oracle.stream(node.input, epoch, units):
        row = seen(one, node.fn)
        share = called(lambda row: dict(node.shares).get(node.fn.call(row), 0.0), row)
        high, low = one.row.id
        key = ids.row_key(high, low, seed, oracle.ordinal(node), epoch)
        if ids.uniform(key) < share:
            yield one


def map_rows(oracle: OracleRun, node: Any, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Call the function of ``map`` or ``random_map`` for each row."""

    def children(one: TypedRow) -> Iterator[tuple[TypedRow, Any]]:
        arguments = [seen(one, node.fn)]
        if isinstance(node, RandomMap):
            arguments.append(_generator(oracle, node, one.row.id, epoch))
        for made in spared(node, node.fn.call, *arguments):
            yield one, made

    yield from _returned(oracle, node, epoch, units, children)


def _generator(oracle: OracleRun, node: RandomMap, row_id: tuple[int, int], epoch: int) -> Any:
    seed = oracle.seed if node.seed is None else node.seed
    key = ids.row_key(*row_id, seed, oracle.ordinal(node), epoch)
    second = ids.mix64(key ^ 0x9E3779B97F4A7C15)
    philox = np.random.Philox(key=np.array([key, second], dtype=np.uint64), counter=0)
    return np.random.Generator(philox)


def scan(oracle: OracleRun, node: Scan, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Call the function with the state so far and each row."""
    state = [of_json(json.loads(node.initial))]

    def children(one: TypedRow) -> Iterator[tuple[TypedRow, Any]]:
        made = called(node.fn.call, copy.deepcopy(state[0]), seen(one))
        if not isinstance(made, tuple) or len(made) != 2:
            raise UDFError(f"{made!r} is no pair")
        state[0] = copy.deepcopy(made[0])
        if not carried(state[0]):
            raise UDFError(f"{made[0]!r} cannot be carried")
        yield one, copy.deepcopy(made[1])

    yield from _returned(oracle, node, epoch, units, children)


def carried(state: Any) -> bool:
    """True for a valid state, among those that random pipelines make."""
    if isinstance(state, list | tuple):
        return all(map(carried, state))
    if isinstance(state, dict):
        return all(isinstance(key, str) and carried(value) for key, value in state.items())
    return state is None or isinstance(state, int | float | str | bytes | np.ndarray | np.generic)


def flat_map(oracle: OracleRun, node: FlatMap, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Yield every row that the function yields for each row, with new ids."""
    made = CHILD + oracle.level(node)

    def children(one: TypedRow) -> Iterator[tuple[TypedRow, Any]]:
        try:
            for number, child in enumerate(called_many(node.fn.call, seen(one, node.fn))):
                row = dataclasses.replace(one.row, id=ids.derive(*one.row.id, made, number))
                yield TypedRow(row, one.kinds), child
        except UDFError:
            if node.on_error != "skip":
                raise

    yield from _returned(oracle, node, epoch, units, children)


def _returned(
    oracle: OracleRun,
    node: Any,
    epoch: int,
    units: Units,
    children: Callable[[TypedRow], Iterator[tuple[TypedRow, Any]]],
) -> Iterator[TypedRow]:
    """Yield returned rows in their inferred types; an error follows the rows before it."""
    rows = oracle.stream(node.input, epoch, units)
    made: list[tuple[TypedRow, Any]] = []
    ends: list[int] = []
    error: DmlError | None = None
    if id(node) not in oracle.settled and declared(node) is None:
        try:
            for one in rows:
                made.extend(children(one))  # keeps what came before an error
                ends.append(len(made))
                if enough([returned for _, returned in made], ends):
                    break
        except DmlError as raised:
            error = raised
    yield from _rows(oracle, node, made, first([returned for _, returned in made]))
    if error is not None:
        raise error
    for one in rows:
        for parent, returned in children(one):
            yield from _rows(oracle, node, [(parent, returned)], 1)


def _rows(
    oracle: OracleRun, node: Any, made: list[tuple[TypedRow, Any]], settling: int
) -> Iterator[TypedRow]:
    """Yield the typed rows before the first that does not fit, then raise its error."""
    fit, error = _fitting(oracle, node, [returned for _, returned in made], settling)
    for (parent, _), values in zip(made, fit, strict=False):
        yield parent.made(values, oracle.settled[id(node)])
    if error is not None:
        raise error


def _fitting(
    oracle: OracleRun, node: Any, returned: list[Any], settling: int
) -> tuple[list[Any], UDFError | None]:
    """Return the typed rows before the first that does not fit, and the error of that row."""
    if not returned:
        return [], None
    kinds = oracle.settled.get(id(node)) or declared(node)
    fit: list[Any] = []
    try:
        kinds = kinds or settled(returned[:settling], node.schema)
    except UDFError as error:
        most = _alike(node, returned[:settling])
        return _fitting(oracle, node, returned[:most], most)[0], error
    try:
        fit.extend(fitted(row, kinds) for row in returned)  # keeps those before an error
    except UDFError as error:
        return _fitting(oracle, node, returned[: len(fit)], settling)[0], error
    oracle.settled[id(node)] = kinds
    return fit, None


def _alike(node: Any, returned: list[Any]) -> int:
    """Count the leading rows that have common types."""
    for count in range(1, len(returned) + 1):
        try:
            settled(returned[:count], node.schema)
        except UDFError:
            return count - 1
    return len(returned)


def apply(oracle: OracleRun, node: Apply, epoch: int, units: Units) -> Iterator[Any]:
    """Add a column with the function's result for some columns of each row."""

    def made(one: TypedRow) -> TypedRow:
        values = seen(one)
        found = {node.name: called(node.fn.call, *(values[name] for name in node.args))}
        added = fitted(found, {node.name: node.kind})
        kinds = {**one.kinds, node.name: node.kind}
        return one.made({**one.row.values, **added}, kinds)

    for element in oracle.stream(node.input, epoch, units):
        yield [made(one) for one in element] if isinstance(element, list) else made(element)


def _draw_apply(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    fn, kind = row_functions.value_function(draw, rough=drawn.rough and draw.random() < 0.5)
    function = udf(return_dtype=kind)(fn)
    value = function(col("n") + 1, "f")
    if pa.types.is_floating(kind) and draw.random() < 0.5:
        value = function("n", value) * 2  # a call on the result of the first call
    drawn.then(drawn.dataset.with_columns(g=value), {**drawn.kinds, "g": kind})
    return None


def _draw_filter_rows(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    drawn.then(drawn.dataset.filter(row_functions.keeping_function(draw)))
    return None


def _draw_skipping(draw: Draw, drawn: Drawn) -> Any:
    """Add a function that raises for some rows, which are skipped."""
    if not drawn.functional or drawn.growth >= GROWTH:
        return False
    ds, kinds, losing = drawn.dataset, drawn.kinds, row_functions.losing(draw)
    how = draw.choice(["map", "map", "lifted", "filter", "random_map", "flat_map"])
    if how == "map":
        fn, kinds = row_functions.row_function(draw, kinds, rough=False)
        made = ds.map(losing(fn), on_error="skip", schema=draw.choice([None, kinds]))
    elif how == "lifted":
        k = draw.choice([3, 13, 17])
        made = ds.map(lambda row: {**row, "n": row["n"] // (row["n"] - k)}, on_error="skip")
    elif how == "filter":
        made = ds.filter(losing(row_functions.keeping_function(draw)), on_error="skip")
    elif how == "random_map":
        fn, kinds = row_functions.random_function(draw, kinds)
        made = ds.random_map(losing(fn), on_error="skip")
    else:
        drawn.growth *= 2
        fn, kinds = row_functions.many_function(draw, kinds)
        made = ds.flat_map(row_functions.breaking(losing(fn)), on_error="skip")
    drawn.then(made, kinds)
    return None


def _draw_ignore_errors(_draw: Draw, drawn: Drawn) -> Any:
    if all(getattr(node, "on_error", "skip") == "skip" for node in drawn.dataset._node.walk()):  # noqa: SLF001 - what verbs made
        return False
    drawn.then(drawn.dataset.ignore_errors(), drawn.kinds)
    return None


def _draw_map(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    rough = drawn.rough and draw.random() < 0.5
    fn, kinds = row_functions.row_function(draw, drawn.kinds, rough=rough)
    declared = kinds if draw.random() < 0.3 else None
    drawn.then(drawn.dataset.map(fn, schema=declared), kinds)
    return None


def _draw_random_map(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    fn, kinds = row_functions.random_function(draw, drawn.kinds)
    drawn.then(drawn.dataset.random_map(fn, seed=draw.choice([None, 1])), kinds)
    return None


def _draw_resample(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    wrong = draw.choice([7, 13]) if drawn.rough else None
    fn = lambda row: [] if row["n"] == wrong else row["n"] % 3  # noqa: E731
    made = drawn.dataset.rejection_resample(
        fn, draw.choice([[1, 2, 3], {0: 1, 1: 1}]), [1, 1, 1], seed=draw.choice([None, 2])
    )
    drawn.then(made)
    return None


def _draw_scan(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    initial, fn, kinds = row_functions.scan_function(draw, drawn.kinds, rough=drawn.rough)
    declared = kinds if draw.random() < 0.3 else None
    drawn.then(drawn.dataset.scan(initial, fn, schema=declared), kinds)
    return None


def _draw_flat_map(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional or drawn.growth >= GROWTH:
        return False
    fn, kinds = row_functions.many_function(draw, drawn.kinds)
    drawn.growth *= 2
    drawn.then(drawn.dataset.flat_map(fn), kinds)
    return None


MEANINGS = (
    OperatorMeaning(Apply, apply, (OperatorUse("apply", _draw_apply, rows=1, batches=1),)),
    OperatorMeaning(FilterRows, filter_rows, (OperatorUse("filter_rows", _draw_filter_rows),)),
    OperatorMeaning(
        Resample, resample, (OperatorUse("rejection_resample", _draw_resample),), draws=always
    ),
    OperatorMeaning(
        MapRows,
        map_rows,
        (
            OperatorUse("map", _draw_map, rows=2),
            OperatorUse("on_error", _draw_skipping, rows=2),
            OperatorUse("ignore_errors", _draw_ignore_errors, batches=1),
        ),
    ),
    OperatorMeaning(
        RandomMap, map_rows, (OperatorUse("random_map", _draw_random_map),), draws=always
    ),
    OperatorMeaning(Scan, scan, (OperatorUse("scan", _draw_scan),), makes_ids=True),
    OperatorMeaning(FlatMap, flat_map, (OperatorUse("flat_map", _draw_flat_map),), makes_ids=True),
)
