"""Test tasks: pieces with their places, and partitions of the target size.

A later stage is tested by the partitions that it makes of those of the stage before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import MemoryContractError, UDFError
from dml.events import Tally
from dml.exec.memory.memory_shares import objects_bytes
from dml.exec.memory.spill import DiskSpill
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import PartitionSizes, Piece, ReadTask
from dml.exec.tasks.slices import Outcome
from dml.expr.flow import At
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.optimize.phases import optimize

PLENTY = 1 << 40


def job_of(ds: Dataset, folder: Path, target: int = 1, most: int = PLENTY) -> Job:
    plan = optimize(ds._node, 0).plan
    at = At(0, 0, KernelTiers(folder, "numpy"), {}, DiskSpill, PLENTY)
    return Job(plan.stage, at, PartitionSizes(target, most), links=plan.links)


def made(
    ds: Dataset, folder: Path, task: ReadTask, target: int = 1, most: int = PLENTY
) -> tuple[list[Outcome], Tally]:
    tally = Tally()
    (start,) = job_of(ds, folder, target, most).starts(lambda: tally)
    return list(start(task)), tally


def chained(
    ds: Dataset, folder: Path, task: ReadTask, target: int = 1, most: int = PLENTY
) -> tuple[list[list[Outcome]], Tally]:
    """Per stage, the outcomes of all its tasks, each made of one outcome of the stage before."""
    tally = Tally()
    first, *later = job_of(ds, folder, target, most).starts(lambda: tally)
    stages = [list(first(task))]
    for start in later:
        stages.append([each for given in stages[-1] for each in start(given.value)])
    return stages, tally


def pieces(outcomes: list[Outcome]) -> list[tuple[int, int, int, bool]]:
    found: list[Piece] = [piece for outcome in outcomes for piece in outcome.value]
    return [(p.place, p.atom, 0 if p.block is None else p.block.n, p.ends) for p in found]


def test_the_last_block_of_a_unit_ends_it(tmp_path: Path) -> None:
    ds = dml.range(25, atom_rows=10)
    outcomes, _ = made(ds, tmp_path, ReadTask(0, 3))
    assert pieces(outcomes) == [(0, 0, 10, True), (1, 0, 10, True), (2, 0, 5, True)]
    assert [o.done for o in outcomes] == [False, False, True], "no slice is spent on an end alone"
    assert [o.rows for o in outcomes] == [10, 10, 5]


def test_partitions_grow_to_their_target(tmp_path: Path) -> None:
    outcomes, _ = made(dml.range(100, atom_rows=10), tmp_path, ReadTask(0, 10), target=200)
    assert [o.rows for o in outcomes] == [30, 30, 30, 10]
    rows_bytes = [o.held_bytes - objects_bytes(len(o.value), len(o.value)) for o in outcomes]
    assert rows_bytes == [240, 240, 240, 80]


def test_a_row_is_not_free_where_it_is_a_partition(tmp_path: Path) -> None:
    """Or a million that nobody has taken yet would be 8 MB to the scheduler and 1.5 GB in truth."""
    outcomes, _ = made(dml.range(50, atom_rows=1), tmp_path, ReadTask(0, 50), target=1)
    assert len(outcomes) == 50
    assert min(o.held_bytes for o in outcomes) >= 1024


def test_a_unit_without_rows_still_ends(tmp_path: Path) -> None:
    ds = dml.range(20, atom_rows=10).flat_map(lambda row: [row] * (row["id"] == 3))
    outcomes, tally = made(ds, tmp_path, ReadTask(0, 2))
    assert pieces(outcomes) == [(0, 0, 1, True), (1, 1, 0, True)]
    assert tally.cells()[1][1].python_calls == 20


def test_atoms_of_a_row_group_are_numbered_and_may_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(20))}), path, row_group_size=10)
    ds = dml.read_parquet(str(path), atom_rows=4)
    outcomes, tally = made(ds, tmp_path, ReadTask(0, 2, skip_atoms=1))
    assert pieces(outcomes) == [
        (0, 1, 4, False), (0, 2, 2, True), (1, 0, 4, False), (1, 1, 4, False), (1, 2, 2, True),
    ]  # fmt: skip
    assert tally.cells()[0][1].bytes_in > 0
    assert all(o.parked_bytes > 0 for o in outcomes), "a decoder holds pages"


def test_an_error_comes_after_the_rows_before_it(tmp_path: Path) -> None:
    def check(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": 1 // (14 - row["id"]), "id": row["id"]}

    outcomes, _ = made(dml.range(30, atom_rows=10).map(check), tmp_path, ReadTask(0, 3))
    assert sum(o.rows for o in outcomes) == 14
    error = outcomes[-1].value[-1].error
    assert isinstance(error, UDFError)
    assert error.row == 14
    assert outcomes[-1].done


@pytest.mark.law
def test_what_cannot_fit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(50_000))}), path)
    outcomes, tally = made(dml.read_parquet(str(path)), tmp_path, ReadTask(0, 1), most=1000)
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
    outcomes, _ = made(ds, tmp_path, ReadTask(0, 1), most=9000)
    assert isinstance(outcomes[-1].value[-1].error, MemoryContractError)


def half(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "half": row["id"] / 2}


def copies(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return ({**row, "copy": copy} for copy in range(row["id"] % 3))


def inverse(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "y": 1 // (14 - row["id"])}


def test_a_later_stage_keeps_places_atoms_and_ends(tmp_path: Path) -> None:
    ds = dml.range(25, atom_rows=10).map(half, num_cpus=2)
    (first, second), tally = chained(ds, tmp_path, ReadTask(0, 3))
    assert pieces(first) == pieces(second) == [(0, 0, 10, True), (1, 0, 10, True), (2, 0, 5, True)]
    assert [o.done for o in second] == [True] * 3, "each is all that its task makes"
    assert [o.rows for o in second] == [10, 10, 5]
    totals = {ordinal: cell.rows_out for ordinal, cell in tally.cells()}
    assert totals == {0: 25, 1: 25}
    assert tally.cells()[1][1].python_calls == 25


def test_ordinals_count_over_the_whole_chain(tmp_path: Path) -> None:
    ds = dml.range(20, atom_rows=5).filter(lambda row: row["id"] != 3, fingerprint="f")
    ds = ds.map(half, num_cpus=2).flat_map(copies, concurrency=1).filter(bool, concurrency=1)
    stages, tally = chained(ds, tmp_path, ReadTask(0, 4), target=1 << 20)
    assert len(stages) == 3
    assert sorted(ordinal for ordinal, _ in tally.cells()) == [0, 1, 2, 3, 4]
    cells = dict(tally.cells())
    assert cells[2].rows_in == cells[2].rows_out == cells[3].rows_in == 19
    assert cells[4].rows_in == cells[3].rows_out


def test_a_job_sent_away_makes_the_same_in_every_stage(tmp_path: Path) -> None:
    ds = dml.range(40, atom_rows=7).map(half, num_cpus=2).flat_map(copies)
    job = job_of(ds, tmp_path, target=200)
    sent = cloudpickle.loads(cloudpickle.dumps(job))
    found = []
    for each in (job, sent):
        values: list[Any] = [ReadTask(0, 6)]
        for start in each.starts(Tally):
            values = [outcome.value for value in values for outcome in start(value)]
        pieces = [piece for value in values for piece in value]
        found.append([(p.place, p.atom, p.block and p.block.to_arrow()) for p in pieces])
    assert found[0] == found[1]


def test_a_growing_later_stage_gives_several_partitions(tmp_path: Path) -> None:
    def many(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return ({"id": row["id"], "copy": copy} for copy in range(1000))

    ds = dml.range(30, atom_rows=10).flat_map(many, num_cpus=2)
    (first, second), _ = chained(ds, tmp_path, ReadTask(0, 3), target=240)
    assert [o.rows for o in first] == [30]
    assert len(second) == 9, "three blocks of at most 4096 rows for each atom"
    assert [o.done for o in second] == [False] * 8 + [True]
    assert sum(o.rows for o in second) == 30_000
    assert [p.ends for o in second for p in o.value].count(True) == 3
    assert [p.place for o in second for p in o.value] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_later_stage_without_rows_still_ends_units(tmp_path: Path) -> None:
    ds = dml.range(20, atom_rows=10).filter(lambda row: row["id"] == 3, concurrency=1)
    ds = ds.flat_map(copies)
    stages, _ = chained(ds, tmp_path, ReadTask(0, 2))
    assert pieces(stages[-1]) == [(0, 0, 0, True), (1, 0, 0, True)]
    assert all(o.done for o in stages[-1])


def test_an_error_of_a_later_stage_names_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": list(range(30))}), path, row_group_size=10)
    ds = dml.read_parquet(str(path), atom_rows=4).map(half, concurrency=1).map(inverse)
    stages, _ = chained(ds, tmp_path, ReadTask(0, 3), target=1 << 20)
    (outcome,) = stages[-1]
    assert outcome.rows == 14
    error = outcome.value[-1].error
    assert isinstance(error, UDFError)
    assert (error.row_group, error.row) == (1, 14)
    assert "a.parquet, row group 1, row 14" in error.at
    assert (outcome.value[-1].place, outcome.value[-1].atom) == (1, 1)
    assert outcome.done


def test_an_error_of_an_earlier_stage_passes_later_ones_as_it_is(tmp_path: Path) -> None:
    ds = dml.range(30, atom_rows=10).map(inverse, num_cpus=2).map(half, concurrency=1).map(half)
    stages, _ = chained(ds, tmp_path, ReadTask(0, 3), target=1 << 20)
    errors = [stage[-1].value[-1].error for stage in stages[1:]]
    assert errors[0] is errors[1] is errors[2]
    assert isinstance(errors[0], UDFError)
    assert errors[0].row == 14
    assert "inverse" in errors[0].at
    assert "half" not in errors[0].at
    assert [sum(o.rows for o in stage) for stage in stages] == [30, 14, 14, 14]


def test_atoms_reach_a_later_stage_whole_where_it_groups_rows(tmp_path: Path) -> None:
    def many(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return ({"id": row["id"], "copy": copy} for copy in range(1000))

    def counted(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"][:1], "rows": np.array([len(batch["id"])])}

    ds = dml.range(30, atom_rows=10).flat_map(many)
    ds = ds.map_batches(counted, batch_size=3_000, num_cpus=2)
    (_, second), tally = chained(ds, tmp_path, ReadTask(0, 3), target=1)
    rows = [p.block["rows"].values.tolist() for o in second for p in o.value if p.block]
    assert rows == [[3_000], [3_000], [3_000], [1_000]] * 3
    assert dict(tally.cells())[2].python_calls == 12
    assert dict(tally.cells())[2].rows_in == 30_000


def test_a_group_with_a_row_that_fails_is_not_made_in_any_stage(tmp_path: Path) -> None:
    def counted(batch: dict[str, Any]) -> dict[str, Any]:
        return {"rows": np.array([len(batch["id"])])}

    for cpus in (1, 2):
        ds = dml.range(30, atom_rows=10).map(inverse)
        ds = ds.map_batches(counted, batch_size=3, num_cpus=cpus)
        stages, _ = chained(ds, tmp_path, ReadTask(0, 3), target=1 << 20)
        made = [p for o in stages[-1] for p in o.value if p.block is not None]
        counts = [p.block["rows"].values.tolist() for p in made]
        assert counts == [[3], [3], [3], [1], [3]]
        assert stages[-1][-1].value[-1].error is not None


def test_what_a_later_stage_was_promised_is_held_while_it_is_parked(tmp_path: Path) -> None:
    ds = dml.range(30, atom_rows=10).flat_map(copies, memory="1MiB")
    (first, second), _ = chained(ds, tmp_path, ReadTask(0, 3), target=1)
    assert all(o.parked_bytes >= 1 << 20 for o in second)
    assert all(o.parked_bytes < 1 << 20 for o in first)


@pytest.mark.law
@pytest.mark.parametrize("cpus", [1, 2])
def test_an_atom_that_is_gathered_must_fit(cpus: int, tmp_path: Path) -> None:
    def many(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return ({"id": row["id"], "copy": copy} for copy in range(1000))

    def same(batch: dict[str, Any]) -> dict[str, Any]:
        return batch

    ds = dml.range(20, atom_rows=10).flat_map(many)
    ds = ds.map_batches(same, batch_size=10_000, num_cpus=cpus)
    for atom_bytes, rows in ((2_000_000, 20_000), (100_000, 0)):
        job = job_of(ds, tmp_path, target=1 << 20)
        job = dataclasses.replace(job, sizes=PartitionSizes(1 << 20, PLENTY, atom_bytes))
        values: list[Any] = [ReadTask(0, 2)]
        for start in job.starts(Tally):
            values = [outcome.value for value in values for outcome in start(value)]
        found = [piece for value in values for piece in value]
        assert sum(piece.block.n for piece in found if piece.block is not None) == rows
        error = found[-1].error
        assert isinstance(error, MemoryContractError) is (not rows)
        assert rows or "do not fit into the memory number" in str(error)
