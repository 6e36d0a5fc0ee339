"""Test the order of rows by columns: merging of runs, and where equal rows begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.data.block import Block
from dml.kernels.rows.ids import RowIds
from dml.ops.sort.row_order import Ordering

KEYS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.0, 2.0, float("nan")]), st.floats(0, 9))


def block_of(keys: list[Any], first: int) -> Block:
    columns = pa.record_batch(
        {"k": pa.array(keys, pa.float64()), "at": pa.array(range(first, first + len(keys)))}
    )
    return Block.from_arrow(columns, RowIds.run(1, first, len(keys)))


def runs_of(order: Ordering, runs: list[list[Any]], size: int) -> list[Iterator[Block]]:
    made, first = [], 0
    for keys in runs:
        block = block_of(keys, first)
        block = block.take(order.order(block))
        made.append(iter([block.slice(i, min(i + size, block.n)) for i in range(0, block.n, size)]))
        first += len(keys)
    return made


@pytest.mark.law
@given(
    st.lists(st.lists(KEYS, min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(1, 5), st.integers(0, 20), st.booleans(), st.booleans(),
)  # fmt: skip
def test_merged_runs_are_the_whole_in_order(
    runs: list[list[Any]], size: int, ahead: int, down: bool, last: bool
) -> None:
    order = Ordering(("k",), (down,), last)
    whole = block_of([key for keys in runs for key in keys], 0)
    wanted = order.order(whole).tolist()
    found: list[int] = []
    for block in order.merged(runs_of(order, runs, size), ahead):
        assert block.n > 0
        found += block.to_arrow().column("at").to_pylist()
    assert found == wanted


@pytest.mark.law
@given(st.lists(KEYS, min_size=1, max_size=20))
def test_runs_of_equal_keys(keys: list[Any]) -> None:
    order = Ordering(("k",), (False,))
    block = block_of(keys, 0)
    block = block.take(order.order(block))
    keyed = order.keyed(block)
    starts = order.starts(block, keyed).tolist()
    assert starts == [i for i in range(1, block.n) if keyed[i] != keyed[i - 1]]


def test_each_round_is_no_more_than_is_at_hand() -> None:
    order = Ordering(("k",), (False,))
    runs = [[float(i) for i in range(100)], [50.0] * 100, [float(i) for i in range(99, -1, -1)]]
    sizes = [block.n for block in order.merged(runs_of(order, runs, 5), 10)]
    assert sum(sizes) == 300
    assert max(sizes) <= 3 * 5 + 10 + 5
    assert np.mean(sizes) >= 5
