"""Test the ordered flow of a stage: positions, sizes of tasks, and the meter."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.api import session
from dml.api.dataset import Dataset
from dml.errors import MemoryContractError, ResumeMismatchError
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.partition import TaskList
from dml.exec.tasks.slices import PartitionFeed, Tasks
from dml.expr.flow import Flow, Position
from dml.optimize.explain.stations import graph_text
from dml.physical import operators
from dml.settings import Settings


def streaming(ds: Dataset, **options: Any) -> Streaming:
    chosen = Settings(executor="sync", telemetry_dir="off", **options)
    return session.streamed(ds._node, chosen, 0)[0]


def rest(flow: Flow, most: int = 1000) -> list[int]:
    found: list[int] = []
    while (block := flow.pull(most)) is not None:
        assert 0 < block.n <= most
        found += block["id"].values.tolist()
    flow.close()
    return found


@pytest.mark.parametrize("target", [1, 100, 1 << 20])
@pytest.mark.parametrize("most", [1, 3, 10, 1000])
def test_every_position_gives_the_rest(target: int, most: int) -> None:
    run = streaming(dml.range(50, atom_rows=10), target_partition_bytes=target)
    flow, given = run.flow(0, None), 0
    while True:
        position: Position = flow.position()
        assert rest(run.flow(0, position)) == list(range(given, 50))
        block = flow.pull(most)
        if block is None:
            break
        given += block.n
    assert given == 50


@pytest.mark.parametrize("target", [1, 100, 1 << 20])
@pytest.mark.parametrize("unit", [0, 2])
@pytest.mark.parametrize("drop", [9, 10, 11, 25, 30])
def test_a_position_may_count_rows_of_several_units(target: int, unit: int, drop: int) -> None:
    run = streaming(dml.range(50, atom_rows=10), target_partition_bytes=target)
    position = {"unit": unit, "atom": 0, "drop": drop}
    flow, wanted = run.flow(0, position), list(range(10 * unit + drop, 50))
    assert rest(run.flow(0, flow.position())) == wanted
    if (block := flow.pull(3)) is not None:
        assert rest(run.flow(0, flow.position())) == wanted[block.n :]
    assert ([] if block is None else block["id"].values.tolist()) + rest(flow) == wanted


def test_a_position_that_counts_more_rows_than_there_are_is_refused() -> None:
    with pytest.raises(ResumeMismatchError):
        rest(streaming(dml.range(50, atom_rows=10)).flow(0, {"unit": 2, "atom": 0, "drop": 31}))


def grown(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": row["id"] * 10 + copy} for copy in range(row["id"] % 4)]


@pytest.mark.sample(4)
@pytest.mark.law
@pytest.mark.parametrize("target", [1, 300, 1 << 20])
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_every_position_of_a_chain_counts_rows_of_its_last_stage(target: int, most: int) -> None:
    ds = dml.range(50, atom_rows=10).flat_map(grown, num_cpus=0.5).map(dict)
    run = streaming(ds, target_partition_bytes=target)
    assert len(run.plan.links) == 2
    whole = rest(run.flow(0, None))
    assert whole == [i * 10 + copy for i in range(50) for copy in range(i % 4)]
    flow, given = run.flow(0, None), 0
    while True:
        position: Position = flow.position()
        assert rest(run.flow(0, position)) == whole[given:]
        block = flow.pull(most)
        if block is None:
            break
        given += block.n


def test_what_settles_in_a_later_stage_is_settled_by_the_first_rows_in_source_order() -> None:
    def turning(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"] if row["id"] < 79 else float(row["id"] // 1)}

    chosen = dml.range(90, atom_rows=10).filter(lambda row: row["id"] > 14, concurrency=2)
    ds = chosen.map(turning, num_cpus=2).batch(7)
    for workers in (2, 4):
        made = ds.with_options(num_workers=workers, target_partition_bytes=1, telemetry_dir="off")
        batches = list(made)
        assert {batch["id"].dtype for batch in batches} == {np.dtype("int64")}


def test_the_end_of_a_unit_is_the_start_of_the_next() -> None:
    flow = streaming(dml.range(50, atom_rows=10)).flow(0, None)
    block = flow.pull(100)
    assert block is not None
    assert block.n == 10
    assert flow.position() == {"unit": 1, "atom": 0, "drop": 0}


def test_tasks_cover_all_places_once() -> None:
    tasks = TaskList(3, 20, 4, skip_atoms=2)
    covered = [(t.start, t.stop, t.skip_atoms) for t in (tasks[i] for i in range(len(tasks)))]
    assert covered == [(3, 7, 2), (7, 11, 0), (11, 15, 0), (15, 19, 0), (19, 20, 0)]
    assert len(TaskList(20, 20, 4, 0)) == 0


@pytest.mark.parametrize("target", [1, 800, 1 << 24])
@pytest.mark.parametrize("rows", [0, 50, 2000])
def test_explain_tells_the_tasks_that_run(rows: int, target: int) -> None:
    run = streaming(dml.range(rows, atom_rows=10), target_partition_bytes=target)
    begun: list[int] = []

    def listened(tasks: Tasks, *given: Any, **options: Any) -> PartitionFeed:
        begun.append(len(tasks))
        return run.open(tasks, *given, **options)

    dataclasses.replace(run, open=listened).flow(0, None).close()
    assert graph_text(run.plan, run.target_bytes).startswith(f"{begun[0]} task")


def test_a_position_of_something_else_is_refused() -> None:
    with pytest.raises(ResumeMismatchError):
        streaming(dml.range(50)).flow(0, {"window": 3})


@pytest.mark.parametrize("error", [KeyError, TypeError, ValueError])
def test_a_driver_that_fails_without_a_position_is_not_told_as_one(error: type[Exception]) -> None:
    def failing(*_: Any, **__: Any) -> PartitionFeed:
        raise error("not of a position")

    run = dataclasses.replace(streaming(dml.range(50).skip(3)), open=failing)
    with pytest.raises(error, match="not of a position"):
        run.flow(0, None)


def test_the_meter_sees_rows_bytes_and_time_at_every_place() -> None:
    run = streaming(dml.range(1000, atom_rows=100).shuffle(50).skip(1))
    rows = len(rest(run.flow(0, None)))
    stage, window, skip = run.meter.cells
    assert (stage.rows, window.rows, skip.rows, rows) == (1000, 1000, 999, 999)
    assert 7000 < skip.nbytes < 30_000
    assert skip.seconds >= window.seconds >= 0


@pytest.mark.law
def test_pieces_of_a_permuted_source_count_against_the_window() -> None:
    ds = dml.range(10**6, atom_rows=50_000).shuffle(window="atoms", size=8)
    assert np.array_equal(np.sort(rest(streaming(ds).flow(0, None))), np.arange(10**6))
    with pytest.raises(MemoryContractError, match="ShuffleAtoms"):
        rest(streaming(ds, memory_limit="4MiB").flow(0, None))


@pytest.mark.law
def test_a_spill_larger_than_a_merge_takes_several_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("dml.ops.sort.external_sort.LEAST_RUNS", 2)
    ds = dml.range(40_000).flat_map(lambda row: [row]).shuffle(seed=1)
    run = streaming(ds, memory_limit="1MiB")
    found = rest(run.flow(0, None))
    assert found == rest(streaming(ds, memory_limit="1GiB").flow(0, None))
    assert sorted(found) == list(range(40_000))
    assert list(tmp_path.iterdir()) == []


def batched(rows: int, atom: int, keep: int) -> Dataset:
    """Numbers of which few are kept, or none of an atom; two steps that are proven."""
    numbers = dml.range(rows, atom_rows=atom).map(lambda row: {"id": row["id"] * 3})
    return numbers.filter(lambda row: row["id"] % keep == 0).batch(3)


def steps_of(
    ds: Dataset, position: Position | None = None
) -> tuple[list[tuple[Position, list[int]]], int]:
    """Every batch from ``position`` on with the position behind it; and blocks that were read."""
    run = streaming(ds)
    flow, found = run.flow(0, position), list[tuple[Position, list[int]]]()
    while (block := flow.pull(1)) is not None:
        found.append((flow.position(), block["id"].values.tolist()))
    flow.close()
    cells = dict(run.tallies.total().cells())
    return found, cells[0].blocks if cells else 0


@pytest.mark.law
@settings(max_examples=8, deadline=None)
@given(st.integers(512, 900), st.integers(1, 2), st.sampled_from([1, 2, 3, 7, 50, 10_000]))
def test_units_as_one_block_cannot_be_told_from_units_alone(
    rows: int, atom: int, keep: int
) -> None:
    ds = batched(rows, atom, keep)
    steps_of(ds)  # first rows are compared with the functions, unit by unit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "FILTERED", 1)
        alone, units = steps_of(ds)
    together, blocks = steps_of(ds)
    assert together == alone
    assert blocks < units == -(-rows // atom)
    kept = [3 * i for i in range(rows) if 3 * i % keep == 0]
    assert [i for _, batch in together for i in batch] == kept
    for place in range(0, len(alone), 1 + len(alone) // 2):
        assert steps_of(ds, alone[place][0])[0] == alone[place + 1 :]


def test_units_whose_rows_lie_outside_the_proof_go_alone() -> None:
    shifted = dml.range(600, atom_rows=2).map(lambda row: {"id": row["id"] * 2**55})
    flow, seen = streaming(shifted.batch(5)).flow(0, None), list[int]()
    while len(seen) < 255:
        block = flow.pull(5)
        assert block is not None
        seen += [value >> 55 for value in block["id"].values.tolist()]
    assert seen == list(range(255))
    with pytest.raises(dml.errors.DmlError, match=str(256 * 2**55)):
        flow.pull(5)


def test_units_that_do_not_fit_into_memory_together_go_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = dml.range(600, atom_rows=2)

    def read_run(*_given: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(rows._node), "read_run", read_run)
    found, _ = steps_of(rows.filter(dml.col("id") >= 0).batch(5))
    assert [i for _, batch in found for i in batch] == list(range(600))
