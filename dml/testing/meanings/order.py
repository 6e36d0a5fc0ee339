"""The oracle computes ``take``, ``skip``, ``repeat`` and the caches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from dml.expr.columns.column import random as random_column
from dml.ops.cache.autocache import AutoStored, varying
from dml.ops.cache.cache import Cache
from dml.ops.cache.stored import Stored, storable
from dml.ops.slice.repeat import Repeat
from dml.ops.slice.skip import Skip
from dml.ops.slice.take import Take
from dml.testing.draws import GROWTH, Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, Units

ENDLESS = 1 << 32
PASS = int.from_bytes(b"repeat", "big")


def take(oracle: OracleRun, node: Take, epoch: int, units: Units) -> Iterator[Any]:
    """Yield the first n elements."""
    yield from islice(oracle.stream(node.input, epoch, units), node.n)


def skip(oracle: OracleRun, node: Skip, epoch: int, units: Units) -> Iterator[Any]:
    """Yield all but the first n elements."""
    yield from islice(oracle.stream(node.input, epoch, units), node.n, None)


def repeat(oracle: OracleRun, node: Repeat, epoch: int, units: Units) -> Iterator[Any]:
    """Yield pass after pass: pass p of epoch k is epoch k * n + p of the input."""
    each = ENDLESS if node.n is None else node.n
    turn = 0
    while turn < each:
        empty = True
        for element in oracle.stream(node.input, epoch * each + turn, units):
            empty = False
            yield oracle.descendant(element, PASS + oracle.level(node), turn)
        if empty and node.n is None:
            return
        turn += 1


def cache(oracle: OracleRun, node: Cache, _epoch: int, units: Units) -> Iterator[Any]:
    """Yield the elements of the first epoch."""
    yield from oracle.stream(node.input, 0, units)


def stored(oracle: OracleRun, node: Stored, _epoch: int, units: Units) -> Iterator[Any]:
    """Yield the rows of the first epoch."""
    yield from oracle.stream(node.input, 0, units)


def autostored(oracle: OracleRun, node: AutoStored, epoch: int, units: Units) -> Iterator[Any]:
    """Yield the rows of every epoch, or the rows that ``reuse`` epochs share."""
    yield from oracle.stream(node.input, epoch // (node.reuse or 1), units)


def _draw_cache(draw: Draw, drawn: Drawn) -> None:
    drawn.then(drawn.dataset.cache(draw.choice(["memory", "disk"])))


def _draw_autocache(draw: Draw, drawn: Drawn) -> Any:
    node = drawn.dataset._node  # noqa: SLF001 - what verbs made
    reuse = draw.choice([None, None, 1, 2, 3]) if storable(node) else None
    if reuse is None and varying(node) is not None:
        return False
    drawn.then(drawn.dataset.autocache(reuse))
    return None


def _draw_stored(_draw: Draw, drawn: Drawn) -> Any:
    if not storable(drawn.dataset._node):  # noqa: SLF001 - what verbs made
        return False
    drawn.then(drawn.dataset.cache(tier="disk"))
    return None


def _draw_take(draw: Draw, drawn: Drawn) -> None:
    drawn.then(drawn.dataset.take(draw.choice([0, 1, 3, 10, 20, 40, 1000])))


def _draw_skip(draw: Draw, drawn: Drawn) -> None:
    drawn.then(drawn.dataset.skip(draw.choice([0, 1, 2, 5, 9])))


def _draw_repeat(draw: Draw, drawn: Drawn) -> Any:
    if drawn.growth >= GROWTH:
        return False
    if draw.random() < 0.2:
        drawn.then(drawn.dataset.repeat().take(draw.choice([5, 60])))
        return None
    n = draw.choice([0, 1, 2, 2, 3])
    drawn.growth *= max(1, n)
    drawn.then(drawn.dataset.repeat(n))
    if draw.random() < 0.1:  # nested repeats, which differ from one repeat only in their ids
        drawn.growth *= 2
        again = drawn.dataset.repeat(2).with_columns(g=random_column())
        drawn.then(again, {**drawn.kinds, "g": pa.float64()})
    return None


MEANINGS = (
    OperatorMeaning(Cache, cache, (OperatorUse("cache", _draw_cache, batches=1),)),
    OperatorMeaning(Stored, stored, (OperatorUse("stored", _draw_stored),)),
    OperatorMeaning(
        AutoStored, autostored, (OperatorUse("autocache", _draw_autocache, batches=1),)
    ),
    OperatorMeaning(Take, take, (OperatorUse("take", _draw_take, batches=1),)),
    OperatorMeaning(Skip, skip, (OperatorUse("skip", _draw_skip, batches=1),)),
    OperatorMeaning(
        Repeat, repeat, (OperatorUse("repeat", _draw_repeat, batches=1),), makes_ids=True
    ),
)
