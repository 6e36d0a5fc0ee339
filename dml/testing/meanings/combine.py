"""The oracle computes the operators of several pipelines: concat, zip, interleave, mix, choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import Any, cast

import pyarrow as pa

from dml.api.sources.objects import range as numbers
from dml.errors import CastError, NullValueError, SchemaError, UDFError
from dml.expr.columns.column import col
from dml.expr.columns.column import random as random_column
from dml.expr.node import Node
from dml.ops.merge.choose import Choose
from dml.ops.merge.concat import Concat
from dml.ops.merge.interleave import Interleave
from dml.ops.merge.interleave_map import InterleaveMap
from dml.ops.merge.mix import Mix
from dml.ops.merge.zip import Zip
from dml.testing.draws import GROWTH, Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units
from dml.testing.oracle_steps import called, seen
from dml.testing.scalars import ids

BRANCH = int.from_bytes(b"concat", "big")
WEAVE = int.from_bytes(b"weave", "big")
SIDES = int.from_bytes(b"zip", "big")
CYCLE = int.from_bytes(b"cycle", "big")


def concat(oracle: OracleRun, node: Concat, epoch: int, _units: Units) -> Iterator[Any]:
    """Yield the inputs in turn; their columns must agree."""
    for number, each in enumerate(node.inputs):
        for element in oracle.stream(each, epoch):
            yield _agreed(oracle, node, element, BRANCH, number)


def _agreed(oracle: OracleRun, node: Any, element: Any, key: int, number: int) -> Any:
    """Check that an element has the columns of the first element, and derive its ids."""
    for one in element if isinstance(element, list) else [element]:
        kinds = oracle.settled.setdefault(id(node), one.kinds)
        if list(kinds.items()) != list(one.kinds.items()):
            raise SchemaError("inputs have different columns")
    return oracle.descendant(element, key + oracle.level(node), number)


def zipped(oracle: OracleRun, node: Zip, epoch: int, _units: Units) -> Iterator[TypedRow]:
    """Yield rows of all inputs side by side, until an input ends."""
    sides = [oracle.stream(each, epoch) for each in node.inputs]
    while True:
        row: list[TypedRow] = []
        for side in sides:
            if (one := next(side, None)) is None:
                return
            row.append(one)
        yield _beside(oracle, node, row)


def _beside(oracle: OracleRun, node: Zip, row: list[TypedRow]) -> TypedRow:
    values: dict[str, Any] = {}
    kinds: dict[str, Any] = {}
    made = row[0].row.id
    for number, one in enumerate(row):
        if set(values) & set(one.row.values):
            raise SchemaError("zip gives two columns one name")
        values |= one.row.values
        kinds |= one.kinds
        made = ids.derive(*made, *one.row.id) if number else made
    made = ids.derive(*made, SIDES + oracle.level(node), 0)
    return TypedRow(dataclasses.replace(row[0].row, id=made, values=values), kinds)


def interleaved(oracle: OracleRun, node: Interleave, epoch: int, _units: Units) -> Iterator[Any]:
    """Yield ``block_length`` elements of each input in turn; finished inputs are dropped."""
    inputs = [(i, oracle.stream(each, epoch)) for i, each in enumerate(node.inputs)]
    while inputs:
        for pair in list(inputs):
            for _ in range(node.block_length):
                if (element := next(pair[1], None)) is None:
                    inputs.remove(pair)
                    break
                yield _agreed(oracle, node, element, WEAVE, pair[0])


def cycled(oracle: OracleRun, node: InterleaveMap, epoch: int, _units: Units) -> Iterator[TypedRow]:
    """Interleave pipelines as in tf.data: a free place of the cycle is filled on its turn."""
    rows = oracle.stream(node.input, epoch)
    cycle: list[Iterator[TypedRow] | None] = [None] * node.cycle_length
    place, more = 0, True
    while more or any(cycle):
        open_ = cycle[place]
        if open_ is None and more:
            row = next(rows, None)
            more = row is not None
            cycle[place] = None if row is None else _children(oracle, node, row, epoch)
            continue
        taken = [] if open_ is None else islice(open_, node.block_length)
        left = node.block_length
        for one in taken:
            left -= 1
            yield one
        if left:
            cycle[place] = None
        place = (place + 1) % node.cycle_length


def _children(
    oracle: OracleRun, node: InterleaveMap, row: TypedRow, epoch: int
) -> Iterator[TypedRow]:
    """Run the pipeline of one row; its columns must be those of earlier pipelines."""
    inner = called(node.fn.call, seen(row))
    if not isinstance(inner, Node) or inner.batched:
        raise UDFError(f"{inner!r} is no pipeline of rows")
    run: OracleRun = cast("Any", type(oracle))(inner, epoch=epoch, seed=oracle.seed)

    def stream() -> Iterator[TypedRow]:
        for one in run.stream(inner, epoch):
            known = oracle.settled.setdefault(id(node), dict(node.declared or one.kinds))
            if list(known.items()) != list(one.kinds.items()):
                raise SchemaError("pipelines have different columns")
            made = ids.derive(*ids.derive(*row.row.id, *one.row.id), CYCLE + level, 0)
            yield one.made(one.row.values, one.kinds, id=made)

    level = oracle.level(node)
    return stream()


def mixed(oracle: OracleRun, node: Mix, epoch: int, _units: Units) -> Iterator[Any]:
    """Mix inputs by Tijdeman's rule, in fractions; an input ends on a turn without an element."""
    inputs = {i: oracle.stream(each, epoch) for i, each in enumerate(node.inputs)}
    given = dict.fromkeys(inputs, 0)
    while inputs:
        chosen = _due(node, given)
        if (element := next(inputs[chosen], None)) is None:
            del inputs[chosen]
            if node.stop == "first":
                return
            given = dict.fromkeys(inputs, 0)
            continue
        given[chosen] += 1
        yield _agreed(oracle, node, element, WEAVE, chosen)


