"""Plant wrong rules, one at a time: the random pipelines must detect each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache as remembered
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml.expr.columns import computation
from dml.expr.columns.value import col
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.io.partial_source import Leading
from dml.kernels.rows.random import row_key
from dml.ops.batch.batch import Batch
from dml.ops.cache.cache import Cache
from dml.ops.merge.concat import Concat
from dml.ops.merge.turns import Weaving
from dml.ops.merge.zip import Zip
from dml.ops.row.segment import Segment
from dml.ops.row.with_row_index import WithRowIndex
from dml.ops.shuffle.shuffle_all import ShuffleAll
from dml.ops.shuffle.shuffle_window import ShuffleWindow
from dml.ops.slice.repeat import Repeat
from dml.ops.slice.shard import Shard
from dml.ops.slice.skip import Skip
from dml.ops.slice.take import Take
from dml.ops.sort.sort import Sort
from dml.optimize import phases
from dml.optimize.lowering import LOWERINGS
from dml.optimize.phases import optimize
from dml.optimize.rule import Rule, Split, law, lowering
from dml.optimize.rules.pushdown import take_into_source
from dml.physical.plan import Stage
from dml.testing.executions import PLAIN, RunOutcome
from dml.testing.strategies_data import DataPool
from tests.laws.cases import Case, case, violation
from tests.laws.dense import dense

# Cases among which every planted law has been caught, most within some hundred dense ones.
DENSE, CASES = 2000, 10_000
# Cases in which laws that are caught late are caught: a sample tries these first.
CAUGHT = {
    "passes_of_passes": 2000,
    "shuffle_under_take": 1032,
    "first_sort_wins": 646,
    "window_over_window": 518,
    "forgotten_place": 471,
    "greatest_take": 418,
    "draws_below_cache": 407,
    "take_in_each": 311,
    "take_past_filter": 288,
    "take_past_skip": 242,
    "greatest_skip": 195,
    "filter_past_mix": 188,
    "wrong_shard": 181,
    "window_past_repeat": 156,
    "filter_of_the_first": 145,
}
WRONG = law(Node, source="nowhere: it is wrong")


def swapped(node: Node) -> Node:
    """The operator below its input."""
    (below,) = node.inputs
    return below.replace(input=node.replace(input=below.inputs[0]))


def filters(node: Node) -> bool:
    return isinstance(node, Segment) and bool(node.predicate)


def below(node: Node) -> Node | None:
    return node.inputs[0] if node.inputs else None


@WRONG
def filter_past_take(node: Node) -> Node | None:
    """filter(take(n)) is take(n) of the filtered."""
    return swapped(node) if filters(node) and isinstance(below(node), Take) else None


@WRONG
def filter_past_skip(node: Node) -> Node | None:
    """filter(skip(n)) is skip(n) of the filtered."""
    return swapped(node) if filters(node) and isinstance(below(node), Skip) else None


@WRONG
def filter_past_batch(node: Node) -> Node | None:
    """Batches of the filtered are filtered batches."""
    return swapped(node) if filters(node) and isinstance(below(node), Batch) else None


@WRONG
def filter_past_window(node: Node) -> Node | None:
    """Windows of the filtered are filtered windows."""
    return swapped(node) if filters(node) and isinstance(below(node), ShuffleWindow) else None


@WRONG
def take_past_filter(node: Node) -> Node | None:
    """take(n) of the filtered is the filtered of take(n)."""
    given = below(node)
    if isinstance(node, Take) and given is not None and filters(given):
        return swapped(node)
    return None


@WRONG
def draws_past_repeat(node: Node) -> Node | None:
    """What draws is the same in every pass."""
    wrong = isinstance(node, Segment) and node.draws and isinstance(below(node), Repeat)
    return swapped(node) if wrong else None


@WRONG
def window_past_repeat(node: Node) -> Node | None:
    """Windows of every pass are windows of all passes."""
    wrong = isinstance(node, Repeat) and isinstance(below(node), ShuffleWindow)
    return swapped(node) if wrong else None


@WRONG
def greatest_skip(node: Node) -> Node | None:
    """skip(n) of skip(m) is the greater skip."""
    match node:
        case Skip(input=Skip() as inner):
            return inner.replace(n=max(node.n, inner.n))
    return None


@WRONG
def greatest_take(node: Node) -> Node | None:
    """take(n) of take(m) is the greater take."""
    match node:
        case Take(input=Take() as inner):
            return inner.replace(n=max(node.n, inner.n))
    return None


@WRONG
def take_past_skip(node: Node) -> Node | None:
    """skip(n) of take(m) is take(m) of skip(n)."""
    match node:
        case Skip(input=Take()):
            return swapped(node)
    return None


@WRONG
def shuffle_under_take(node: Node) -> Node | None:
    """The first of the shuffled are the first."""
    match node:
        case Take(input=ShuffleAll() as inner):
            return node.replace(input=inner.input)
    return None


@WRONG
def window_over_window(node: Node) -> Node | None:
    """A second shuffle of windows overrules the first."""
    match node:
        case ShuffleWindow(input=ShuffleWindow() as inner):
            return node.replace(input=inner.input)
    return None


@WRONG
def passes_of_passes(node: Node) -> Node | None:
    """repeat(n) of repeat(m) is repeat(n * m)."""
    match node:
        case Repeat(input=Repeat() as inner) if node.n is not None and inner.n is not None:
            return inner.replace(n=node.n * inner.n)
    return None


@WRONG
def forgotten_place(node: Node) -> Node | None:
    """A full shuffle forgets the order below, and its own place as written."""
    match node:
        case ShuffleAll(input=ShuffleAll() | ShuffleWindow() as inner):
            return ShuffleAll(inner.input, node.seed, node.fresh)
    return None


@WRONG
def filter_past_zip(node: Node) -> Node | None:
    """Rows of a side that are filtered stand beside the same rows."""
    match node:
        case Segment(input=Zip() as lower) if node.predicate:
            side = lower.input
            parts = tuple(part for part in node.predicate if part.refs <= set(side.schema))
            if parts and not any(part.draws for part in parts):
                rest = tuple(part for part in node.predicate if part not in parts)
                same = tuple((name, col(name)) for name in side.schema)
                made = lower.replace(input=Segment(side, parts, same))
                return Segment(made, rest, node.env)
    return None


@WRONG
def filter_past_mix(node: Node) -> Node | None:
    """Turns of the filtered are filtered turns."""
    match node:
        case Segment(input=Weaving() as lower) if node.predicate and not node.draws:
            return lower.map_inputs(lambda each: node.replace(input=each))
    return None


@WRONG
def filter_of_the_first(node: Node) -> Node | None:
    """The filtered of two are the filtered first and the second."""
    match node:
        case Segment(input=Concat() as lower) if node.predicate and not node.draws:
            same = tuple((name, col(name)) for name in lower.schema)
            made = lower.replace(input=Segment(lower.input, node.predicate, same))
            return Segment(made, (), node.env)
    return None


@WRONG
def filter_past_index(node: Node) -> Node | None:
    """Rows that are left keep the numbers that they had."""
    match node:
        case Segment(input=WithRowIndex() as lower) if node.predicate:
            parts = tuple(part for part in node.predicate if lower.name not in part.refs)
            if parts and node.total and not node.draws:
                same = tuple((name, col(name)) for name in lower.input.schema)
                rest = tuple(part for part in node.predicate if part not in parts)
                made = lower.replace(input=Segment(lower.input, parts, same))
                return Segment(made, rest, node.env)
    return None


@WRONG
def draws_below_cache(node: Node) -> Node | None:
    """What is kept may as well be what was drawn."""
    wrong = isinstance(node, Segment) and node.draws and isinstance(below(node), Cache)
    return swapped(node) if wrong else None


@WRONG
def fallible_first(node: Node) -> Node | None:
    """A part that may fail is tried before those that spare it rows."""
    match node:
        case Segment(predicate=parts) if not node.total and parts and parts[0].total:
            fallible = [part for part in parts if not part.total]
            sure = [part for part in parts if part.total]
            return node.replace(predicate=(*fallible, *sure)) if fallible else None
    return None


@WRONG
def fallible_past_skip(node: Node) -> Node | None:
    """Columns that may fail are computed for rows that nobody asked for."""
    wrong = isinstance(node, Segment) and not node.total and not node.predicate
    return swapped(node) if wrong and isinstance(below(node), Skip) else None


@WRONG
def take_past_flat_map(node: Node) -> Node | None:
    """The first n of what rows become are what the first n rows become."""
    given = below(node)
    if isinstance(node, Take) and given is not None and given.rows is Rows.MORE:
        return swapped(node)
    return None


@WRONG
def take_in_each(node: Node) -> Node | None:
    """The first n of two are the first n of each."""
    match node:
        case Take(input=Concat() as lower):
            return lower.map_inputs(lambda each: node.replace(input=each))
    return None


@WRONG
def first_sort_wins(node: Node) -> Node | None:
    """A sort of sorted rows is one sort, by the earlier keys first."""
    match node:
        case Sort(input=Sort() as inner):
            names = (*inner.names, *(n for n in node.names if n not in inner.names))
            ways = dict(zip(node.names, node.descending, strict=True))
            ways |= dict(zip(inner.names, inner.descending, strict=True))
            order = tuple(ways[name] for name in names)
            return node.replace(input=inner.input, names=names, descending=order)
    return None


@WRONG
def wrong_shard(node: Node) -> Node | None:
    """Every n-th of every m-th element begins where the second begins."""
    match node:
        case Shard(input=Shard() as inner):
            both = node.num_shards * inner.num_shards
            return inner.replace(num_shards=both, index=node.index)
    return None


@lowering(source="nowhere: it is wrong")
def a_unit_less(stage: Stage, above: tuple[Node, ...]) -> Split:
    """Units that lie beyond the last row taken are not read, nor is the one that it is in."""
    stage, above = take_into_source.move(stage, above)
    match stage.source:
        case Leading(units=units) as leading if units > 1:
            stage = dataclasses.replace(stage, source=Leading(leading.whole, units - 1))
    return stage, above


def test_a_planted_lowering_is_caught(
    monkeypatch: pytest.MonkeyPatch, pool: DataPool, cache: Path
) -> None:
    others = [each for each in LOWERINGS if each is not take_into_source]
    monkeypatch.setattr(phases, "LOWERINGS", (*others, a_unit_less))
    assert any(_differs(number, pool, cache) for number in fired(pool, a_unit_less.name))


LAWS = [found for found in globals().values() if isinstance(found, Rule)]


def drawn(number: int, pool: DataPool) -> Case:
    """Dense cases first, in which wrong laws show soon, then any."""
    return dense(number) if number < DENSE else case(number - DENSE, pool)


@remembered
def known(number: int, pool: DataPool) -> tuple[Case, RunOutcome]:
    """A case and the oracle's word on it, computed for the first law that asks."""
    one = drawn(number, pool)
    one.ways = [PLAIN]
    return one, one.wanted()


