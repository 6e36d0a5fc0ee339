"""The oracle computes groups of sorted rows: aggregates, first rows, batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data import list_marks
from dml.errors import CastError, SchemaError
from dml.expr.columns.column import Column, col
from dml.expr.columns.column import rows as counted
from dml.ops.group.aggregate import Aggregate
from dml.ops.group.key_runs import FirstOfRun, RunBatches
from dml.ops.group.map_group import MapGroup
from dml.testing import row_functions
from dml.testing.draws import Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units
from dml.testing.meanings.groups import made_of_batch
from dml.testing.meanings.sorting import able, between, odd, orderable
from dml.testing.oracle_sources import OracleRow
from dml.testing.oracle_types import code, shape
from dml.testing.scalars import ids

FIGURES = int.from_bytes(b"aggregat", "big")
GROUP = int.from_bytes(b"mapgroup", "big")
DIGITS = 60

Values = list[Any]


def aggregate(oracle: OracleRun, node: Aggregate, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Yield a row for each run of rows with equal keys; without keys, one row for all rows."""
    runs = _runs(oracle, node, node.keys, epoch, units)
    key = FIGURES + oracle.level(node)
    first = None
    for rows in runs:
        first = rows[0]
        values, kinds = _figures(node, rows, first.kinds)
        yield first.made(values, kinds, id=ids.derive(*first.row.id, key, 0))
    if first is None and not node.keys:
        given = node.input.schema
        nulls = dict.fromkeys(sorted(node.looks_at), pa.null())
        values, kinds = _figures(node, [], dict(given) if given.known else nulls)
        yield TypedRow(OracleRow((key, 0), values), kinds)


def first_of_run(
    oracle: OracleRun, node: FirstOfRun, epoch: int, units: Units
) -> Iterator[TypedRow]:
    """Yield the first row of each run."""
    for rows in _runs(oracle, node, node.keys, epoch, units):
        yield rows[0]


def run_batches(oracle: OracleRun, node: RunBatches, epoch: int, units: Units) -> Iterator[Any]:
    """Yield each run as a batch."""
    yield from _runs(oracle, node, node.keys, epoch, units)


def map_group(oracle: OracleRun, node: MapGroup, epoch: int, units: Units) -> Iterator[Any]:
    """Call the function for each batch; a result of single values is one row."""
    for batch in oracle.stream(node.input, epoch, units):
        if made := made_of_batch(oracle, node, batch, GROUP, _shaped):
            yield made


def _shaped(returned: Any) -> Any:
    if isinstance(returned, dict) and returned and all(map(_single, returned.values())):
        return {name: [value] for name, value in returned.items()}
    return returned


def _single(value: Any) -> bool:
    return not (isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim))


def _runs(
    oracle: OracleRun, node: Any, keys: tuple[str, ...], epoch: int, units: Units
) -> Iterator[list[TypedRow]]:
    run: list[TypedRow] = []
    for one in oracle.stream(node.input, epoch, units):
        if not run:
            able(one, keys)
        same = all(
            between(run[0].row.values[name], one.row.values[name]) == 0 for name in keys if run
        )
        if run and not same:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _figures(
    node: Aggregate, rows: list[TypedRow], given: dict[str, pa.DataType]
) -> tuple[dict[str, Any], dict[str, pa.DataType]]:
    values: dict[str, Any] = {}
    kinds: dict[str, pa.DataType] = {}
    for name in node.keys:
        value = rows[0].row.values[name]
        values[name] = 0.0 if isinstance(value, float) and value == 0 else value
        kinds[name] = given[name]
    for name, op, column, params in node.parts:
        kind = pa.null() if column is None else given[column]
        kinds[name] = _kind(op, kind)
        if column is None:
            values[name] = len(rows)
        else:
            all_values = [one.row.values[column] for one in rows]
            values[name] = _value(op, all_values, kind, params)
    return values, kinds


def _kind(op: str, kind: pa.DataType) -> pa.DataType:
    """Return the type of an aggregate; SchemaError where there is none."""
    numeric = code(kind) != "arrow" or pa.types.is_null(kind) or pa.types.is_float16(kind)
    ordered = not shape(kind) and not pa.types.is_nested(list_marks.plain(kind))
    single = not shape(kind) and kind == list_marks.plain(kind)
    fits = {
        **dict.fromkeys(("sum", "mean", "std", "var"), numeric and not shape(kind)),
        **dict.fromkeys(("min", "max", "n_unique"), ordered),
        **dict.fromkeys(("any", "all"), kind in (pa.bool_(), pa.null())),
        **dict.fromkeys(("first", "last", "implode"), single),
    }
    if not fits.get(op, True):
        raise SchemaError(f"{op} of {kind}")
    if op == "sum":
        if pa.types.is_floating(kind):
            return pa.float64()
        return pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()
    known = {
        **dict.fromkeys(("mean", "std", "var"), pa.float64()),
        **dict.fromkeys(("any", "all"), pa.bool_()),
        **dict.fromkeys(("len", "count", "n_unique"), pa.int64()),
        "implode": pa.list_(kind),
    }
    return known.get(op, kind)


def _value(op: str, values: Values, kind: pa.DataType, params: tuple[Any, ...]) -> Any:
    present = [value for value in values if value is not None]
    if op == "implode":
        return values
    if op in ("sum", "mean", "std", "var"):
        return _number(op, present, kind, params)
    return PLAIN[op](present)


