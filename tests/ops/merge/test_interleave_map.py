"""Test ``interleave`` of a function: the rows of the pipelines that it returns, in a cycle."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.errors import PlanError, SchemaError, UDFError
from dml.ops.merge import interleave_map
from dml.testing.oracle import Oracle
from tests.expr.checks import QUIET, agrees, holds, node_of, numbers, resumes, table

LENGTHS = [7, 0, 3, 12, 5, 1, 0, 0, 4, 2, 6]


def counted(row: dict[str, Any]) -> dml.Dataset:
    """As many rows as the row says, numbered from a hundred times its number."""
    first = row["x"] * 100
    return dml.range(first, first + row["n"], atom_rows=2)


def lengths(given: list[int]) -> dml.Dataset:
    return table({"x": pa.array(range(len(given)), pa.int64()), "n": pa.array(given, pa.int64())})


def ids(ds: dml.Dataset) -> list[int]:
    return [row["id"] for row in ds.with_options(**QUIET)]


def round_robin(given: list[int], cycle: int, block: int) -> list[int]:
    """tf.data's InterleaveDataset, element by element."""
    waiting = iter([[tag * 100 + i for i in range(n)] for tag, n in enumerate(given)])
    places: list[list[int] | None] = [None] * cycle
    place = taken = 0
    more, out = True, list[int]()
    while more or any(each is not None for each in places):
        queue = places[place]
        if queue:
            out.append(queue.pop(0))
            taken += 1
            if taken == block:
                place, taken = (place + 1) % cycle, 0
        elif queue is not None:
            places[place] = None
            place, taken = (place + 1) % cycle, 0
        elif more:
            places[place] = next(waiting, None)
            more = places[place] is not None
        else:
            place, taken = (place + 1) % cycle, 0
    return out


@pytest.mark.parametrize("block", range(1, 6))
@pytest.mark.parametrize("cycle", range(1, 6))
def test_the_order_is_that_of_tf_data(cycle: int, block: int) -> None:
    for given in (LENGTHS, LENGTHS[::-1], [40] * 3, [0, 0, 5], []):
        ds = lengths(given).interleave(counted, cycle_length=cycle, block_length=block)
        assert ids(ds) == round_robin(given, cycle, block)


def test_the_example_of_tf_data() -> None:
    ds = dml.range(1, 6).interleave(
        lambda row: dml.from_dict({"v": [row["id"]] * 6}), cycle_length=2, block_length=4
    )
    found = "".join(str(row["v"]) for row in ds.with_options(**QUIET))
    assert found == "111122221122333344443344555555"


def mixed(row: dict[str, Any]) -> dml.Dataset:
    """Pipelines that draw, mix and call functions whose types must settle."""
    ds = counted(row).with_columns(u=dml.random(seed=3))
    if row["x"] % 3 == 1:
        return ds.shuffle(3, seed=row["x"])
    return ds.map(dict) if row["x"] % 3 else ds.flat_map(lambda each: [each, dict(each)])


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.parametrize(("cycle", "block"), [(2, 3), (4, 1)])
def test_every_way_of_running_and_resuming(cycle: int, block: int) -> None:
    few = [2, 0, 3, 1]
    ds = lengths(few).interleave(mixed, cycle_length=cycle, block_length=block)
    assert holds(ds) == sum(few) + sum(few[::3])
    whole = lengths(LENGTHS).interleave(mixed, cycle_length=cycle, block_length=block)
    agrees(whole.shuffle(4, seed=1).batch(3), epochs=(1,))
    agrees(ds.filter(col("id") % 2 == 0).take(9))
    agrees(ds.random_map(lambda row, rng: {"v": rng.random(), **row}))


@pytest.mark.law
def test_inputs_of_any_kind() -> None:
    ds = lengths([3, 0, 2, 1, 2])
    for made in (ds.shuffle(seed=2), ds.filter(col("n") > 1), ds.repeat(2), ds.concat(ds)):
        assert resumes(made.interleave(counted, cycle_length=3)) > 0
        agrees(made.interleave(counted, cycle_length=3, block_length=2))
    agrees(lengths([3, 2]).interleave(lambda row: lengths([1, row["n"]]).interleave(counted)))


def test_epochs_and_endless_pipelines() -> None:
    ds = lengths([3, 3, 3]).interleave(lambda row: counted(row).repeat(), cycle_length=2)
    assert ids(ds.take(8)) == [0, 100, 1, 101, 2, 102, 0, 100]
    drawn = lengths([4, 4]).interleave(lambda row: counted(row).shuffle())
    assert len({tuple(ids(drawn.epoch(k))) for k in range(4)}) > 1
    again = lengths([4, 4]).interleave(lambda row: counted(row).shuffle())
    assert ids(again.epoch(2)) == ids(drawn.epoch(2))


def test_ids_are_unique_however_the_rows_come_twice() -> None:
    ds = lengths([3, 3, 3]).interleave(lambda _row: dml.range(5, atom_rows=2))
    twice = ds.concat(lengths([3]).interleave(lambda _row: dml.range(5)))
    found = list(Oracle(node_of(twice)).ids())
    assert len(set(found)) == len(found) == 20