def fired(pool: DataPool, name: str) -> Iterator[int]:
    """Numbers of the cases in which the planted rule does something.

    Without endless passes: where a wrong rule lets nothing through, they have no next element.
    """
    for number in range(DENSE + CASES):
        node = drawn(number, pool).node
        if any(each.endless for each in node.walk()):
            continue
        try:
            names = optimize(node, 0).trace.names()
        except Exception:  # noqa: BLE001 - a planted law may break the optimizer itself
            names = [name]
        if name in names:
            yield number


@pytest.mark.parametrize("rule", LAWS, ids=lambda rule: rule.name)
def test_planted_law_is_caught(
    rule: Rule, monkeypatch: pytest.MonkeyPatch, pool: DataPool, cache: Path, whole: bool
) -> None:
    monkeypatch.setattr(phases, "SHAPES", (rule, *phases.SHAPES))
    first = [CAUGHT[rule.name]] if rule.name in CAUGHT and not whole else []
    numbers = chain(first, fired(pool, rule.name))
    assert any(_differs(number, pool, cache) for number in numbers)


def _differs(number: int, pool: DataPool, cache: Path) -> bool:
    one, wanted = known(number, pool)
    return bool(violation(one, cache, wanted))


@pytest.mark.parametrize("places", ["block", "epoch"])
def test_planted_key_is_caught(
    places: str, monkeypatch: pytest.MonkeyPatch, pool: DataPool, cache: Path
) -> None:
    """Draws keyed by the place in a partition, or without the epoch."""
    monkeypatch.setattr(computation, "row_key", by_place if places == "block" else without_epoch)
    assert any(_differs(number, pool, cache) for number in range(CASES))


def by_place(high: Any, low: Any, seed: int, ordinal: int, epoch: int) -> Any:
    return row_key(high, np.arange(len(low), dtype=np.uint64), seed, ordinal, epoch)


def without_epoch(high: Any, low: Any, seed: int, ordinal: int, epoch: int) -> Any:
    return row_key(high, low, seed, ordinal, 0)


def test_nothing_planted_is_caught_where_nothing_is_wrong(
    pool: DataPool, cache: Path, many: Callable[[int, int], int]
) -> None:
    numbers = (*range(many(25, 60)), *range(DENSE, DENSE + many(25, 60)))
    assert not any(_differs(number, pool, cache) for number in numbers)