def _due(node: Mix, given: dict[int, int]) -> int:
    whole = sum(node.weights[i] for i in given)
    share = {i: Fraction(node.weights[i], whole) for i in given}
    if len(given) == 1:
        return next(iter(given))
    slack = Fraction(1, 2 * len(given) - 2)
    turn = sum(given.values()) + 1
    owed = {i: share[i] * turn - given[i] for i in given}
    due = [i for i in given if owed[i] >= slack]
    return min(due, key=lambda i: ((1 - slack - owed[i]) / share[i], i))


def chosen(oracle: OracleRun, node: Choose, epoch: int, _units: Units) -> Iterator[Any]:
    """Yield from the input that the selector names; it ends on a turn without an element."""
    *datasets, selector = (oracle.stream(each, epoch) for each in node.inputs)
    inputs = dict(enumerate(datasets))
    while inputs and (choice := next(selector, None)) is not None:
        (number,) = choice.row.values.values()
        if number is None:
            raise NullValueError("null chooses nothing")
        if number not in range(len(datasets)):
            raise CastError(f"there is no input {number}")
        element = next(inputs[number], None) if number in inputs else None
        if element is not None:
            yield _agreed(oracle, node, element, WEAVE, number)
        elif node.stop:
            return
        else:
            inputs.pop(number, None)


def _draw_chosen(draw: Draw, drawn: Drawn) -> Any:
    if drawn.growth >= GROWTH or (not drawn.functional and not drawn.batched):
        return False
    drawn.growth *= 2
    ds = drawn.dataset
    given = [ds, *draw.sample([ds, ds.skip(2), ds.take(3), ds.shuffle(5, seed=3)], 2)]
    most = 3 if draw.random() < 0.8 else 4
    number = random_column(seed=draw.choice([None, 4])) * most
    selector = numbers(draw.choice([5, 30, 120, 120]), atom_rows=7)
    selector = selector.with_columns(k=number.cast("int8")).select("k")
    stop = draw.random() < 0.3
    if endless := draw.random() < 0.2:
        selector = selector.repeat()
    made = ds.choose_from_datasets(given, selector, stop)
    drawn.then(made.take(200) if endless else made, drawn.kinds)
    return None


