"""The oracle numbers, shards, splits, unbatches and explodes elements."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from hashlib import blake2b
from itertools import islice
from math import ceil, floor
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.errors import CastError, PlanError, SchemaError
from dml.expr.columns.value import Value
from dml.ops.batch.unbatch import Unbatch
from dml.ops.row.explode import Explode
from dml.ops.row.with_row_index import WithRowIndex
from dml.ops.slice.part import Part
from dml.ops.slice.shard import Shard
from dml.ops.slice.stratum import Stratum
from dml.ops.slice.take_while import TakeWhile
from dml.testing.draws import GROWTH, Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units, always
from dml.testing.oracle_steps import has_random, seen, spared
from dml.testing.oracle_types import code, of_code, shape, typed
from dml.testing.oracle_values import Draws, value_of
from dml.testing.scalars import ids

STRATA = int.from_bytes(b"strata", "big")
SPLIT = int.from_bytes(b"split", "big")
EXPLODED = int.from_bytes(b"explode", "big")
# Children of an atom whose types are inferred together.
CHILDREN = 4096


def with_row_index(
    oracle: OracleRun, node: WithRowIndex, epoch: int, units: Units
) -> Iterator[TypedRow]:
    """Add the number of every row as the first column."""
    for number, one in enumerate(oracle.stream(node.input, epoch, units), node.offset):
        if node.name in one.kinds:
            raise SchemaError(f"there is a column {node.name!r} already")
        kinds = {node.name: pa.int64(), **one.kinds}
        yield one.made({node.name: number, **one.row.values}, kinds)


def shard(oracle: OracleRun, node: Shard, epoch: int, units: Units) -> Iterator[Any]:
    """Yield every n-th element."""
    elements = oracle.stream(node.input, epoch, units)
    yield from islice(elements, node.index, None, node.num_shards)


def unbatch(oracle: OracleRun, node: Unbatch, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Yield the rows of every batch; each batch becomes an atom."""
    for number, batch in enumerate(oracle.stream(node.input, epoch, units)):
        for one in batch:
            yield one.made(one.row.values, one.kinds, atom=("batch", number))


def part(oracle: OracleRun, node: Part, epoch: int, units: Units) -> Iterator[Any]:
    """Keep rows (or rows of batches) by a draw that depends on neither epoch nor operator."""
    seed = oracle.seed if node.seed is None else node.seed

    def inside(one: TypedRow) -> bool:
        key = ids.row_key(*one.row.id, seed, SPLIT + node.nth, 0)
        return node.low <= ids.uniform(key) < node.high

    for element in oracle.stream(node.input, epoch, units):
        if isinstance(element, list):
            kept = [one for one in element if inside(one)]
            if kept:
                yield kept
        elif inside(element):
            yield element


