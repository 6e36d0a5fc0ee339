"""The oracle computes ``join`` by comparing every pair of rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from dml.api.dataset import Dataset
from dml.errors import MatchError
from dml.expr.columns.value import Value, col
from dml.ops.join.join import HOWS, Join
from dml.testing.draws import GROWTH, Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units
from dml.testing.oracle_types import Expr, typed
from dml.testing.oracle_values import Draws, value_of
from dml.testing.scalars import ids
from dml.testing.strategies_data import memory

SIDES = int.from_bytes(b"join", "big")
NO_DRAWS = Draws(0, 0, 0, 0)
NO_ROW = (0, 0)
Row = dict[str, Any]


def joined(oracle: OracleRun, node: Join, epoch: int, _units: Units) -> Iterator[TypedRow]:
    """Match each left row in order with all right rows; unmatched right rows come last."""
    rights = list(oracle.stream(node.other, epoch))
    keys = _keys(node)
    seen: set[int] = set()
    for left in oracle.stream(node.input, epoch):
        found = [i for i, right in enumerate(rights) if _equal(node, keys, left, right)]
        _allowed(node, found, seen)
        seen.update(found)
        yield from _of_left(oracle, node, left, [rights[i] for i in found])
    if node.how in ("right", "outer"):
        for i, right in enumerate(rights):
            if i not in seen:
                yield _made(oracle, node, None, right)


def _of_left(
    oracle: OracleRun, node: Join, left: TypedRow, found: list[TypedRow]
) -> Iterator[TypedRow]:
    if node.how in ("semi", "anti"):
        if bool(found) == (node.how == "semi"):
            yield left
        return
    for right in found:
        yield _made(oracle, node, left, right)
    if not found and node.how in ("left", "outer"):
        yield _made(oracle, node, left, None)


def _allowed(node: Join, found: list[int], seen: set[int]) -> None:
    """Raise MatchError unless ``validate`` allows the matches; it names the left side first."""
    left, right = node.validate.split(":")
    if (right == "1" and len(found) > 1) or (left == "1" and seen & set(found)):
        raise MatchError("more matches than validate= allows")


def _keys(node: Join) -> list[Expr]:
    """Return the comparisons of keys, with both sides converted to their common type."""
    kinds = [node.input.schema, node.other.schema]
    pairs = zip(node.left_on, node.right_on, strict=True)
    both = [
        (Value("eq", (col("left"), col("right"))), {"left": kinds[0][a], "right": kinds[1][b]})
        for a, b in pairs
    ]
    return [typed(value, columns) for value, columns in both]


def _equal(node: Join, keys: list[Expr], left: TypedRow, right: TypedRow) -> bool:
    pairs = zip(node.left_on, node.right_on, keys, strict=True)
    return all(
        _alike(node, *_compared(key, left.row.values[a], right.row.values[b]))
        for a, b, key in pairs
    )


def _compared(key: Expr, left: Any, right: Any) -> list[Any]:
    row = {"left": left, "right": right}
    return [value_of(arg, row, NO_ROW, NO_DRAWS) for arg in key.args]


def _alike(node: Join, a: Any, b: Any) -> bool:
    if a is None or b is None:
        return node.nulls_equal and a is b
    return bool(a == b) or (_is_nan(a) and _is_nan(b))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _made(oracle: OracleRun, node: Join, left: TypedRow | None, right: TypedRow | None) -> TypedRow:
    """Return a row of both sides, or of one side and nulls; its id derives from both ids."""
    values: Row = {}
    kinds: dict[str, Any] = {}
    _left_columns(node, left, right, values, kinds)
    taken = set(node.input.schema)
    for name, kind in node.other.schema.items():
        if name not in node.right_on:
            made = name + node.suffix if name in taken else name
            values[made] = right.row.values[name] if right else None
            kinds[made] = kind
    base = left or right
    if base is None:
        raise ValueError("a row of nothing")
    row_id = ids.derive(*_id(left), *_id(right))
    what = 0 if left and right else 1 if left else 2
    row_id = ids.derive(*row_id, SIDES + oracle.level(node), what)
    return TypedRow(dataclasses.replace(base.row, id=row_id, values=values), kinds)


def _id(one: TypedRow | None) -> tuple[int, int]:
    return one.row.id if one else NO_ROW


def _left_columns(
    node: Join, left: TypedRow | None, right: TypedRow | None, values: Row, kinds: dict[str, Any]
) -> None:
    keys = dict(zip(node.left_on, zip(node.right_on, _keys(node), strict=True), strict=True))
    for name, kind in node.input.schema.items():
        values[name], kinds[name] = left.row.values[name] if left else None, kind
        if name in keys and node.how in ("right", "outer"):
            other, key = keys[name]
            theirs = right.row.values[other] if right else None
            mine, theirs = _compared(key, values[name], theirs)
            values[name], kinds[name] = mine if left else theirs, key.args[0].kind


def _draw_join(draw: Draw, drawn: Drawn) -> Any:
    """Join with other rows of the same pipeline, or with a separate table."""
    if drawn.growth >= GROWTH or drawn.batched:
        return False
    drawn.growth *= 2
    ds = drawn.dataset
    other = draw.choice([ds.take(9), ds.skip(3).take(9), ds.shuffle(seed=3).take(7), memory(draw)])
    how = draw.choice(HOWS)
    made = (
        ds.join(other.take(2), how="cross", suffix="_2")
        if how == "cross"
        else _by_keys(draw, ds, other, how)
    )
    if how in ("right", "outer") and drawn.functional:
        made = made.fill_null({"n": 0, "f": 0.0})  # functions need both without nulls
    drawn.then(made)
    return None


def _by_keys(draw: Draw, ds: Dataset, other: Dataset, how: str) -> Dataset:
    pairs = [(a, b) for a in ds.schema for b in other.schema if _good_key(ds, a, other, b)]
    exact = [pair for pair in pairs if pair[0] == pair[1]] or pairs
    keys = draw.sample(exact, min(len(exact), draw.choice([1, 1, 2])))
    if draw.random() < 0.3 and pairs:
        keys = [draw.choice(pairs)]
    return ds.join(
        other,
        left_on=[a for a, _ in keys],
        right_on=[b for _, b in keys],
        how=how,
        suffix=draw.choice(["_right", "_2"]),
        nulls_equal=draw.random() < 0.3,
        validate=draw.choice(["m:m"] * 8 + ["1:1", "1:m", "m:1"]),
    )


def _good_key(ds: Dataset, a: str, other: Dataset, b: str) -> bool:
    """True for keys of like types with many values, so that the join does not multiply rows."""
    kinds = (ds.schema[a], other.schema[b])
    return _many(kinds[0]) and (kinds[0] == kinds[1] or all(map(pa.types.is_integer, kinds)))


def _many(kind: pa.DataType) -> bool:
    tests: Sequence[Any] = (pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp)
    return any(test(kind) for test in tests) or kind in (pa.string(), pa.binary())


MEANINGS = (OperatorMeaning(Join, joined, (OperatorUse("join", _draw_join),), makes_ids=True),)
