"""This file says what the three shuffles mean."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from dml.expr.ops.order_atoms import OrderAtoms
from dml.expr.ops.shuffle_all import ShuffleAll
from dml.expr.ops.shuffle_atoms import ShuffleAtoms
from dml.expr.ops.shuffle_window import ShuffleWindow
from dml.testing import scalar_ids
from dml.testing.drawn import Draw, Drawn
from dml.testing.meaning import Meaning, Typed, Units, Use, always
from dml.testing.oracle_steps import permutation

if TYPE_CHECKING:
    from dml.testing.oracle import Oracle


WHOLE = int.from_bytes(b"shuffle", "big")
PIECES = int.from_bytes(b"pieces", "big")


def _key(oracle: Oracle, node: Any, row_id: tuple[int, int], epoch: int) -> int:
    seed = oracle.seed if node.seed is None else node.seed
    ruling = epoch if node.fresh else 0
    return scalar_ids.row_key(*row_id, seed, oracle.ordinal(node), ruling)


def shuffle_window(oracle: Oracle, node: ShuffleWindow, epoch: int, units: Units) -> Iterator[Any]:
    """Every run of n elements in the order of its own permutation."""
    elements = oracle.stream(node.input, epoch, units)
    number = 0
    while window := list(islice(elements, node.n)):
        order = scalar_ids.window_permutation(_key(oracle, node, (number, 0), epoch), len(window))
        yield from (window[i] for i in order)
        number += 1


def shuffle_all(oracle: Oracle, node: ShuffleAll, epoch: int, units: Units) -> Iterator[Typed]:
    """All rows: by rank of their position in one source, otherwise by hash of their ids."""
    rows = list(oracle.stream(node.input, epoch, units))
    source = oracle.one_source(node.input)
    if source is None or not oracle.table(source).counted:
        rows.sort(key=lambda one: (_key(oracle, node, one.row.id, epoch), one.row.id))
    else:
        n, key = len(oracle.table(source).rows), _key(oracle, node, (WHOLE, 0), epoch)
        rank = {position: place for place, position in enumerate(permutation(n, key))}
        rows.sort(key=lambda one: rank[one.row.position])
    yield from rows


def shuffle_atoms(oracle: Oracle, node: ShuffleAtoms, epoch: int, _units: Units) -> Iterator[Typed]:
    """Pieces in permuted order, the rows of ``size`` pieces at a time by hash of their ids."""
    n = oracle.table(node.chain()[0]).units
    key = _key(oracle, node, (PIECES, 0), epoch)
    order = permutation(n, key)
    oracle.settle(node.input, epoch, order)
    for start in range(0, n, node.size):
        rows = list(oracle.stream(node.input, epoch, order[start : start + node.size]))
        rows.sort(key=lambda one: (_key(oracle, node, one.row.id, epoch), one.row.id))
        yield from rows


def order_atoms(oracle: Oracle, node: OrderAtoms, epoch: int, _units: Units) -> Iterator[Typed]:
    """Pieces in permuted order, each as it is."""
    n = oracle.table(node.chain()[0]).units
    order = permutation(n, _key(oracle, node, (PIECES, 0), epoch))
    oracle.settle(node.input, epoch, order)
    for piece in order:
        yield from oracle.stream(node.input, epoch, [piece])


def _options(draw: Draw) -> dict[str, Any]:
    return {
        "seed": draw.choice([None, 0, 11]),
        "reshuffle_each_iteration": draw.random() < 0.8,
    }


def _draw_shuffle(draw: Draw, drawn: Drawn) -> None:
    drawn.then(drawn.dataset.shuffle(**_options(draw)))


def _draw_shuffle_window(draw: Draw, drawn: Drawn) -> None:
    drawn.then(drawn.dataset.shuffle(draw.choice([1, 2, 5, 16, 500]), **_options(draw)))


def _draw_shuffle_atoms(draw: Draw, drawn: Drawn) -> None:
    size = draw.choice([1, 2, 3, 20])
    drawn.then(drawn.dataset.shuffle(window="atoms", size=size, **_options(draw)))


def _draw_order_atoms(draw: Draw, drawn: Drawn) -> None:
    drawn.then(drawn.dataset.randomize_block_order(**_options(draw)))


MEANINGS = (
    Meaning(
        OrderAtoms,
        order_atoms,
        (Use("randomize_block_order", _draw_order_atoms),),
        draws=always,
    ),
    Meaning(ShuffleAll, shuffle_all, (Use("shuffle", _draw_shuffle, rows=2),), draws=always),
    Meaning(
        ShuffleWindow,
        shuffle_window,
        (Use("shuffle_window", _draw_shuffle_window, batches=1),),
        draws=always,
    ),
    Meaning(
        ShuffleAtoms,
        shuffle_atoms,
        (Use("shuffle_atoms", _draw_shuffle_atoms, rows=2),),
        draws=always,
    ),
)
