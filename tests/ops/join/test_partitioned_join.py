"""Test joins from disk: order, memory where one key has most rows, errors, many runs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.data.block import Block, block_of
from dml.errors import UDFError
from dml.exec.memory.spill import DiskSpill
from dml.expr.flow import CHUNK, Flow
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from dml.ops.join.partitioned_join import LEFT_ROW, RIGHT_ROW, merged, numbers_of
from dml.testing.executions import RunWay, streaming
from tests.alone import alone
from tests.expr.checks import UNUSED, node_of, numbers

WIDE = 1 << 40


def one_key(n: int, name: str) -> dml.Dataset:
    """Rows of which all but every tenth have one key."""
    keys = [i if i % 10 == 3 else 7 for i in range(n)]
    return dml.from_arrow(pa.table({"k": keys, name: pa.array(range(n))}), atom_rows=64)


def opened(ds: dml.Dataset, budget: int) -> Flow:
    return streaming(node_of(ds), RunWay(budget=budget, target_bytes=4096), UNUSED).flow(0, None)


def pulled(flow: Flow, see: Callable[[Block], Any]) -> list[Any]:
    found = []
    try:
        while (block := flow.pull(WIDE)) is not None:
            found.append(see(block))
    finally:
        flow.close()
    return found


@pytest.mark.law
@alone
def test_one_key_with_most_rows_takes_no_more_memory() -> None:
    n = 700
    ds = one_key(n, "x").join(one_key(n, "y"), "k")
    for budget in (30_000, 1 << 30):
        flow = opened(ds, budget)
        tracemalloc.start()
        try:
            parts = pulled(flow, lambda b: (b.n, b["x"][0][[0, -1]].tolist(), b["y"][0][0]))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        many = n - n // 10
        assert sum(rows for rows, _, _ in parts) == many * many + n // 10
        assert max(rows for rows, _, _ in parts) <= CHUNK
        assert peak < 6 << 20  # all rows have 22 MB


@pytest.mark.law
def test_memory_and_disk_give_the_same_order() -> None:
    ds = one_key(90, "x").join(one_key(70, "y"), "k", how="outer")
    found = [
        np.concatenate(pulled(opened(ds, budget), lambda b: np.stack(b.ids.arrays())), 1)
        for budget in (1, 1000, 30_000, 1 << 30)
    ]
    assert found[0].shape == (2, 63 * 81 + 7 + 2)
    assert all((each == found[0]).all() for each in found)


def failing(at: int) -> dml.Dataset:
    schema = {"x": "int64"}
    return numbers(9).map(lambda row: {"x": row["x"] + 0 // (at - row["x"])}, schema=schema)


@pytest.mark.law
@pytest.mark.parametrize("how", ["left", "outer", "anti"])
def test_an_error_of_the_left_side_comes_after_its_rows(how: str) -> None:
    other = numbers(3) if how == "anti" else numbers(9).with_columns(y=dml.col("x"))
    flow = opened(failing(6).join(other, "x", how=how), 1)
    wanted = [3, 4, 5] if how == "anti" else [0, 1, 2, 3, 4, 5]
    found: list[int] = []
    while len(found) < len(wanted) and (block := flow.pull(WIDE)) is not None:
        found += block["x"][0].tolist()
    assert found == wanted
    for _ in range(2):
        with pytest.raises(UDFError):
            flow.pull(WIDE)
    flow.close()


def test_an_error_of_the_right_side_comes_at_once_and_again() -> None:
    flow = opened(numbers(9).join(failing(6), "x", how="outer"), 1)
    for _ in range(2):
        with pytest.raises(UDFError):
            flow.pull(WIDE)
    flow.close()


@pytest.mark.law
def test_what_is_closed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flow = opened(one_key(90, "x").join(one_key(70, "y"), "k"), 1000)
    assert flow.pull(5) is not None
    assert list(tmp_path.iterdir())
    flow.close()
    assert not list(tmp_path.iterdir())
    assert flow.pull(5) is None


def run_of(pairs: list[tuple[int, int]]) -> list[Block]:
    columns = [np.array(side, "u8") for side in zip(*sorted(pairs), strict=True)]
    named = {
        name: (pa.uint64(), Vec(values))
        for name, values in zip((LEFT_ROW, RIGHT_ROW), columns, strict=True)
    }
    whole = block_of(named, RowIds.run(1, 0, len(pairs)))
    return [whole.slice(i, i + 3) for i in range(0, whole.n, 3)]


@pytest.mark.law
def test_runs_are_merged_in_several_passes(tmp_path: Path) -> None:
    draw = np.random.default_rng(4)
    pairs = list({(int(a), int(b)) for a, b in draw.integers(0, 40, (900, 2))})
    runs = [run_of(pairs[i::30]) for i in range(30)]
    spill = DiskSpill(runs[0][0].schema, str(tmp_path))
    for run in runs:
        spill.write(iter(run))
    found = [
        pair
        for block in merged(spill, 1)
        for pair in zip(
            numbers_of(block, LEFT_ROW).tolist(), numbers_of(block, RIGHT_ROW).tolist(), strict=True
        )
    ]
    assert found == sorted(pairs)
    spill.close()
