"""Law: calls that exceed the time limit cost exactly their rows, on every executor."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.errors import FunctionTimeoutError, PlanError, UDFError
from dml.udfs.calling import time_limit
from tests.hangs import (
    RELEASED,
    TIMEOUT_S,
    Hanging,
    calls,
    eventually,
    gone,
    only_hanging_calls_are_late,
)

ROWS = 60
LOCAL = ("sync", "threads")
EXECUTORS = (*LOCAL, pytest.param("processes", marks=pytest.mark.cluster))
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(time_limit, "answered", time_limit.answered)
    with only_hanging_calls_are_late():
        yield


class Children(Hanging):
    """Yields a row, hangs or not, and yields another."""

    def __call__(self, row: Row) -> Iterator[Row]:  # type: ignore[override]
        yield {"id": row["id"], "child": 0}
        self.look(row["id"])
        yield {"id": row["id"], "child": 1}


class Odd(Hanging):
    """Keeps odd rows."""

    def __call__(self, row: Row) -> bool:  # type: ignore[override]
        self.look(row["id"])
        return bool(row["id"] % 2)


class Early(Hanging):
    """Keeps the first rows."""

    def __call__(self, row: Row) -> bool:  # type: ignore[override]
        self.look(row["id"])
        return bool(row["id"] < ROWS - 5)


class Drawing(Hanging):
    """Draws a number, then hangs or not, and draws another."""

    def __call__(self, row: Row, rng: Any) -> Row:  # type: ignore[override]
        first = rng.random()
        self.look(row["id"])
        return {"id": row["id"], "drawn": [first, rng.random()]}


class Batches(Hanging):
    """Looks at the first row of a batch."""

    def __call__(self, batch: Row) -> Row:
        self.look(int(batch["id"][0]))
        return {"id": batch["id"]}


class Values(Hanging):
    """A function of one value."""

    def __call__(self, x: Any) -> Any:
        self.look(x)
        return x


Shape = Callable[[Dataset, Callable[..., Any], Row], Dataset]
# By name: what hangs, how it is called, and in how many rows a call is one.
SHAPES: dict[str, tuple[type[Hanging], Shape, int]] = {
    "map": (Hanging, lambda ds, fn, how: ds.map(fn, **how), 1),
    "filter": (Odd, lambda ds, fn, how: ds.filter(fn, **how), 1),
    "flat_map": (Children, lambda ds, fn, how: ds.flat_map(fn, **how), 1),
    "random_map": (Drawing, lambda ds, fn, how: ds.random_map(fn, **how), 1),
    "map_batches": (Batches, lambda ds, fn, how: ds.map_batches(fn, batch_size=4, **how), 4),
    "map of batches": (Batches, lambda ds, fn, how: ds.batch(4).map(fn, **how).unbatch(), 4),
    "take_while": (Early, lambda ds, fn, how: ds.take_while(fn, **how), 1),
    "map_groups": (
        Batches,
        lambda ds, fn, how: ds.with_columns(k=col("id") // 4).group_by("k").map_groups(fn, **how),
        4,
    ),
}


def run_by(executor: str, ds: Dataset) -> Dataset:
    return ds.with_options(executor=executor, num_workers=2, telemetry_dir="off", cache_dir=None)


def source() -> Dataset:
    return dml.range(ROWS)


def until_error(ds: Dataset) -> tuple[list[Row], UDFError]:
    """Return the rows that a run delivers, and the error that ends it."""
    found: list[Row] = []
    with pytest.raises(UDFError) as raised:
        found.extend(ds)
    return found, raised.value


@pytest.mark.sample(8)
@pytest.mark.law
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_skipped_calls_cost_exactly_their_rows(executor: str, shape: str, tmp_path: Path) -> None:
    kind, written, each = SHAPES[shape]
    draw = random.Random(shape + executor)
    # one call that hangs for each worker at most, except where processes are ended
    alone = executor in LOCAL or shape == "take_while"  # which is called in this thread
    hung = draw.sample(range(0, ROWS - 5, each), 1 if alone else 3)
    raising = written(source(), kind(tmp_path, set(hung), raises=True), {"on_error": "skip"})
    wanted = list(run_by("sync", raising))
    assert calls(tmp_path)
    how: Row = {"on_error": "skip", "timeout": TIMEOUT_S}
    ds = run_by(executor, written(source(), kind(tmp_path, set(hung)), how))
    assert list(ds) == wanted
    made = [number for number, _ in calls(tmp_path)]
    assert sorted(made) == list(range(0, made[-1] + 1 if shape == "take_while" else ROWS, each))
    assert f"lost {len(hung) * each} row" in str(ds.stats()).replace("batches", "rows")


@pytest.mark.sample(8)
@pytest.mark.law
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_raised_call_ends_the_run_at_its_row(executor: str, shape: str, tmp_path: Path) -> None:
    kind, written, _ = SHAPES[shape]
    failing = run_by("sync", written(source(), kind(tmp_path, {20}, raises=True), {}))
    wanted, other = until_error(failing)
    ds = run_by(executor, written(source(), kind(tmp_path, {20}), {"timeout": TIMEOUT_S}))
    found, error = until_error(ds)
    assert found == wanted
    assert isinstance(error, FunctionTimeoutError)
    assert error.what == f"{kind.__name__} did not return within {TIMEOUT_S:g} s"
    assert (error.seconds, error.row, error.operator) == (TIMEOUT_S, other.row, kind.__name__)
    assert "on_error='skip'" in error.try_


@pytest.mark.cluster
def test_the_process_of_a_call_that_hangs_is_ended(tmp_path: Path) -> None:
    how: Row = {"on_error": "skip", "timeout": TIMEOUT_S}
    ds = run_by("processes", source().map(Hanging(tmp_path, {7, 31}), **how))
    assert [row["id"] for row in ds] == [n for n in range(ROWS) if n not in {7, 31}]
    made = calls(tmp_path)
    assert sorted(number for number, _ in made) == list(range(ROWS))
    hung = {pid for number, pid in made if number in {7, 31}}
    assert eventually(lambda: all(map(gone, hung)))
    assert [row["id"] for row in run_by("processes", source().map(lambda row: row))] == [
        *range(ROWS)
    ]


@pytest.mark.cluster
def test_no_call_of_an_impure_function_is_repeated_for_one_that_hangs(tmp_path: Path) -> None:
    how: Row = {"on_error": "skip", "timeout": TIMEOUT_S, "pure": False}
    rows = source().map(Hanging(tmp_path, {3, 40}), **how)
    assert len(list(run_by("processes", rows))) == ROWS - 2
    assert sorted(number for number, _ in calls(tmp_path)) == list(range(ROWS))


@pytest.mark.cluster
def test_children_of_tasks_that_began_beside_it_are_made_once(tmp_path: Path) -> None:
    """Tasks of many partitions are parked in the worker whose other call hangs."""

    def many(row: Row) -> Iterator[Row]:
        for child in range(3):
            yield {"id": row["id"], "child": child}

    how: Row = {"on_error": "skip", "timeout": TIMEOUT_S}
    ds = source().flat_map(many).map(Hanging(tmp_path, {11}), **how)
    ds = run_by("processes", ds).with_options(target_partition_bytes=64)
    assert [row["id"] for row in ds] == [n for n in range(ROWS) for _ in range(3) if n != 11]
    assert len(calls(tmp_path)) == 3 * ROWS


@pytest.mark.cluster
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_process_whose_lock_is_held_is_ended(on_error: str) -> None:
    def holds(row: Row) -> Row:
        ctypes.PyDLL(None).sleep(100_000)
        return row

    ds = run_by("processes", dml.range(1).map(holds, timeout=0.1, on_error=on_error))
    with pytest.raises(FunctionTimeoutError, match=r"(?s)held Python's lock.*range, rows 0"):
        list(ds)


@pytest.mark.parametrize("executor", LOCAL)
def test_a_second_call_that_hangs_in_a_worker_ends_the_run(executor: str, tmp_path: Path) -> None:
    rows = source().map(Hanging(tmp_path, {7, 9}), timeout=TIMEOUT_S, on_error="skip")
    ds = run_by(executor, rows).with_options(num_workers=1)
    with pytest.raises(FunctionTimeoutError, match=r"(?s)an earlier call.*executor='processes'"):
        list(ds)
    assert [row["id"] for row in run_by(executor, source().map(lambda row: row))] == [*range(ROWS)]


@pytest.mark.parametrize("executor", LOCAL)
def test_a_class_is_constructed_again(executor: str, tmp_path: Path) -> None:
    class Model:
        def __init__(self, folder: Path) -> None:
            self.fn = Hanging(folder, {20})
            self.hung = False

        def __call__(self, row: Row) -> Row:
            assert not self.hung
            self.hung = row["id"] == 20
            return self.fn(row)

    how: Row = {"fn_constructor_args": (tmp_path,), "concurrency": 1, "timeout": TIMEOUT_S}
    ds = run_by(executor, source().map(Model, on_error="skip", **how))
    assert [row["id"] for row in ds] == [n for n in range(ROWS) if n != 20]


def test_a_column_of_a_function_names_the_row(tmp_path: Path) -> None:
    fn = dml.udf(return_dtype="int64", timeout=TIMEOUT_S)(Values(tmp_path, {5}))
    ds = source().with_columns(y=fn(col("id")))
    assert "timeout=60" in ds.explain("written")
    with pytest.raises(FunctionTimeoutError) as raised:
        list(run_by("sync", ds))
    assert raised.value.row == 5


def test_losses_count_against_max_errors(tmp_path: Path) -> None:
    rows = source().map(Hanging(tmp_path, {7}), timeout=TIMEOUT_S, on_error="skip")
    ds = run_by("sync", rows).with_options(max_errors=0)
    with pytest.raises(UDFError, match=r"(?s)max_errors=0.*did not return"):
        list(ds)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize("executor", LOCAL)
def test_no_cache_lacks_the_row(executor: str, tier: str, batched: bool, tmp_path: Path) -> None:
    fn = Hanging(tmp_path, {20})
    rows = source().map(fn, timeout=TIMEOUT_S, on_error="skip", fingerprint=f"{tmp_path}")
    ds = (rows.shuffle(8, seed=1).batch(5) if batched else rows).cache(tier=tier)
    ds = run_by(executor, ds).with_options(cache_dir=str(tmp_path / "cache"))

    def ids() -> list[int]:
        found = [each["id"] for each in ds]
        return sorted(n for each in found for n in (each.tolist() if batched else [each]))

    assert ids() == [n for n in range(ROWS) if n != 20]
    assert "keep" in str(ds.cache_status())
    RELEASED.set()
    with pytest.warns(UserWarning, match="timeout=|errors have cost"):
        assert ids() == [*range(ROWS)]
    assert ids() == [*range(ROWS)]


def test_no_cache_over_nested_pipelines_lacks_the_row(tmp_path: Path) -> None:
    fn = Hanging(tmp_path, {20})

    def nested(row: Row) -> Dataset:
        ids = dml.range(ROWS).filter(col("id") % 2 == row["id"])
        return ids.map(fn, timeout=TIMEOUT_S, on_error="skip")

    ds = run_by("sync", dml.range(2).interleave(nested).cache())
    assert sorted(row["id"] for row in ds) == [n for n in range(ROWS) if n != 20]
    RELEASED.set()
    with pytest.warns(UserWarning, match="timeout="):
        assert sorted(row["id"] for row in ds) == [*range(ROWS)]


@pytest.mark.cluster
def test_a_sample_that_hangs_is_no_difference(tmp_path: Path) -> None:
    rows = source().map(Hanging(tmp_path, {20}), timeout=TIMEOUT_S, on_error="skip")
    ds = run_by("processes", rows).with_options(verify="sample", verify_dir=str(tmp_path))
    assert len(list(ds)) == ROWS - 1


def test_names_are_those_without_a_timeout(tmp_path: Path) -> None:
    fn = Hanging(tmp_path, set())
    one, two = (source().map(fn, fingerprint="f", timeout=each) for each in (None, 5))
    assert one.fingerprint() == two.fingerprint()
    assert "timeout=5" in two.explain("written")


def test_a_lifted_function_is_not_called() -> None:
    ds = source().map(lambda row: {"x": row["id"] + 1}, timeout=5)
    assert "LiftedMap" in ds.explain("chosen")
    assert [row["x"] for row in run_by("sync", ds)] == [*range(1, ROWS + 1)]


@pytest.mark.cluster
def test_workers_of_a_cluster_lose_the_same_rows(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    rows = source().map(Hanging(tmp_path, {7}), timeout=TIMEOUT_S, on_error="skip")
    # in this process, so that its clock counts
    how = {"threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(1, **how, protocol="tcp") as cluster:
        ds = rows.with_options(scheduler=cluster.scheduler_address, telemetry_dir="off")
        assert [row["id"] for row in ds] == [n for n in range(ROWS) if n != 7]
    assert sorted(number for number, _ in calls(tmp_path)) == list(range(ROWS))


VERBS: dict[str, Callable[[Any], Any]] = {
    "map": lambda timeout: source().map(dict, timeout=timeout),
    "filter": lambda timeout: source().filter(bool, timeout=timeout),
    "flat_map": lambda timeout: source().flat_map(list, timeout=timeout),
    "random_map": lambda timeout: source().random_map(lambda row, _: row, timeout=timeout),
    "map_batches": lambda timeout: source().map_batches(dict, timeout=timeout),
    "take_while": lambda timeout: source().take_while(bool, timeout=timeout),
    "map_groups": lambda timeout: source().group_by("id").map_groups(dict, timeout=timeout),
    "udf": lambda timeout: dml.apply(abs, "id", return_dtype="int64", timeout=timeout),
}


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), True, "5", [5]])
@pytest.mark.parametrize("verb", VERBS)
def test_a_timeout_is_a_number_above_0(verb: str, wrong: object) -> None:
    with pytest.raises(
        PlanError, match=rf"(?s){verb} with timeout=.*test_timeouts\.py.*timeout=30"
    ):
        VERBS[verb](wrong)
    VERBS[verb](0.5)


@pytest.mark.parametrize("verb", ["filter", "take_while"])
def test_an_expression_has_no_timeout(verb: str) -> None:
    with pytest.raises(PlanError, match="expression"):
        getattr(source(), verb)(col("id") > 0, timeout=5)
