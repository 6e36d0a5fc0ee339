"""The oracle computes the shuffles: of windows, of all rows, of atoms, of the order of atoms."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dml.ops.shuffle.order_atoms import OrderAtoms
from dml.ops.shuffle.shuffle_all import ShuffleAll
from dml.ops.shuffle.shuffle_atoms import ShuffleAtoms
from dml.ops.shuffle.shuffle_window import ShuffleWindow
from dml.testing.draws import Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units, always
from dml.testing.oracle_steps import permutation
from dml.testing.scalars import ids

WHOLE = int.from_bytes(b"shuffle", "big")
PIECES = int.from_bytes(b"pieces", "big")


def _key(oracle: OracleRun, node: Any, row_id: tuple[int, int], epoch: int) -> int:
    seed = oracle.seed if node.seed is None else node.seed
    ruling = epoch if node.fresh else 0
    return ids.row_key(*row_id, seed, oracle.ordinal(node), ruling)


def shuffle_window(
    oracle: OracleRun, node: ShuffleWindow, epoch: int, units: Units
) -> Iterator[Any]:
    """Permute every run of n elements separately."""
    elements = oracle.stream(node.input, epoch, units)
    number = 0
    while window := list(islice(elements, node.n)):
        order = ids.window_permutation(_key(oracle, node, (number, 0), epoch), len(window))
        yield from (window[i] for i in order)
        number += 1


def shuffle_all(
    oracle: OracleRun, node: ShuffleAll, epoch: int, units: Units
) -> Iterator[TypedRow]:
    """Order all rows by the rank of their position in one source, else by hash of their ids."""
    rows = list(oracle.stream(node.input, epoch, units))
    source = oracle.one_source(node.input)
    if source is None or not oracle.table(source).counted:
        rows.sort(key=lambda one: (_key(oracle, node, one.row.id, epoch), one.row.id))
    else:
        n, key = len(oracle.table(source).rows), _key(oracle, node, (WHOLE, 0), epoch)
        rank = {position: place for place, position in enumerate(permutation(n, key))}
        rows.sort(key=lambda one: rank[one.row.position])
    yield from rows


def shuffle_atoms(
    oracle: OracleRun, node: ShuffleAtoms, epoch: int, _units: Units
) -> Iterator[TypedRow]:
    """Permute pieces, and order the rows of ``size`` pieces at a time by hash of their ids."""
    n = oracle.table(node.chain()[0]).units
    key = _key(oracle, node, (PIECES, 0), epoch)
    order = permutation(n, key)
    oracle.settle(node.input, epoch, order)
    for start in range(0, n, node.size):
        rows = list(oracle.stream(node.input, epoch, order[start : start + node.size]))
        rows.sort(key=lambda one: (_key(oracle, node, one.row.id, epoch), one.row.id))
        yield from rows


def order_atoms(
    oracle: OracleRun, node: OrderAtoms, epoch: int, _units: Units
) -> Iterator[TypedRow]:
    """Yield pieces in permuted order, each unchanged."""
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
    OperatorMeaning(
        OrderAtoms,
        order_atoms,
        (OperatorUse("randomize_block_order", _draw_order_atoms),),
        draws=always,
    ),
    OperatorMeaning(
        ShuffleAll, shuffle_all, (OperatorUse("shuffle", _draw_shuffle, rows=2),), draws=always
    ),
    OperatorMeaning(
        ShuffleWindow,
        shuffle_window,
        (OperatorUse("shuffle_window", _draw_shuffle_window, batches=1),),
        draws=always,
    ),
    OperatorMeaning(
        ShuffleAtoms,
        shuffle_atoms,
        (OperatorUse("shuffle_atoms", _draw_shuffle_atoms, rows=2),),
        draws=always,
    ),
)
