"""Test ``on_error="skip"``: exactly the rows that raise are lost, counted and limited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dml
from dml.api.dataset import Dataset
from dml.api.run_telemetry import collector_of
from dml.errors import CastError, PlanError, SourceError, UDFError
from dml.exec.tasks.skipped_rows import Allowance, Loss, Losses, Noted
from dml.expr.facts import Rows
from dml.fleet.reader import read
from dml.testing.executions import RunWay, streaming
from tests.cluster import dask_cases
from tests.expr.checks import QUIET, UNUSED, agrees, holds, node_of, numbers

ROWS = 60


def odd(row: dict[str, Any]) -> dict[str, Any]:
    """Raises for every third row, and for all before the fourth."""
    if row["x"] % 3 == 1 or row["x"] < 4:
        raise ValueError(f"not {row['x']}")
    return {"x": row["x"], "y": str(row["x"])}


KEPT = [x for x in range(ROWS) if x % 3 != 1 and x >= 4]


def several(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in range(3):
        if (row["x"] + part) % 4 == 3:
            raise KeyError(part)
        yield {"x": row["x"], "part": part}


def group(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if 5 in batch["x"]:
        raise OSError("no")
    return {"x": batch["x"] * 2}


VERBS: dict[str, Callable[[Dataset], Dataset]] = {
    "map": lambda ds: ds.map(odd, on_error="skip"),
    "declared": lambda ds: ds.map(odd, on_error="skip", schema={"x": "int64", "y": pa.string()}),
    "lifted": lambda ds: ds.map(lambda row: {"x": 10 // (row["x"] % 5)}, on_error="skip"),
    "filter": lambda ds: ds.filter(
        lambda row: len(str(row["x"])) / (row["x"] % 4), on_error="skip"
    ),
    "unclear": lambda ds: ds.filter(
        lambda row: np.zeros(row["x"] % 3) if row["x"] else 1, on_error="skip"
    ),
    "lifted_filter": lambda ds: ds.filter(lambda row: 6 // (row["x"] - 3) > 0, on_error="skip"),
    "random_map": lambda ds: ds.random_map(
        lambda row, rng: {**odd(row), "r": rng.random()}, on_error="skip"
    ),
    "flat_map": lambda ds: ds.flat_map(several, on_error="skip"),
    "map_batches": lambda ds: ds.map_batches(group, batch_size=2, on_error="skip"),
    "map_batch": lambda ds: ds.batch(4).map(group, on_error="skip"),
    "take_while": lambda ds: ds.take_while(lambda row: 8 // (row["x"] - 2) < 2, on_error="skip"),
    "over_a_stream": lambda ds: ds.shuffle(4).map(odd, on_error="skip"),
    "over_runs": lambda ds: ds.take(9).map_batches(group, batch_size=2, on_error="skip"),
    "stages": lambda ds: ds.map(odd, on_error="skip", num_cpus=0.5).map(dict),
    "shuffled": lambda ds: ds.map(odd, on_error="skip").shuffle().skip(1),
}


@pytest.mark.sample(6)
@pytest.mark.law
@pytest.mark.parametrize("verb", VERBS)
def test_the_oracle_loses_the_same_rows_and_so_do_resumed_runs(verb: str) -> None:
    assert holds(VERBS[verb](numbers(12)))
    assert holds(VERBS[verb](numbers(12)).repeat(2).skip(1))


def test_exactly_the_rows_that_raise_are_lost() -> None:
    rows = list(numbers(ROWS).map(odd, on_error="skip"))
    assert rows == [{"x": x, "y": str(x)} for x in KEPT]
    lifted = numbers(ROWS).map(lambda row: {"z": 10 // (row["x"] % 5)}, on_error="skip")
    assert "LiftedMap" in lifted.explain("physical")
    assert [row["z"] for row in lifted] == [10 // (x % 5) for x in range(ROWS) if x % 5]
    parts = [(r["x"], r["part"]) for r in numbers(4).flat_map(several, on_error="skip")]
    assert parts == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]


def test_every_row_is_called_once() -> None:
    calls: list[int] = []

    def noted(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["x"])
        return odd(row)

    assert len(list(numbers(ROWS).map(noted, on_error="skip"))) == len(KEPT)
    assert calls == list(range(ROWS))


def test_rows_that_are_all_lost_settle_nothing() -> None:
    ds = numbers(9).map(odd, on_error="skip")
    assert ds.to_arrow().schema.field("y").type == pa.string()
    assert list(numbers(3).map(odd, on_error="skip")) == []
    assert list(numbers(3).map(odd, on_error="skip").batch(2)) == []


def test_results_that_are_no_rows_raise_all_the_same() -> None:
    made: list[Any] = [lambda row: row["x"], lambda row: {"x": 1} if row["x"] < 5 else {}]
    for fn in made:
        with pytest.raises(UDFError, match="returned"):
            list(numbers().map(fn, on_error="skip"))


class Unmade:
    """Cannot be constructed."""

    def __init__(self) -> None:
        raise OSError("no weights")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


def test_a_class_that_cannot_be_made_ends_the_run() -> None:
    with pytest.raises(UDFError, match="cannot be constructed"):
        list(numbers().map(Unmade, on_error="skip"))


def test_a_way_to_go_on_that_is_none_is_refused() -> None:
    for verb in ("map", "filter", "flat_map", "random_map", "map_batches", "take_while"):
        with pytest.raises(PlanError, match="on_error='ignore'"):
            getattr(numbers(), verb)(lambda row: row, on_error="ignore")
    with pytest.raises(PlanError, match="needs nothing of its own"):
        numbers().filter(dml.col("x") > 1, on_error="skip")


def test_facts_and_names() -> None:
    for verb in ("map", "lifted", "random_map", "map_batch"):
        ds = VERBS[verb](numbers())
        assert node_of(ds).rows is Rows.FEWER
        assert not node_of(ds).total
    lossy, strict = numbers().map(odd, on_error="skip"), numbers().map(odd)
    assert lossy.fingerprint() != strict.fingerprint()
    assert strict.ignore_errors().fingerprint() == lossy.fingerprint()
    assert "on_error='skip'" in lossy.explain("written")
    assert "on_error" not in strict.explain("written")


def test_ignore_errors_changes_every_function_below_and_none_above() -> None:
    below = numbers().map(odd).concat(numbers().map(odd)).filter(lambda row: 10 // (row["x"] - 5))
    ds = below.ignore_errors()
    assert [row["x"] for row in ds] == 2 * [x for x in KEPT if x < 10 and x != 5]
    with pytest.raises(UDFError, match="ZeroDivisionError"):
        list(ds.map(lambda row: {"x": 1 // (row["x"] - 6)}))
    plain = numbers().with_columns(y=dml.col("x") + 1)
    assert node_of(plain.ignore_errors()) is node_of(plain)


def test_errors_of_sources_and_expressions_still_raise(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet")
    ds = dml.read_parquet(tmp_path).map(odd).ignore_errors()
    pq.write_table(pa.table({"x": range(99)}), tmp_path / "a.parquet")
    with pytest.raises(SourceError):
        list(ds)
    with pytest.raises(CastError):
        list(numbers(300).cast(x="int8").map(odd).ignore_errors())


# -------------------------------------------------------------------------------- what is counted


def test_stats_count_rows_and_show_the_first_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(ROWS)}), tmp_path / "a.parquet", row_group_size=10)
    ds = dml.read_parquet(tmp_path).map(odd, on_error="skip").shuffle(5)
    ds = ds.map_batches(group, batch_size=4, on_error="skip").with_options(**QUIET)
    given = len(list(ds))
    lost = [record["skipped"] for record in ds.stats().records]
    assert lost == [0, ROWS - len(KEPT), 0, 4]
    assert given == len(KEPT) - 4
    first, second = ds.stats().warnings
    assert "MapRows(odd, on_error='skip') lost 23 rows to 23 errors" in first
    assert "ValueError: not 0" in first
    assert "a.parquet" in first
    assert "row 0" in first
    assert "lost 4 rows to 1 error; the first: group raised OSError: no" in second
    assert "skipped" in str(ds.stats())
    clean = numbers().map(dict, on_error="skip")
    assert len(list(clean)) == 10
    assert "skipped" not in str(clean.stats())


def test_what_errors_say_is_not_stored(tmp_path: Path) -> None:
    ds = numbers().map(odd, on_error="skip").with_options(telemetry_dir=str(tmp_path))
    assert len(list(ds)) == 4
    assert any("not 0" in each for each in ds.stats().warnings)
    collector = collector_of(dml.Settings(telemetry_dir=str(tmp_path)))
    assert collector is not None
    assert collector.flush(10)
    events = list(read(tmp_path))
    assert events
    assert not any("not 0" in str(event) for event in events)
    assert 6 in {getattr(event, "skipped", 0) for event in events}


@pytest.mark.law
@pytest.mark.parametrize("stage", ["map", "stages", "lifted", "flat_map", "map_batches"])
def test_work_that_is_done_again_counts_once(stage: str) -> None:
    node = node_of(VERBS[stage](numbers(ROWS)))
    wanted: dict[int, tuple[int, int]] = {}
    for fuzz in (None, 1, 2, 3, 4, 5):
        way = RunWay(threads=0 if fuzz is None else 2, target_bytes=1, fuzz=fuzz)
        run = streaming(node, way, UNUSED)
        flow = run.flow(0, None)
        while flow.pull(7) is not None:
            pass
        flow.close()
        counted = {n: (loss.rows, loss.errors) for n, loss in run.losses.by_operator.items()}
        wanted = wanted or counted
        assert counted == wanted
    assert wanted


def test_what_is_never_delivered_is_not_counted() -> None:
    ds = numbers(ROWS).map(odd, on_error="skip").take(2).with_options(**QUIET)
    assert [row["x"] for row in ds] == [5, 6]
    assert ds.stats().records[1]["skipped"] == 5  # those before the second row that is left


@pytest.mark.parametrize("executor", ["sync", "threads"])
@pytest.mark.parametrize("verb", ["map", "over_a_stream"])
def test_max_errors_ends_the_run(executor: str, verb: str) -> None:
    ds = VERBS[verb](numbers(ROWS)).with_options(executor=executor, telemetry_dir="off")
    errors = ROWS - len(KEPT)
    assert len(list(ds.with_options(max_errors=errors))) == len(KEPT)
    seen: list[Any] = []
    with pytest.raises(UDFError, match=r"errors, and max_errors=10") as failed:
        seen.extend(iter(ds.with_options(max_errors=10)))
    assert "not " in failed.value.why
    assert "odd" in failed.value.at
    with pytest.raises(UDFError, match="and max_errors=0"):
        list(ds.with_options(max_errors=0))


@pytest.mark.law
def test_max_errors_fails_at_its_place_and_counts_all_operators() -> None:
    def rows(**options: Any) -> tuple[list[int], str]:
        ds = numbers(ROWS).map(odd, on_error="skip")
        ds = ds.filter(lambda row: 1 // (row["x"] % 5), on_error="skip").with_options(**options)
        found: list[int] = []
        try:
            for row in ds:
                found.append(row["x"])  # noqa: PERF401 - what came before the error counts
        except UDFError as error:
            return found, error.what
        return found, ""

    wanted = rows(**QUIET, max_errors=12)
    assert wanted[1]
    assert rows(executor="threads", num_workers=2, target_partition_bytes=1, telemetry_dir="off",
                max_errors=12) == wanted  # fmt: skip
    assert rows(**QUIET)[0][: len(wanted[0])] == wanted[0]


def test_the_setting_is_a_count() -> None:
    for value in (-1, True, "auto", 1.5):
        with pytest.raises(PlanError, match="max_errors must be"):
            numbers().with_options(max_errors=value)


def test_sums_keep_the_first_error() -> None:
    noted = Noted()
    for number in range(3):
        noted.note(1, UDFError(f"error {number}", at="here"), 2)
    (loss,) = noted.drain(lambda error: error.located("nowhere"))
    assert loss == Loss(1, 6, 3, "error 0", "here")
    assert noted.drain(lambda error: error) == ()
    losses = Losses(Allowance(4))
    assert losses.add((loss,)) is None
    assert losses.add((loss._replace(what="later"),)) is not None
    assert losses.by_operator[1] == Loss(1, 12, 6, "error 0", "here")


# ------------------------------------------------------------------------------- other processes


@pytest.mark.cluster
def test_processes_lose_and_count_the_same() -> None:
    ds = numbers(ROWS).map(odd, on_error="skip", num_cpus=1).shuffle(5).map(dict)
    ds = ds.with_options(executor="processes", num_workers=2, target_partition_bytes=1)
    assert sorted(row["x"] for row in ds) == KEPT
    assert [record["skipped"] for record in ds.stats().records][:2] == [0, ROWS - len(KEPT)]
    assert "ValueError: not 0" in ds.stats().warnings[0]
    with pytest.raises(UDFError, match="max_errors=3"):
        list(ds.with_options(max_errors=3))


@pytest.mark.cluster
@dask_cases.UNCLOSED
def test_dask_loses_and_counts_the_same() -> None:
    with dask_cases.cluster() as cluster, Client(cluster) as client:
        ds = numbers(ROWS).map(odd, on_error="skip")
        ds = ds.with_options(scheduler=client, executor="distributed", telemetry_dir="off")
        assert [row["x"] for row in ds] == KEPT
        assert [record["skipped"] for record in ds.stats().records] == [0, ROWS - len(KEPT)]
        with pytest.raises(UDFError, match="max_errors=3"):
            list(ds.with_options(max_errors=3))


@pytest.mark.law
def test_static_graphs_lose_the_same() -> None:
    for verb in ("map", "stages", "over_a_stream"):
        ds = VERBS[verb](numbers(ROWS)).epoch(0)
        tables = [part.compute(scheduler="sync") for part in ds.to_dask()]
        assert [x for each in tables for x in each["x"].to_pylist()] == [row["x"] for row in ds]


def test_a_run_without_an_account_tells_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ds = dml.range(6).map(lambda row: {"x": 1 // (row["id"] % 3)}).ignore_errors()
    assert len(ds.to_dict()["x"]) == 4
    assert "2 rows were lost to errors; the first: " in caplog.text
    assert "ZeroDivisionError" in caplog.text


MOMENTS = pa.array([1000, 2000, 3001, 4000, 5001, 6000], pa.timestamp("ns"))


def test_a_value_without_a_python_form_costs_its_own_row() -> None:
    """Python's datetime holds microseconds, so the third and fifth rows cannot be handed over."""
    ds = dml.from_arrow(pa.table({"i": range(6), "moment": MOMENTS}))
    ds = ds.with_options(telemetry_dir="off")

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        return {"i": row["i"], "n": len(row)}

    for declared in (None, {"i": "int64", "n": "int64"}):
        made = ds.map(counted, schema=declared, on_error="skip")
        assert [row["i"] for row in made] == [0, 1, 3, 5]