def _number(op: str, values: Values, kind: pa.DataType, params: tuple[Any, ...]) -> Any:
    n = len(values)
    if op == "sum" and not pa.types.is_floating(kind):
        total = sum(int(value) for value in values)
        low, high = (0, 2**64) if pa.types.is_unsigned_integer(kind) else (-(2**63), 2**63)
        if not low <= total < high:
            raise CastError(f"{total} does not fit")
        return total
    if n <= (params[0] if params else 0) and op != "sum":
        return None
    odd_ = [value for value in values if not math.isfinite(value)]
    if odd_:
        return math.nan if op in ("std", "var") else sum(odd_)
    exact = [Fraction(value) for value in values]
    if op in ("sum", "mean"):
        return _rounded(sum(exact, Fraction(0)) / (1 if op == "sum" else n))
    mean = sum(exact, Fraction(0)) / n
    spread = sum(((value - mean) ** 2 for value in exact), Fraction(0)) / (n - params[0])
    if op == "var":
        return _rounded(spread)
    with localcontext(prec=DIGITS):
        return float((Decimal(spread.numerator) / Decimal(spread.denominator)).sqrt())


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _end(values: Values, *, least: bool) -> Any:
    """Return the minimum or maximum: NaN if a value is NaN; -0.0 is less than 0.0."""
    if any(map(odd, values)):
        return math.nan

    def compared(a: Any, b: Any) -> int:
        found = between(a, b)
        if found or not isinstance(a, float):
            return found
        return int(math.copysign(1, a) - math.copysign(1, b))

    ordered = sorted(values, key=cmp_to_key(compared))
    return ordered[0 if least else -1] if ordered else None


def _different(values: Values) -> int:
    found: Values = []
    for value in values:
        if not any(between(value, other) == 0 for other in found):
            found.append(value)
    return len(found)


PLAIN: dict[str, Callable[[Values], Any]] = {
    "count": len,
    "n_unique": _different,
    "min": lambda values: _end(values, least=True),
    "max": lambda values: _end(values, least=False),
    "any": any,
    "all": all,
    "first": lambda values: values[0] if values else None,
    "last": lambda values: values[-1] if values else None,
}


# ---------------------------------------------------------------------------------------- draws


def _figure(draw: Draw, drawn: Drawn) -> Column:
    name = draw.choice(sorted(drawn.kinds))
    value = col(name) if draw.random() < 0.8 else drawn.expressions(draw).any(2)
    ops = ["count", "first", "last", "min", "max", "n_unique", "implode"]
    if draw.random() < 0.6:
        ops = ["sum", "mean", "std", "var", "any", "all"]
    op = draw.choice(ops)
    return getattr(value, op)(*([draw.choice([0, 1, 2])] if op in ("std", "var") else []))  # type: ignore[no-any-return]


def _kinds_of(made: Any, drawn: Drawn) -> None:
    """Continue with ``made`` if its schema is known."""
    if made.schema.known:
        drawn.then(made)


def _draw_agg(draw: Draw, drawn: Drawn) -> Any:
    names = orderable(drawn)
    if not drawn.dataset.schema.known or not names:
        return False
    keys = draw.sample(names, min(len(names), draw.choice([0, 1, 1, 1, 2])))
    figures = {f"z{i}": _figure(draw, drawn) for i in range(draw.choice([1, 2, 3]))}
    figures["n"] = counted() + 0 if draw.random() < 0.3 else counted()
    figures = {name: figure for name, figure in figures.items() if name not in keys}
    if not keys:
        _kinds_of(drawn.dataset.agg(**figures), drawn)
    elif draw.random() < 0.2:
        key = drawn.expressions(draw).any(2)
        _kinds_of(drawn.dataset.group_by(k=key).agg(**figures), drawn)
    else:
        _kinds_of(drawn.dataset.group_by(*keys).agg(**figures), drawn)
    return None


def _draw_drop_duplicates(draw: Draw, drawn: Drawn) -> Any:
    names = orderable(drawn)
    if not names:
        return False
    subset = draw.sample(names, min(len(names), draw.choice([1, 1, 2])))
    drawn.then(drawn.dataset.drop_duplicates(subset))
    return None


def _draw_map_groups(draw: Draw, drawn: Drawn) -> Any:
    names = orderable(drawn)
    if not drawn.functional or not names:
        return False
    fn, kinds = row_functions.batch_function(draw, drawn.kinds)
    drawn.then(drawn.dataset.group_by(draw.choice(names)).map_groups(fn), kinds)
    return None


def _draw_summaries(draw: Draw, drawn: Drawn) -> Any:
    names = orderable(drawn)
    if not drawn.functional or not names:
        return False
    made = drawn.dataset.group_by(draw.choice(names)).map_groups(_summary)
    drawn.then(made, {"n": pa.int64(), "f": pa.float64()})
    return None


def _summary(group: dict[str, np.ndarray]) -> dict[str, Any]:
    """Summarize a group in one row."""
    return {"n": len(group["n"]), "f": float(len(group["f"])) / 2}


MEANINGS = (
    OperatorMeaning(Aggregate, aggregate, (OperatorUse("agg", _draw_agg, rows=2),), makes_ids=True),
    OperatorMeaning(
        FirstOfRun, first_of_run, (OperatorUse("drop_duplicates", _draw_drop_duplicates),)
    ),
    OperatorMeaning(RunBatches, run_batches, (OperatorUse("map_groups", _draw_map_groups),)),
    OperatorMeaning(MapGroup, map_group, (OperatorUse("summaries_of_groups", _draw_summaries),)),
)
