"""This file tests what a task makes: pieces that say where they stand, partitions of a size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.dataset import Dataset
from dml.errors import MemoryContractError, UDFError
from dml.events import Tally
from dml.exec.slices import Outcome
from dml.exec.spill import DiskSpill
from dml.exec.work import Piece, Reading, Sizes, Task, partitions
from dml.expr.flow import At
from dml.kernels.fuse import Tiers
from dml.optimize.phases import optimize

PLENTY = 1 << 40


def made(
    ds: Dataset, folder: Path, task: Task, target: int = 1, most: int = PLENTY
) -> tuple[list[Outcome], Tally]:
    stage = optimize(ds._node, 0).plan.stage
    at = At(0, 0, Tiers(folder, "numpy"), {}, DiskSpill, PLENTY)
    tally = Tally()
    outcomes: Iterator[Outcome] = partitions(
        Reading(stage, at), task, Sizes(target, most), lambda: tally
    )
    return list(outcomes), tally


def pieces(outcomes: list[Outcome]) -> list[tuple[int, int, int, bool]]:
    found: list[Piece] = [piece for outcome in outcomes for piece in outcome.value]
    return [(p.place, p.atom, 0 if p.block is None else p.block.n, p.ends) for p in found]


def test_the_last_block_of_a_unit_ends_it(tmp_path: Path) -> None:
    ds = dml.range(25, atom_rows=10)
    outcomes, _ = made(ds, tmp_path, Task(0, 3))
    assert pieces(outcomes) == [(0, 0, 10, True), (1, 0, 10, True), (2, 0, 5, True)]
    assert [o.done for o in outcomes] == [False, False, True], "no slice is spent on an end alone"
    assert [o.rows for o in outcomes] == [10, 10, 5]


def test_partitions_grow_to_their_target(tmp_path: Path) -> None:
    outcomes, _ = made(dml.range(100, atom_rows=10), tmp_path, Task(0, 10), target=200)
    assert [o.rows for o in outcomes] == [30, 30, 30, 10]
    assert [o.held_bytes for o in outcomes] == [240, 240, 240, 80]


def test_a_unit_without_rows_still_ends(tmp_path: Path) -> None:
    ds = dml.range(20, atom_rows=10).flat_map(lambda row: [row] * (row["id"] == 3))
    outcomes, tally = made(ds, tmp_path, Task(0, 2))
    assert pieces(outcomes) == [(0, 0, 1, True), (1, 1, 0, True)]
    assert tally.cells()[1][1].python_calls == 20


def test_atoms_of_a_row_group_are_numbered_and_may_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(20))}), path, row_group_size=10)
    ds = dml.read_parquet(str(path), atom_rows=4)
    outcomes, tally = made(ds, tmp_path, Task(0, 2, skip_atoms=1))
    assert pieces(outcomes) == [
        (0, 1, 4, False), (0, 2, 2, True), (1, 0, 4, False), (1, 1, 4, False), (1, 2, 2, True),
    ]  # fmt: skip
    assert tally.cells()[0][1].bytes_in > 0
    assert all(o.parked_bytes > 0 for o in outcomes), "a decoder holds pages"


def test_an_error_comes_after_the_rows_before_it(tmp_path: Path) -> None:
    def check(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": 1 // (14 - row["id"]), "id": row["id"]}

    outcomes, _ = made(dml.range(30, atom_rows=10).map(check), tmp_path, Task(0, 3))
    assert sum(o.rows for o in outcomes) == 14
    error = outcomes[-1].value[-1].error
    assert isinstance(error, UDFError)
    assert error.row == 14
    assert outcomes[-1].done


def test_what_cannot_fit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(50_000))}), path)
    outcomes, tally = made(dml.read_parquet(str(path)), tmp_path, Task(0, 1), most=1000)
    error = outcomes[-1].value[-1].error
    assert isinstance(error, MemoryContractError)
    assert "a.parquet, row group 0" in error.at
    assert error.why
    assert error.try_
    assert not tally.cells()


@pytest.mark.parametrize("rows", [1, 1000])
def test_a_block_that_grew_too_large_is_refused(tmp_path: Path, rows: int) -> None:
    large = {"text": "string"}
    ds = dml.range(rows).map(lambda row: {"text": "x" * (9_999 + row["id"])}, schema=large)
    outcomes, _ = made(ds, tmp_path, Task(0, 1), most=9000)
    assert isinstance(outcomes[-1].value[-1].error, MemoryContractError)