def test_no_more_pipelines_are_opened_than_the_cycle_has_places() -> None:
    opened: list[int] = []

    def noted(row: dict[str, Any]) -> dml.Dataset:
        opened.append(row["x"])
        return counted(row)

    run = iter(lengths([3] * 9).interleave(noted, cycle_length=2).with_options(**QUIET))
    next(run)
    assert opened == [0]
    list(itertools.islice(run, 3))
    assert opened == [0, 1]
    list(run)
    assert opened == list(range(9))


def test_a_resumed_run_calls_the_function_for_open_pipelines_alone() -> None:
    opened: list[int] = []

    def noted(row: dict[str, Any]) -> dml.Dataset:
        opened.append(row["x"])
        return counted(row)

    ds = lengths([3] * 20).interleave(noted, cycle_length=2, block_length=2)
    run = iter(ds.with_options(**QUIET))
    given = [row["id"] for row in itertools.islice(run, 31)]
    state = json.loads(json.dumps(run.state_dict()))
    opened.clear()
    rest = iter(ds.with_options(**QUIET))
    rest.load_state_dict(state)
    given.append(next(rest)["id"])
    assert len(set(opened)) <= 4
    assert min(opened) >= 8
    assert [*given, *(row["id"] for row in rest)] == round_robin([3] * 20, 2, 2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("near", [0, 2, 1024])
def test_the_input_is_opened_once_where_open_rows_are_near(
    near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleave_map, "NEAR", near)
    given = [2, 30, 2, 2, 2, 30, 2, 2, 2, 2]
    ds = lengths(given).shuffle(2, seed=1).interleave(mixed, cycle_length=3)
    assert resumes(ds) == len(list(ds.with_options(**QUIET)))


def files(folder: Path) -> dml.Dataset:
    for number in range(5):
        data = pa.table({"y": pa.array(range(number * 10, number * 10 + 4), pa.int64())})
        pq.write_table(data, folder / f"{number}.parquet", row_group_size=3)
    return dml.from_dict({"path": [str(folder / f"{number}.parquet") for number in range(5)]})


@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_files_read_side_by_side_with_any_executor(executor: str, tmp_path: Path) -> None:
    ds = files(tmp_path).interleave(lambda row: dml.read_parquet(row["path"]), cycle_length=5)
    found = [row["y"] for row in ds.with_options(**QUIET | {"executor": executor})]
    assert found == [number * 10 + i for i in range(4) for number in range(5)]


def in_processes(row: dict[str, Any]) -> dml.Dataset:
    return dml.range(10 * row["id"], 10 * row["id"] + 10).map(worked)


def worked(row: dict[str, Any]) -> dict[str, Any]:
    until = time.thread_time() + 0.01  # ten of them are no short pipeline
    while time.thread_time() < until:
        pass
    return {"id": row["id"], "pid": os.getpid()}


def test_functions_of_the_pipelines_are_called_by_the_worker_processes_of_the_run() -> None:
    ds = dml.range(12).interleave(in_processes, cycle_length=4)
    options = {**QUIET, "executor": "processes", "num_workers": 2}
    rows = list(ds.with_options(**options))
    assert len({row["pid"] for row in rows} - {os.getpid()}) == 2
    assert os.getpid() not in {row["pid"] for row in rows}
    first = [10 * place + i for i in range(10) for place in range(4)]
    assert [row["id"] for row in rows] == [40 * turn + each for turn in range(3) for each in first]


def test_within_a_small_memory_number(tmp_path: Path) -> None:
    ds = files(tmp_path).interleave(lambda row: dml.read_parquet(row["path"]).shuffle(seed=1))
    assert len(list(ds.with_options(**QUIET, memory_limit="8MiB"))) == 20


def test_the_schema_is_that_of_the_first_rows_or_what_was_declared() -> None:
    ds = lengths(LENGTHS).interleave(counted)
    assert not ds.schema.known
    declared = lengths(LENGTHS).interleave(counted, schema={"id": "int64"})
    assert dict(declared.schema) == {"id": pa.int64()}
    assert ids(declared) == ids(ds)
    agrees(declared)
    other = lengths(LENGTHS).interleave(counted, schema={"id": "int32"})
    with pytest.raises(SchemaError, match="interleave of inputs with different columns") as found:
        ids(other)
    assert "test_interleave_map.py" in found.value.at


def uneven(row: dict[str, Any]) -> dml.Dataset:
    return counted(row) if row["x"] < 2 else dml.from_dict({"id": ["a"]})


@pytest.mark.law
def test_pipelines_of_other_columns_are_an_error_in_their_place() -> None:
    ds = lengths([2, 2, 2, 2]).interleave(uneven, cycle_length=2)
    agrees(ds)
    run = iter(ds.with_options(**QUIET))
    assert [next(run)["id"] for _ in range(4)] == [0, 100, 1, 101]
    with pytest.raises(SchemaError, match="different columns") as found:
        next(run)
    assert "input 3 has id: string" in found.value.why
    assert "InterleaveMap(uneven" in found.value.at


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (lambda row: row, "returned {'x': 2"),
        (lambda row: counted(row).batch(2), "returned a pipeline of batches"),
        (lambda row: 1 / (row["x"] - 2), "raised ZeroDivisionError"),
        (lambda _row: dml.read_parquet("/nowhere"), "raised SourceError"),
    ],
)
def test_what_a_function_must_not_give(given: Any, what: str) -> None:
    ds = lengths([2] * 4).interleave(
        lambda row: counted(row) if row["x"] != 2 else given(row), cycle_length=2
    )
    run: Iterator[Any] = iter(ds.with_options(**QUIET))
    assert [next(run)["id"] for _ in range(4)] == [0, 100, 1, 101]
    with pytest.raises(UDFError) as found:
        next(run)
    assert what in found.value.what
    assert "row 2" in found.value.at
    assert "test_interleave_map.py" in found.value.at