def _draw_woven(draw: Draw, drawn: Drawn) -> Any:
    if drawn.growth >= GROWTH:
        return False
    drawn.growth *= 2
    ds = drawn.dataset
    other = draw.choice([ds, ds.skip(2), ds.take(7), ds.shuffle(5, seed=3)])
    if draw.random() < 0.5:
        made = ds.interleave(other, block_length=draw.choice([1, 2, 3]))
    else:
        weights = draw.choice([None, [2, 1], [0.3, 0.7]])
        made = ds.mix(other, weights=weights, stop=draw.choice(["all", "first"]))
    drawn.then(made, drawn.kinds)
    return None


def _few(row: dict[str, Any]) -> Any:
    """Return a pipeline of a few rows with the columns ``n`` and ``f``."""
    n = row["n"]
    made = numbers(1 + n % 4 if n % 6 else 0, atom_rows=2).with_columns(n=col("id") * 5 + n % 7)
    made = made.with_columns(f=random_column(seed=2) + n % 3).select("n", "f")
    return made.map(dict) if n % 5 == 1 else made.repeat(2) if n % 3 else made


def _uneven(row: dict[str, Any]) -> Any:
    """Return ``_few`` of most rows; some rows give other columns, or no pipeline."""
    n = row["n"]
    return _few(row) if n % 23 else numbers(3) if n % 2 else n


def _draw_cycled(draw: Draw, drawn: Drawn) -> Any:
    if drawn.growth >= GROWTH or not drawn.functional:
        return False
    drawn.growth *= 3
    given = _few if draw.random() < 0.7 else _uneven
    cycle, block = draw.choice([1, 2, 4, 5]), draw.choice([1, 2, 3])
    made = drawn.dataset.interleave(given, cycle_length=cycle, block_length=block)
    drawn.then(made, {"n": pa.int64(), "f": pa.float64()})
    return None


def _draw_concat(draw: Draw, drawn: Drawn) -> Any:
    if drawn.growth >= GROWTH:
        return False
    drawn.growth *= 2
    other = drawn.dataset
    for _ in range(draw.choice([0, 1, 1])):
        other = draw.choice([other.skip(2), other.take(7), other.shuffle(5, seed=3)])
    pair = [other, drawn.dataset] if draw.random() < 0.3 else [drawn.dataset, other]
    drawn.then(pair[0].concat(pair[1]), drawn.kinds)
    return None


def _draw_zip(draw: Draw, drawn: Drawn) -> Any:
    """Zip with other rows of the same pipeline, whose columns are renamed."""
    if drawn.growth >= GROWTH or any(name.startswith("z") for name in drawn.kinds):
        return False
    drawn.growth *= 2
    names = {name: f"z{name}" for name in drawn.kinds}
    other = drawn.dataset.rename(names)
    other = draw.choice([other, other.skip(3), other.shuffle(5, seed=3), other.take(9)])
    drawn.then(
        drawn.dataset.zip(other), {**drawn.kinds, **{names[n]: k for n, k in drawn.kinds.items()}}
    )
    return None


MEANINGS = (
    OperatorMeaning(
        Concat, concat, (OperatorUse("concat", _draw_concat, batches=1),), makes_ids=True
    ),
    OperatorMeaning(
        Interleave,
        interleaved,
        (OperatorUse("interleave", _draw_woven, batches=1),),
        makes_ids=True,
    ),
    OperatorMeaning(
        InterleaveMap,
        cycled,
        (OperatorUse("interleave_map", _draw_cycled, rows=2),),
        makes_ids=True,
    ),
    OperatorMeaning(
        Choose,
        chosen,
        (OperatorUse("choose_from_datasets", _draw_chosen, batches=1),),
        makes_ids=True,
    ),
    OperatorMeaning(Mix, mixed, (OperatorUse("mix", _draw_woven),), makes_ids=True),
    OperatorMeaning(Zip, zipped, (OperatorUse("zip", _draw_zip),), makes_ids=True),
)
