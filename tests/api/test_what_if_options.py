"""Test ``what_if``: it runs nothing, states its sources, and ranks options as real runs do."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import DmlError, MemoryContractError, PlanError
from dml.exec.memory.memory_shares import divided
from dml.exec.slicing.slice_sizes import Cutting
from dml.optimize.phases import optimize
from dml.settings import SCHEDULER_POLICIES
from dml.testing.strategies import pipeline
from dml.testing.strategies_data import DataPool
from dml.verify.simulate.forecast import foresee
from dml.verify.simulate.run_model import MOST_SLICES, Model, ModelWork, RunPlace, model_of
from tests.refusals import refused
from tests.sampling import amount

Batch = dict[str, np.ndarray]
OFF: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 2}
ROWS = 64
DRAW = np.random.default_rng(3)
SLEEP_S = 0.005


def slept(batch: Batch) -> Batch:
    time.sleep(SLEEP_S)
    return batch


def never(_batch: Batch) -> Batch:
    raise AssertionError("called")


def of(
    fn: Callable[[Batch], Batch], tmp_path: Path | str = "off", rows: int = ROWS, **asked: Any
) -> Dataset:
    """A task for each row."""
    ds = dml.range(rows, atom_rows=1).map_batches(fn, batch_size=1, fingerprint="f", **asked)
    return ds.with_options(
        executor="threads", num_workers=2, target_partition_bytes=1, telemetry_dir=str(tmp_path)
    )


def test_nothing_is_run_and_no_epoch_is_counted() -> None:
    ds = of(never)
    answer = ds.what_if(workers=4)
    assert answer.seconds > 0
    assert answer.rows == ROWS
    assert iter(ds).epoch == 0


@pytest.mark.law
def test_more_workers_take_less_until_something_else_is_narrow(tmp_path: Path) -> None:
    ds = of(slept, tmp_path, concurrency=4)
    list(ds)
    seconds = [ds.what_if(workers=n).seconds for n in (1, 2, 4)]
    assert seconds[0] > 1.5 * seconds[1] > 2 * seconds[2]
    answer = ds.what_if(workers=16)
    assert answer.then.kind == "pool"
    assert "concurrency=4" in answer.bottleneck
    assert answer.more[0] == "+4 workers"
    assert answer.more[1] == pytest.approx(1.0, abs=0.05)


@pytest.mark.law
def test_more_workers_come_with_cores() -> None:
    ds = dml.range(10**9).with_columns(x=dml.col("id") * 2).with_options(**OFF)
    few, many = (ds.what_if(workers=n).seconds for n in (8, 64))
    assert many < few / 4


@pytest.mark.law
def test_what_figures_rest_on_is_told(tmp_path: Path) -> None:
    ds = of(slept, tmp_path)
    guessed = ds.what_if(workers=4)
    assert "a table of guesses for 100% of the work" in str(guessed)
    assert guessed.measured_s is None
    assert "run it once" in str(guessed)
    list(ds)
    measured = ds.what_if(workers=4)
    assert dict(measured.basis.shares)["measured"] == 1
    assert measured.measured_s is not None
    assert measured.seconds > ROWS / 4 * SLEEP_S
    assert "the last run for 100%" in str(measured)
    other = ds.with_options(num_workers=1).what_if(workers=4)  # the same pipeline
    assert other.seconds == measured.seconds
    later = of(slept, tmp_path).what_if(workers=4)  # its equal, which has not run
    assert dict(later.basis.shares)["earlier runs"] == 1
    assert later.measured_s is None


@pytest.mark.law
def test_the_run_of_another_pipeline_counts_for_nothing(tmp_path: Path) -> None:
    ds = of(slept, tmp_path)
    for _ in ds.iter_batches(8):
        pass
    assert "measured" not in {name for name, share in ds.what_if().basis.shares if share}


@pytest.mark.law
def test_part_of_a_run_is_enough(tmp_path: Path) -> None:
    ds = of(slept, tmp_path)
    with iter(ds) as made:
        list(itertools.islice(made, ROWS // 2))
    answer = ds.what_if(workers=1)
    assert answer.measured_s is None
    assert answer.rows == ROWS
    assert answer.seconds > ROWS * SLEEP_S


def test_the_training_loop_is_part_of_it() -> None:
    ds = of(never).batch(8)
    answer = ds.what_if(step_s=0.5)
    assert answer.seconds == pytest.approx(ROWS / 8 * 0.5, rel=0.1)
    assert answer.now is not None
    assert answer.now.seconds < 0.1
    assert answer.then.kind == "training"


@pytest.mark.law
def test_the_training_loop_is_that_of_the_last_run(tmp_path: Path) -> None:
    """Until another one is given."""
    ds = of(lambda batch: batch, tmp_path)
    for _ in ds:
        time.sleep(SLEEP_S / 5)
    answer = ds.what_if(workers=4)
    assert answer.step_s >= SLEEP_S / 5
    assert answer.seconds >= ROWS * SLEEP_S / 5
    assert "training  holds each element for " in str(answer)
    assert ds.what_if(workers=4, step_s=0).seconds < answer.seconds


@pytest.mark.law
def test_batches_that_a_run_makes_ahead_are_made_while_the_loop_trains(tmp_path: Path) -> None:
    def still(row: dict[str, Any]) -> bool:
        time.sleep(SLEEP_S)
        return True

    ds = of(lambda batch: batch, tmp_path).take_while(still, fingerprint="still").batch(8)
    for _ in ds:
        pass
    foreseen = {
        choice: ds.with_options(prefetch=choice).what_if(step_s=8 * SLEEP_S).seconds
        for choice in ("auto", 0, 2)
    }
    assert foreseen["auto"] == pytest.approx(foreseen[2])
    assert foreseen["auto"] <= foreseen[0] - ROWS * SLEEP_S * 0.9


def model(
    ds: dml.Dataset, seconds: Mapping[str, float], where: RunPlace, rows_out: float = ROWS
) -> Model:
    """A run in which the named operators take so many seconds, and others none."""
    plan = optimize(ds._node, 0).plan
    works = []
    for node in plan.operators:
        own = next((each for name, each in seconds.items() if name in node.title()), 0.0)
        rows = rows_out if own else float(ROWS)
        works.append(ModelWork(node.title(), own, rows, 8 * rows))
    return model_of(plan, works, divided(plan, 1 << 30, 4, None), where)


def test_slices_of_a_cluster_are_as_long_as_in_a_run() -> None:
    ds = dml.range(ROWS).map(lambda row: {"x": str(time.thread_time() + row["id"])})
    found = list[int]()
    for name in ("threads", "distributed"):
        where = RunPlace({"cpu": 4.0}, cores=4.0, slice_s=Cutting.of(name).aim_s)
        found.append(model(ds, {"MapRows": 2.0}, where).partitions)
    assert found == [40, 20]


def seconds_of(ds: dml.Dataset, seconds: Mapping[str, float], **place: Any) -> float:
    where = RunPlace({"cpu": 4.0}, cores=4.0, **place)
    return foresee([model(ds, seconds, where)], where, bounded=False).seconds


PLACE = RunPlace({"cpu": 4.0}, cores=4.0)


def test_long_runs_are_simulated_as_few_long_slices() -> None:
    large = dml.range(10_000_000, atom_rows=10_000).map(slow)
    found = model(large, {"MapRows": 1e6}, PLACE, rows_out=1e7)
    assert sum(found.slices(n) for n in range(len(found.steps))) <= 4 * MOST_SLICES
    assert foresee([found], PLACE, bounded=False).seconds == pytest.approx(2.5e5, rel=0.1)


def test_the_loop_takes_the_elements_that_come_out() -> None:
    more = dml.range(ROWS).shuffle(9).flat_map(lambda row: [row] * 8)
    where = dataclasses.replace(PLACE, step_s=0.1)
    found = model(more, {"FlatMap": 1.0}, where, rows_out=8 * ROWS)
    assert found.stepping_s == pytest.approx(8 * ROWS * 0.1)


def test_a_function_above_a_sort_is_not_in_the_callers_thread() -> None:
    found = model(dml.range(ROWS).sort("id").map(slow).batch(4), {"MapRows": 8.0}, PLACE)
    narrow = foresee([found], PLACE, bounded=False).narrow
    assert narrow.kind == "cpu"
    assert narrow.share == pytest.approx(1.0, abs=0.1)


def slow(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": len(str(row))}


def test_a_function_runs_on_all_workers_wherever_it_stands() -> None:
    """The source is one unit, so that only slices of its rows can be made side by side."""
    rows = dml.range(ROWS, atom_rows=ROWS)
    took = {"MapRows": 8.0}
    for ds in (rows.map(slow), rows.shuffle(9).map(slow), rows.sort("id").map(slow).batch(4)):
        assert seconds_of(ds, took) == pytest.approx(2.0, rel=0.1)
    batched = rows.batch(4).map(slow)
    assert seconds_of(batched, {"MapBatch": 8.0}) == pytest.approx(2.0, rel=0.1)
    assert seconds_of(rows.map(slow, concurrency=2), took) == pytest.approx(4.0, rel=0.1)
    assert seconds_of(rows.map(slow), took, in_turn=True) == pytest.approx(8.0, rel=0.1)
    one = rows.batch(ROWS).map(slow)
    assert seconds_of(one, {"MapBatch": 8.0}) == pytest.approx(8.0, rel=0.1), "one slice"


def test_slices_and_the_training_loop_share_the_time() -> None:
    ds = dml.range(ROWS, atom_rows=ROWS).map(slow).batch(1)
    for step_s, whole in ((0.01, 2.0), (0.25, 16.0)):
        found = seconds_of(ds, {"MapRows": 8.0}, step_s=step_s)
        assert found == pytest.approx(whole, rel=0.15)


def test_memory_that_a_run_would_refuse_is_refused() -> None:
    ds = of(never, memory=1 << 30)
    refused(PlanError, lambda: ds.what_if(memory="100MiB"), "needs memory=")


def test_memory_that_no_row_group_fits_into_is_refused(tmp_path: Path) -> None:
    """As a run would, in the same words; what cannot run now may be asked about elsewhere."""
    pq.write_table(pa.table({"x": DRAW.normal(size=100_000)}), tmp_path / "a.parquet")
    ds = dml.read_parquet(str(tmp_path)).batch(10).with_options(telemetry_dir="off")
    small = ds.with_options(memory_limit="100kB")
    with pytest.raises(MemoryContractError) as asked:
        ds.what_if(memory="100kB")
    with pytest.raises(MemoryContractError) as met:
        next(iter(small))
    assert (asked.value.what, asked.value.why) == (met.value.what, met.value.why)
    assert asked.value.at.startswith("ParquetSource(")
    assert met.value.at.startswith(asked.value.at)  # which knows the row group, too
    answer = small.what_if(memory="64MiB")
    assert answer.now is None
    assert answer.then.memory_bytes == 64 << 20


@pytest.mark.law
def test_storage_bounds_reading(tmp_path: Path) -> None:
    """By the bytes of files, of the columns that are read."""
    table = pa.table({name: DRAW.normal(size=8_000) for name in "xy"})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500, use_dictionary=False)
    nbytes = (tmp_path / "a.parquet").stat().st_size
    ds = dml.read_parquet(str(tmp_path)).with_options(telemetry_dir="off", num_workers=2)
    answer = ds.what_if(storage_gbps=nbytes * 8e-9 / 10)
    assert answer.seconds == pytest.approx(10, rel=0.1)
    assert answer.then.kind == "storage"
    assert answer.more[0] == "twice the storage"
    assert answer.more[1] == pytest.approx(0.5, abs=0.05)
    half = ds.select("x").what_if(storage_gbps=nbytes * 8e-9 / 10)
    assert half.seconds == pytest.approx(5, rel=0.1)
    assert dml.range(100).what_if(storage_gbps=1e-9).then.kind != "storage"


def test_memory_changes_what_partitions_may_hold() -> None:
    few, many = (of(never).what_if(memory=size) for size in ("64MiB", 1 << 40))
    assert few.then.memory_bytes == 64 << 20
    assert many.then.memory_bytes == 1 << 40


@pytest.mark.law
def test_a_rate_asks_for_workers(tmp_path: Path) -> None:
    ds = of(slept, tmp_path, rows=200)
    list(ds)
    one = ds.what_if(workers=1).rows_per_s
    answer = ds.what_if(rows_per_s=5 * one)
    assert answer.reached
    assert answer.workers in (5, 6)
    assert answer.rows_per_s >= 0.99 * 5 * one
    assert ds.what_if(workers=answer.workers - 1).rows_per_s < 0.99 * 5 * one
    assert f"need {answer.workers} workers" in str(answer)


@pytest.mark.law
def test_no_number_of_workers_makes_rows_of_none() -> None:
    for ds in (dml.range(0), dml.range(1000).filter(dml.col("id") < 0)):
        list(ds)
        assert "not reached by any number of workers" in str(ds.what_if(rows_per_s=10))


@pytest.mark.law
def test_a_rate_that_no_number_of_workers_reaches(tmp_path: Path) -> None:
    ds = of(slept, tmp_path, concurrency=2)
    list(ds)
    answer = ds.what_if(rows_per_s=1_000_000)
    assert answer.workers is None
    assert not answer.reached
    assert answer.then.kind == "pool"
    assert "not reached by any number of workers" in str(answer)


@pytest.mark.law
def test_a_gpu_that_is_not_here_can_be_thought_of() -> None:
    ds = of(never, num_gpus=1)
    refused(PlanError, lambda: ds.what_if(workers=8), "needs gpu=1")
    answer = ds.what_if(workers=8, gpus=2)
    assert answer.now is None
    assert answer.seconds > ds.what_if(workers=8, gpus=4).seconds
    assert ds.what_if(workers=8, resources={"GPU": 2}).seconds == answer.seconds
    here = ds.with_options(resources={"GPU": 2}).what_if(workers=8)
    assert here.seconds == answer.seconds
    assert here.now is not None


@pytest.mark.law
def test_a_pipeline_without_end_has_passes() -> None:
    answer = of(never).repeat().what_if(workers=4)
    assert answer.a_pass
    assert answer.rows == ROWS
    assert "one pass" in str(answer)


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda ds: ds.take(5),
        lambda ds: ds.repeat(3),
        lambda ds: ds.shuffle(seed=1),
        lambda ds: ds.zip(dml.range(ROWS).rename(id="other")),
        lambda ds: ds.filter(dml.col("id") > 7).batch(4),
        lambda ds: ds.sort("id"),
        lambda ds: ds.cache(),
    ],
)
def test_every_shape_of_pipeline_has_an_answer(pipeline: Callable[[Dataset], Dataset]) -> None:
    ds = pipeline(dml.range(ROWS, atom_rows=8).with_options(telemetry_dir="off", num_workers=2))
    rows = sum(len(next(iter(each.values()))) if ds._node.batched else 1 for each in ds)
    answer = ds.what_if(workers=4)
    assert answer.rows == pytest.approx(rows, rel=0.01)
    assert answer.then.over_bound >= 1
    assert answer.seconds > 0


@pytest.mark.law
def test_random_pipelines_have_answers(tmp_path: Path) -> None:
    """Whatever a pipeline is made of, before a run of it and after."""
    pool = DataPool(tmp_path)
    settings = {"telemetry_dir": str(tmp_path / "told"), "num_workers": 2}
    for number in range(amount(25, 60)):
        draw = random.Random(number)
        ds = pipeline(draw, pool).dataset.with_options(**settings)
        for ran in (False, True):
            if ran:
                drawn_from(ds)
            answer = ds.what_if(workers=number % 5 + 1, memory="64MiB", step_s=0.001)
            assert 0 <= answer.then.seconds < math.inf
            assert answer.then.over_bound >= 1 - 1e-9
            assert "bottleneck: " in str(answer)


def drawn_from(ds: Dataset) -> None:
    """Some elements of ``ds``, of which rows may be errors."""
    with contextlib.suppress(DmlError), iter(ds) as made:
        list(itertools.islice(made, 50))


@pytest.mark.law
@pytest.mark.parametrize("asked", [{"num_cpus": 0.25}, {"num_cpus": 2}, {"memory": 1 << 20}])
def test_every_need_has_an_answer(asked: dict[str, Any]) -> None:
    assert of(never, **asked).what_if(workers=3).seconds > 0


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_nothing_takes_hardly_any_time(executor: str) -> None:
    nothing = dml.from_arrow(pa.table({"x": pa.array([], pa.int64())}))
    ds = nothing.with_options(executor=executor, telemetry_dir="off")
    assert ds.what_if(workers=2).rows == 0
    list(ds)
    assert ds.what_if(workers=2).rows_per_s == 0
    assert "rests on  nothing" in str(ds.what_if(memory="1GiB"))


@pytest.mark.parametrize("policy", SCHEDULER_POLICIES)
def test_every_policy_has_an_answer(policy: str) -> None:
    """None is foreseen to be faster than the usual one where two stages need different things."""
    ds = of(never, num_gpus=1, num_cpus=0).with_options(resources={"GPU": 2})
    usual = ds.what_if(workers=4)
    other = ds.with_options(scheduler_policy=policy).what_if(workers=4)
    assert other.now is not None
    assert other.seconds >= 0.99 * usual.seconds


@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_every_executor_has_an_answer(executor: str) -> None:
    assert of(never).with_options(executor=executor).what_if().now is not None


def test_nobody_knows_the_workers_of_a_cluster() -> None:
    ds = of(never).with_options(executor="distributed", num_workers="auto")
    refused(PlanError, ds.what_if, "nobody knows how many workers")
    assert ds.what_if(workers=8).now is None


@pytest.mark.parametrize(
    "asked",
    [
        {"workers": 0},
        {"workers": True},
        {"workers": 2.5},
        {"workers": 1 << 20},
        {"memory": "much"},
        {"memory": 0},
        {"gpus": -1},
        {"gpus": float("nan")},
        {"resources": 4},
        {"resources": {"TPU": "all"}},
        {"resources": {"TPU": None}},
        {"resources": {3: 1}},
        {"resources": {"CPU": 4}},
        {"storage_gbps": 0},
        {"step_s": -1},
        {"step_s": "fast"},
        {"rows_per_s": 0},
        {"rows_per_s": float("inf")},
        {"rows_per_s": 5.0, "workers": 2},
    ],
)
def test_nonsense_is_refused(asked: dict[str, Any]) -> None:
    refused(PlanError, lambda: of(never).what_if(**asked))


def test_the_answer_is_text_in_notebooks() -> None:
    answer = of(never).what_if(workers=4, memory="1GiB")
    text = str(answer)
    assert repr(answer) == text
    assert text.startswith("what if  workers=4, memory='1GiB'\n")
    assert "bottleneck: " in text
    assert answer._repr_html_().startswith("<pre")
    assert "<table" in answer._repr_html_()


@pytest.mark.law
def test_more_workers_are_foreseen_to_be_faster(tmp_path: Path) -> None:
    """For a function that waits; benchmarks measure how long a run takes."""
    ds = of(slept, tmp_path, rows=96)
    list(ds)
    foreseen = [ds.what_if(workers=workers).seconds for workers in (1, 3, 9)]
    assert foreseen == sorted(foreseen, reverse=True)
    assert foreseen[0] > 2 * foreseen[1]
    assert foreseen[1] > 2 * foreseen[2]


def joined(tmp_path: Path) -> Dataset:
    """Rows of a file with the results of ``first`` beside them, joined before ``second``."""
    write(tmp_path, {"id": list(range(ROWS))})

    def first(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "y": len(str(row))}

    def second(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "y": len(str(row))}

    types = {"id": "int64", "y": "int64"}
    beside = dml.range(ROWS).map(first, schema=types)
    ds = dml.read_parquet(tmp_path / "a.parquet").join(beside, on="id")
    return ds.map(second, schema=types).batch(4).with_options(**OFF)


def write(folder: Path, columns: dict[str, list[int]]) -> None:
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=8)


@pytest.mark.parametrize("name", ["first", "after:Join", "join", "second", "batch"])
def test_what_is_cached_takes_no_time(name: str, tmp_path: Path) -> None:
    """It is as if all that makes it were free."""
    ds = joined(tmp_path)
    order = ["Range", "first", "ParquetSource", "Join", "second", "batch"]
    below = {"first": order[:2], "after:Join": order[:4], "join": order[:4], "second": order[:5]}
    free = dict.fromkeys(below.get(name, order), 0.0)
    cached = ds.what_if(cache=name).seconds
    assert cached == ds.what_if(cost=free).seconds < ds.what_if(cost={"first": 50}).seconds


def test_as_much_is_cached_as_fits(tmp_path: Path) -> None:
    def long(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.zeros(1 << 20, "u1") + row["id"]}

    ds = dml.range(64).map(long, schema={"x": f"u1[{1 << 20}]"}).with_options(**OFF)
    seconds = [
        ds.what_if(cache="long", memory=memory, cost={"long": 100.0}).seconds
        for memory in ("4GiB", "64MiB", "32MiB")
    ]
    assert seconds[0] < seconds[1] < seconds[2]


def test_cached_rows_are_not_read_from_storage(tmp_path: Path) -> None:
    write(tmp_path, {"id": np.random.default_rng(0).integers(0, 1 << 60, 4096).tolist()})
    ds = dml.read_parquet(tmp_path / "a.parquet").map(slow).with_options(**OFF)
    slow_storage = ds.what_if(storage_gbps=1e-4)
    assert slow_storage.then.kind == "storage"
    assert ds.what_if(storage_gbps=1e-4, cache="slow").seconds < slow_storage.seconds / 5


def test_an_operator_can_take_more_or_less_time(tmp_path: Path) -> None:
    """Its own time counts as often as asked, whatever else takes time counts once."""
    ds = of(slept, tmp_path)
    list(ds)
    half, once, twice, often = (
        ds.what_if(cost={"slept": times}, step_s=0).seconds for times in (0.5, 1.0, 2.0, 8.0)
    )
    assert once == ds.what_if(step_s=0).seconds
    assert twice - once >= 0.95 * ROWS * SLEEP_S / 2
    assert often - twice == pytest.approx(4 * (twice - half), rel=0.05)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"cache": "decode"}, "what_if(cache='slow')"),
        ({"cost": {"decode": 2}}, "what_if(cost={'slow': 0.5})"),
        ({"cost": {"slow": -1}}, "what_if(cost={'slow': 1})"),
        ({"cost": {"slow": 10**400}}, "what_if(cost={'slow': 1})"),
        ({"cache": 3}, "what_if(cache='decode')"),
        ({"cost": 0.5}, "cost={'decode': 0.5}"),
    ],
)
def test_what_is_no_factor_of_an_operator_is_refused(asked: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError) as caught:
        dml.range(4).map(slow).what_if(**asked)
    assert text in str(caught.value)


def test_a_function_may_be_called_like_a_resource() -> None:
    def cpu(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": len(str(row))}

    ds = dml.range(4).map(cpu)
    assert ds.what_if(cost={"cpu": 1000.0}).seconds > ds.what_if().seconds
    with pytest.raises(PlanError, match="processors left out"):
        ds.what_if(resources={"cpu": 4})