def stratum(oracle: OracleRun, node: Stratum, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Split rows by their number within their class; the last part picks first."""
    seen_: dict[Any, int] = {}
    for one in oracle.stream(node.input, epoch, units):
        value = one.row.values[node.column]
        for number in range(len(node.weights) - 1, -1, -1):
            row = seen_.setdefault((value, number), 0)
            seen_[value, number] += 1
            if number == 0 or _picked(oracle, node, value, number, row):
                break
        if number == node.index:
            yield one


def _picked(oracle: OracleRun, node: Stratum, value: Any, number: int, row: int) -> bool:
    """True if the part picks the row of this number among the rows that are left to it."""
    whole = sum(node.weights[: number + 1])
    share = Fraction(node.weights[number], whole) if whole else Fraction(0)
    if not share:
        return False
    cell = floor(row * share)
    low, high = ceil(cell / share), ceil((cell + 1) / share)
    seed = oracle.seed if node.seed is None else node.seed
    name = int.from_bytes(blake2b(str(value).encode(), digest_size=8).digest(), "little")
    key = ids.row_key(name, cell, seed, STRATA + node.nth, number)
    return row == low + floor(ids.uniform(key) * (high - low))


def take_while(oracle: OracleRun, node: TakeWhile, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Yield rows until the first that fails the test."""
    for one in oracle.stream(node.input, epoch, units):
        verdict = _passes(oracle, node, one, epoch)
        if False in verdict:
            return
        if verdict:
            yield one


def _passes(oracle: OracleRun, node: TakeWhile, one: TypedRow, epoch: int) -> list[bool]:
    """Test a row: [True] or [False], or [] where the function raises and the row is skipped."""
    if not isinstance(node.test, Value):
        return spared(node, lambda row: bool(node.test.call(row)), seen(one))  # type: ignore[union-attr]
    expr = typed(node.test, one.kinds)
    if expr.kind not in (pa.bool_(), pa.null()):
        raise SchemaError(f"{node.test!r} is {expr.kind}, no boolean")
    draws = Draws(oracle.ordinal(node), 0, epoch, oracle.seed)
    return [value_of(expr, one.row.values, one.row.id, draws) is True]


def explode(oracle: OracleRun, node: Explode, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Yield a row for each element of the lists, and one row for an empty list or null."""
    made = EXPLODED + oracle.level(node)
    atom, place = None, 0
    for one in oracle.stream(node.input, epoch, units):
        place = place if one.row.atom == atom else 0
        atom = one.row.atom
        hi, lo = one.row.id
        kinds = {n: element(k) if n in node.names else k for n, k in one.kinds.items()}
        for number, values in enumerate(_elements(node, one)):
            child = ids.derive(hi, lo, made, number)
            yield one.made(values, kinds, id=child, atom=(atom, place // CHILDREN))
            place += 1


def _elements(node: Explode, one: TypedRow) -> Iterator[dict[str, Any]]:
    for name in node.names:
        if name not in one.kinds:
            raise SchemaError(f"there is no column {name!r}")
        element(one.kinds[name])
    lists = {name: _listed(one.row.values[name]) for name in node.names}
    if len({len(each) for each in lists.values()}) > 1:
        raise CastError("lists of different lengths")
    for number in range(len(lists[node.names[0]])):
        yield {**one.row.values, **{name: each[number] for name, each in lists.items()}}


def _listed(value: Any) -> list[Any]:
    if value is None or not len(value):
        return [None]
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(value.tolist())
    return list(value)


def element(kind: pa.DataType) -> pa.DataType:
    """Return the type of one element of a list or tensor."""
    if isinstance(kind, OpenTensor):
        rest = kind.shape[1:]
        if None in rest:
            return OpenTensor(kind.value_type, rest)
        return pa.fixed_shape_tensor(kind.value_type, rest) if rest else kind.value_type
    if shape(kind):
        return of_code(code(kind), shape(kind)[1:])
    lists = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
    if not isinstance(kind, lists):
        raise SchemaError(f"{kind} has no elements")
    return kind.value_type


def _draw_row_index(draw: Draw, drawn: Drawn) -> None:
    name = draw.choice(["i", "i", "j", "g"])
    made = drawn.dataset.with_row_index(name, draw.choice([0, 0, 1, -3, 100]))
    drawn.then(made, {name: pa.int64(), **drawn.kinds})


def _draw_shard(draw: Draw, drawn: Drawn) -> None:
    shards = draw.choice([1, 2, 2, 3, 5])
    drawn.then(drawn.dataset.shard(shards, draw.randrange(shards)))


def _draw_units_shard(draw: Draw, drawn: Drawn) -> Any:
    """Shard the source by read units, where every operator so far allows that."""
    shards = draw.choice([1, 2, 2, 2, 3])
    try:
        made = drawn.dataset.shard(shards, draw.randrange(shards), by="units")
    except PlanError:
        return False
    drawn.then(made)
    return None


def _draw_unbatch(_draw: Draw, drawn: Drawn) -> None:
    drawn.then(drawn.dataset.unbatch())
    drawn.batched = False


def _draw_part(draw: Draw, drawn: Drawn) -> None:
    parts = drawn.dataset.split([0.2, 0.5, 0.3], seed=draw.choice([None, 0, 3]))
    drawn.then(draw.choice(parts))


def _draw_stratum(draw: Draw, drawn: Drawn) -> Any:
    keys = [n for n, k in drawn.kinds.items() if pa.types.is_integer(k) or pa.types.is_string(k)]
    if not keys:
        return False
    shares = draw.choice([[0.8, 0.2], [0.25, 0.5, 0.25], [0.0, 0.37, 0.63]])
    parts = drawn.dataset.split(shares, seed=draw.choice([None, 3]), stratify=draw.choice(keys))
    drawn.then(draw.choice(parts))
    return None


def _draw_take_while(draw: Draw, drawn: Drawn) -> None:
    predicate = drawn.expressions(draw).boolean(2)
    drawn.believed({"p": predicate})
    passing = predicate | drawn.expressions(draw).boolean(1) | ~predicate.is_null()
    drawn.then(drawn.dataset.take_while(passing if draw.random() < 0.6 else predicate))


def _draw_take_while_rows(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    k = draw.choice([5, 13, 17, 40])
    opaque = draw.choice(
        [lambda row: len(str(row["n"])) < 3, lambda row: row["n"] // (row["n"] - k) < 9]
    )
    passing = draw.choice([opaque, lambda row: row["n"] < k])
    drawn.then(drawn.dataset.take_while(passing, on_error=draw.choice(["raise", "skip"])))
    return None


def _lists(row: dict[str, Any]) -> dict[str, Any]:
    """Return two columns of lists, sometimes empty or null, and not always of equal length."""
    n = row["n"]
    words = None if n == 3 else ["a", "", "ä"][: n % 4]
    return {"n": n, "f": row["f"], "w": words, "v": [0.5] * (n % 4 if n < 12 else 2)}


LISTS = {
    "n": pa.int64(),
    "f": pa.float64(),
    "w": pa.list_(pa.string()),
    "v": pa.list_(pa.float64()),
}


def _draw_explode(draw: Draw, drawn: Drawn) -> Any:
    if drawn.growth >= GROWTH:
        return False
    dataset, kinds = drawn.dataset, dict(drawn.kinds)
    if drawn.functional and not any(map(_explodes, kinds.values())):
        dataset, kinds = dataset.map(_lists), LISTS
    names = [name for name, kind in kinds.items() if _explodes(kind)]
    if not names:
        return False
    chosen = draw.sample(names, 2 if len(names) > 1 and draw.random() < 0.5 else 1)
    drawn.growth *= 2
    made = dataset.explode(*chosen)
    drawn.then(made, {n: element(k) if n in chosen else k for n, k in kinds.items()})
    return None


def _explodes(kind: pa.DataType) -> bool:
    return bool(shape(kind)) or pa.types.is_list(kind) or isinstance(kind, OpenTensor)


MEANINGS = (
    OperatorMeaning(
        WithRowIndex, with_row_index, (OperatorUse("with_row_index", _draw_row_index),)
    ),
    OperatorMeaning(
        Shard,
        shard,
        (
            OperatorUse("shard", _draw_shard, batches=1),
            OperatorUse("shard_units", _draw_units_shard),
        ),
    ),
    OperatorMeaning(
        Unbatch,
        unbatch,
        (OperatorUse("unbatch", _draw_unbatch, rows=0, batches=2),),
        makes_ids=True,
    ),
    OperatorMeaning(Part, part, (OperatorUse("split", _draw_part, batches=1),), draws=always),
    OperatorMeaning(Stratum, stratum, (OperatorUse("stratify", _draw_stratum),), makes_ids=True),
    OperatorMeaning(
        TakeWhile,
        take_while,
        (
            OperatorUse("take_while", _draw_take_while),
            OperatorUse("take_while_rows", _draw_take_while_rows),
        ),
        makes_ids=True,
        draws=lambda node: isinstance(node.test, Value) and has_random(node.test),
    ),
    OperatorMeaning(Explode, explode, (OperatorUse("explode", _draw_explode),), makes_ids=True),
)
