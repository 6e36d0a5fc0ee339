"""Test sorting within a memory budget: ties, tiny budgets, positions, no rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.data.block import Block
from dml.data.schema import Schema
from dml.exec.memory.spill import DiskSpill
from dml.expr.flow import At, Position
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from dml.ops.sort.external_sort import ById, Sorted, order_of

SCHEMA = Schema({"x": pa.int64()})


def at(budget: int) -> At:
    return At(0, 0, KernelTiers(Path("unused"), "numpy"), {}, DiskSpill, budget)


class Rows:
    """Rows 0 .. n - 1 in blocks of ``size``."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size, self.next = n, size, 0

    def pull(self, most: int) -> Block | None:
        start, stop = self.next, min(self.n, self.next + min(most, self.size))
        self.next = stop
        if start == stop:
            return None
        return Block(SCHEMA, (Vec(np.arange(start, stop)),), RowIds.run(9, start, stop - start))

    def position(self) -> Position:
        return {"next": self.next}

    def close(self) -> None:
        """Nothing is open."""


def flow(n: int, size: int, budget: int, modulus: int, position: Position | None = None) -> Sorted:
    def keys(ids: RowIds) -> np.ndarray:
        return ids.low() * np.uint64(7919) % np.uint64(modulus)

    return Sorted(lambda: Rows(n, size), position, at(budget), ById(keys))


def pulled(source: Sorted, most: int) -> Iterator[int]:
    while (block := source.pull(most)) is not None:
        assert 0 < block.n <= most
        yield from block.to_arrow().column(0).to_pylist()
    assert source.pull(most) is None
    source.close()


def wanted(n: int, modulus: int) -> list[int]:
    return sorted(range(n), key=lambda x: (x * 7919 % modulus, x))


@pytest.mark.law
@given(
    st.integers(0, 60), st.integers(1, 9), st.sampled_from([1, 200, 1 << 20]),
    st.sampled_from([1, 2, 5, 1 << 40]), st.integers(1, 70),
)  # fmt: skip
def test_order_is_by_key_and_then_by_id(
    n: int, size: int, budget: int, modulus: int, most: int
) -> None:
    assert list(pulled(flow(n, size, budget, modulus), most)) == wanted(n, modulus)


@pytest.mark.parametrize("budget", [1, 1 << 20])
def test_positions(budget: int) -> None:
    for n in range(13):
        rest = flow(12, 5, budget, 3, {"given": n})
        assert list(pulled(rest, 4)) == wanted(12, 3)[n:]
    source = flow(12, 5, budget, 3)
    source.pull(7)
    assert source.position() == {"given": 7}


def test_ties_are_settled_by_both_halves_of_the_id() -> None:
    high = np.array([2, 1, 2, 1], np.uint64)
    low = np.array([0, 5, 3, 4], np.uint64)
    ids = RowIds.of_arrays(high, low)
    same = order_of(ids, lambda rows: np.zeros(len(rows), np.uint64))
    assert same.tolist() == [3, 1, 0, 2]


class Counted(DiskSpill):
    """A spill that notes how many runs are read at once."""

    at_once: ClassVar[list[int]] = []

    def runs(self, most: int | None = None, *, keep: bool = False) -> list[Iterator[Block]]:
        found = super().runs(most, keep=keep)
        self.at_once.append(len(found))
        return found


def test_rows_larger_than_a_block_bound_the_runs_that_are_merged_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("LEAST_BLOCK", 1), ("LEAST_RUNS", 2)):
        monkeypatch.setattr(f"dml.ops.sort.external_sort.{name}", value)
    budget, row_bytes = 2000, 24
    context = dataclasses.replace(at(budget), spill=Counted)
    source = Sorted(lambda: Rows(4000, 9), None, context, ById(lambda ids: ids.low()))
    assert list(pulled(source, 50)) == list(range(4000))
    assert len(Counted.at_once) > 2
    assert max(Counted.at_once) * 2 * row_bytes <= budget
