"""This file plants wrong laws, one at a time: the random pipelines must catch every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache as remembered
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml.expr import compute
from dml.expr.node import Node
from dml.expr.ops.batch import Batch
from dml.expr.ops.repeat import Repeat
from dml.expr.ops.segment import Segment
from dml.expr.ops.shuffle_all import ShuffleAll
from dml.expr.ops.shuffle_window import ShuffleWindow
from dml.expr.ops.skip import Skip
from dml.expr.ops.take import Take
from dml.kernels.random import row_key
from dml.optimize import phases
from dml.optimize.phases import optimize
from dml.optimize.rule import Rule, law
from dml.testing.running import PLAIN, Outcome
from dml.testing.strategies_data import Pool
from tests.laws.cases import Case, case, violation

CASES = 12_000  # where every planted law has been caught (the last needs some thousands)
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


LAWS = [found for found in globals().values() if isinstance(found, Rule)]


@remembered
def known(number: int, pool: Pool) -> tuple[Case, Outcome]:
    """A case and the oracle's word on it, computed for the first law that asks."""
    one = case(number, pool)
    one.ways = [PLAIN]
    return one, one.wanted()


def fired(pool: Pool, name: str) -> Iterator[int]:
    """Numbers of the cases in which the planted rule does something.

    Without endless passes: where a wrong rule lets nothing through, they have no next element.
    """
    for number in range(CASES):
        node = case(number, pool).node
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
    rule: Rule, monkeypatch: pytest.MonkeyPatch, pool: Pool, cache: Path
) -> None:
    monkeypatch.setattr(phases, "SHAPES", (rule, *phases.SHAPES))
    assert any(_differs(number, pool, cache) for number in fired(pool, rule.name))


def _differs(number: int, pool: Pool, cache: Path) -> bool:
    one, wanted = known(number, pool)
    return bool(violation(one, cache, wanted))


@pytest.mark.parametrize("places", ["block", "epoch"])
def test_planted_key_is_caught(
    places: str, monkeypatch: pytest.MonkeyPatch, pool: Pool, cache: Path
) -> None:
    """Draws keyed by the place in a partition, or without the epoch."""
    monkeypatch.setattr(compute, "row_key", by_place if places == "block" else without_epoch)
    assert any(_differs(number, pool, cache) for number in range(CASES))


def by_place(high: Any, low: Any, seed: int, ordinal: int, epoch: int) -> Any:
    return row_key(high, np.arange(len(low), dtype=np.uint64), seed, ordinal, epoch)


def without_epoch(high: Any, low: Any, seed: int, ordinal: int, epoch: int) -> Any:
    return row_key(high, low, seed, ordinal, 0)


def test_nothing_planted_is_caught_where_nothing_is_wrong(pool: Pool, cache: Path) -> None:
    numbers: Callable[[], range] = lambda: range(60)  # noqa: E731
    assert not any(_differs(number, pool, cache) for number in numbers())