FACTOR = [3]  # a list could change, so functions that read it are called, and not lifted


@pytest.mark.law
@pytest.mark.parametrize(
    "verb",
    [
        lambda ds: ds.map(lambda row: {"i": row["i"] * 3}, on_error="skip"),
        lambda ds: ds.map(lambda row: {"i": row["i"] * FACTOR[0]}, on_error="skip"),
        lambda ds: ds.map(lambda row: {"i": 6 // (row["i"] - 1) * FACTOR[0]}, on_error="skip"),
        lambda ds: ds.filter(lambda row: row["i"] != FACTOR[0], on_error="skip").select("i"),
        lambda ds: ds.flat_map(lambda row: [{"i": row["i"]}] * FACTOR[0], on_error="skip"),
        lambda ds: ds.random_map(lambda row, _: {"i": row["i"] * FACTOR[0]}, on_error="skip"),
        lambda ds: ds.map(lambda row: {"i": row["i"]}).filter(lambda row: row["i"] != FACTOR[0]),
    ],
)
def test_a_value_that_no_function_looks_up_costs_no_row(verb: Any) -> None:
    with_moments = verb(dml.from_arrow(pa.table({"i": range(6), "moment": MOMENTS})))
    without = list(verb(dml.from_arrow(pa.table({"i": range(6)}))))
    assert len(without) >= 5
    for options in ({}, {"optimize": False}, {"disable_rules": ["lift_map", "lift_filter"]}):
        assert list(with_moments.with_options(telemetry_dir="off", **options)) == without
    agrees(with_moments, epochs=(0,))