def test_an_error_inside_a_pipeline_names_its_row_there(tmp_path: Path) -> None:
    def inner(row: dict[str, Any]) -> dml.Dataset:
        return dml.read_parquet(row["path"]).map(lambda each: {"z": 1 / (each["y"] - 23)})

    run = iter(files(tmp_path).interleave(inner, cycle_length=3).with_options(**QUIET))
    assert len(list(itertools.islice(run, 11))) == 11
    with pytest.raises(UDFError, match="ZeroDivisionError") as found:
        next(run)
    assert "2.parquet, row group 1" in found.value.at


def test_rows_that_functions_inside_cost_count_for_max_errors() -> None:
    def inner(row: dict[str, Any]) -> dml.Dataset:
        return counted(row).map(lambda each: {"z": 1 // (each["id"] % 2)}, on_error="skip")

    ds = lengths([4, 4]).interleave(inner)
    assert len(list(ds.with_options(**QUIET, max_errors=4))) == 4
    with pytest.raises(UDFError, match="max_errors=3"):
        list(ds.with_options(**QUIET, max_errors=3))


def test_a_static_graph_refuses_it() -> None:
    ds = lengths([2, 2]).interleave(counted)
    with pytest.raises(PlanError, match="cannot be a part of a static graph") as found:
        dask.compute(*ds.to_dask())
    assert "InterleaveMap(counted" in found.value.at


def test_what_is_compared_or_kept_is_the_same(tmp_path: Path) -> None:
    ds = lengths(LENGTHS).interleave(counted, cycle_length=3).with_options(**QUIET)
    wanted = ids(ds)
    assert [row["id"] for row in ds.with_options(verify="sample")] == wanted
    for kept in (ds.cache(), ds.with_options(cache_dir=str(tmp_path)).cache(tier="disk")):
        assert [[row["id"] for row in kept] for _ in range(2)] == [wanted, wanted]


def test_what_is_refused() -> None:
    ds = lengths([1])
    for wrong in ({"cycle_length": 0}, {"block_length": 0}, {"cycle_length": 1.5}):
        with pytest.raises(PlanError, match=next(iter(wrong))):
            ds.interleave(counted, **wrong)
    with pytest.raises(PlanError, match="interleave by a function after batch"):
        ds.batch(1).interleave(counted)
    with pytest.raises(PlanError, match="interleave needs a function, got the class dict"):
        ds.interleave(dict)
    with pytest.raises(PlanError, match="said of a function"):
        ds.interleave(ds, cycle_length=2)
    with pytest.raises(PlanError, match="interleave with deterministic=0"):
        ds.interleave(counted, deterministic=0)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="num_parallel_calls=0"):
        ds.interleave(counted, num_parallel_calls=0)
    assert ids(ds.interleave(counted, num_parallel_calls=dml.AUTOTUNE, deterministic=True)) == [0]
    assert numbers(2).interleave(numbers(2), num_parallel_calls=dml.AUTOTUNE).count() == 4


def test_equal_functions_are_equal_names() -> None:
    ds = lengths([1, 2])
    assert ds.interleave(counted).fingerprint() == ds.interleave(counted).fingerprint()
    made = [ds.interleave(counted), ds.interleave(mixed), ds.interleave(counted, cycle_length=2)]
    assert len({each.fingerprint() for each in made}) == 3


def test_pipelines_that_cannot_be_sent_or_need_more_stay_where_they_are() -> None:
    lock = threading.Lock()

    def locked(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return {"id": row["id"], "pid": os.getpid()}

    def inner(row: dict[str, Any]) -> dml.Dataset:
        ds = dml.range(row["id"], row["id"] + 3)
        return ds.map(locked) if row["id"] % 2 else ds.map(worked, num_cpus=2)

    ds = dml.range(6).interleave(inner, cycle_length=3)
    rows = list(ds.with_options(**QUIET | {"executor": "processes", "num_workers": 2}))
    assert [row["id"] for row in rows] == [0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 6, 5, 6, 7]
    assert {row["pid"] for row in rows if row["id"] == 7} == {os.getpid()}
