"""Test that runs follow the chosen arrangement, keep user options, and deliver equal bytes."""

from __future__ import annotations

import dataclasses
from itertools import islice, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api import session
from dml.api.dataset import Dataset
from dml.api.resources import RunResources
from dml.data.stream_hash import stream_hash
from dml.events import RunStarted, Verified
from dml.optimize.search import arrangement
from dml.optimize.search.arrangement import decide
from dml.optimize.search.arrangement_space import cut
from dml.settings import Settings

ROWS = 4000
OFF: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 2}


def pure(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "t": f"{row['x']} {row['id']}"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Rows in one row group, and the same in forty."""
    table = pa.table({"id": range(ROWS), "x": [i / 7 for i in range(ROWS)]})
    pq.write_table(table, tmp_path / "one.parquet")
    pq.write_table(table, tmp_path / "many.parquet", row_group_size=ROWS // 40)
    return tmp_path


def mapped(files: Path, name: str = "one") -> Dataset:
    ds = dml.read_parquet(str(files / f"{name}.parquet"), atom_rows=50).map(pure)
    return ds.filter(col("t") != "0.0 0").shuffle(64, seed=3).batch(30).with_options(**OFF)


def forced(monkeypatch: pytest.MonkeyPatch, driver: str, stages: int, size: int) -> None:
    """Every run is arranged like this."""

    def made(*asked: Any) -> Any:
        found = decide(*asked)
        assert found is not None
        way = next(
            dataclasses.replace(each.way, size=size)
            for each in found.ranked
            if (each.way.driver.name, len(each.way.cuts) + 1) == (driver, stages)
        )
        return dataclasses.replace(found, chosen=found.usual._replace(way=way))

    monkeypatch.setattr(arrangement, "decide", made)


ARRANGEMENTS = list(product(("threads", "processes"), (1, 2), (1000, 1 << 20)))


@pytest.mark.law
@pytest.mark.cluster
def test_bytes_and_states_are_those_of_any_other_arrangement(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stream_hash(mapped(files).with_options(executor="sync").epoch(0))
    elements = list(mapped(files).with_options(executor="sync").epoch(0))
    state: dict[str, Any] | None = None
    for number, (driver, stages, size) in enumerate(ARRANGEMENTS):
        forced(monkeypatch, driver, stages, size)
        ds = mapped(files).epoch(0)
        made = session.arrangement(ds._node, ds._settings)
        assert made.settings.executor == ("auto" if driver == "threads" else driver)
        assert len(made.stations.plan.links) == stages - 1
        assert RunResources.of(made.settings, made.stations.plan).budget.target_bytes == size
        assert stream_hash(ds) == whole
        with iter(ds) as run:
            if state is not None:
                run.load_state_dict(state)
            passed = 0 if state is None else 13 * number
            found = list(islice(run, 13))
            assert stream_hash(found) == stream_hash(elements[passed : passed + 13])
            state = run.state_dict()


def started(ds: Dataset) -> RunStarted:
    it = iter(ds)
    next(it)
    (found,) = (each for each in it.events() if isinstance(each, RunStarted))
    it.close()
    return found


@pytest.mark.law
def test_little_data_is_run_as_ever(files: Path) -> None:
    for name in ("one", "many"):
        ds = mapped(files, name)
        made = session.arrangement(ds._node, ds._settings)
        assert made.settings.executor == "auto"
        assert made.settings.target_partition_bytes == "auto"
        assert made.stations.plan.stage is session.optimized(ds._node, ds._settings).plan.stage
        assert started(ds).options["executor"] == "auto"


@pytest.mark.parametrize("executor", ["threads", "processes", "sync", "distributed"])
def test_what_the_user_fixed_is_kept(
    files: Path, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def eager(*asked: Any) -> Any:
        """The last of all, as if it were the best."""
        found = decide(*asked)
        assert found is not None
        assert {each.way.size for each in found.ranked} == {12_345}
        assert {each.way.driver.name for each in found.ranked} == {executor}
        return dataclasses.replace(found, chosen=found.ranked[-1])

    monkeypatch.setattr(arrangement, "decide", eager)
    ds = mapped(files).with_options(executor=executor, target_partition_bytes=12_345)
    made = session.arrangement(ds._node, ds._settings)
    assert made.settings.executor == executor
    assert made.settings.target_partition_bytes == 12_345
    assert (made.decision is None) == (executor in {"sync", "distributed"})


def test_options_without_meaning_for_a_choice_leave_none(files: Path) -> None:
    ds = mapped(files)
    for options in (
        {"optimize": False},
        {"disable_rules": ("stages_by_cost", "executor_by_cost")},
        {"executor": "sync"},
    ):
        made = session.arrangement(ds._node, dataclasses.replace(ds._settings, **options))
        assert made.decision is None
        assert made.stations is session.optimized(
            ds._node, dataclasses.replace(ds._settings, **options)
        )
    assert "optimize=False is set" in ds.with_options(optimize=False).explain("arranged")
    assert "executor='sync' is set" in ds.with_options(executor="sync").explain("arranged")


@pytest.mark.law
def test_all_epochs_of_a_pipeline_are_arranged_alike(files: Path) -> None:
    ds = mapped(files)
    once = session.arrangement(ds._node, ds._settings)
    list(ds)
    list(ds)
    assert session.arrangement(ds._node, ds._settings) is once
    other = ds.with_options(num_workers=1)
    assert session.arrangement(ds._node, other._settings) is not once
    assert session.arrangement(ds._node, Settings(**OFF)) is once, "equal settings, equal plans"


def test_memory_bounds_the_sizes(files: Path) -> None:
    ds = mapped(files)
    for limit in ("8MiB", "64MiB", "1GiB"):
        made = session.arrangement(ds._node, ds.with_options(memory_limit=limit)._settings)
        assert made.decision is not None
        for each in made.decision.ranked:
            plan = cut(made.stations.plan, each.way.cuts)
            plain = dataclasses.replace(made.settings, target_partition_bytes="auto")
            usual = RunResources.of(plain, plan).budget.target_bytes
            assert each.way.size <= usual


def test_it_is_told_beside_the_costs(files: Path) -> None:
    ds = mapped(files)
    text = ds.explain()
    assert "arranged\n  chosen  threads, one stage, partitions of " in text
    assert text.index("\narranged\n") < text.index("\ncosts\n")
    assert ds.explain("arranged").startswith("chosen  threads, one stage")
    repeated = dml.range(10).repeat(3).with_options(**OFF).explain("arranged")
    assert "why     the usual: there are tasks for all workers" in repeated


def test_equal_settings_of_other_clusters_are_told_apart(files: Path) -> None:
    ds = mapped(files)
    for scheduler in ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"):
        asked = ds.with_options(scheduler=scheduler)._settings
        assert session.arrangement(ds._node, asked).settings.scheduler == scheduler


@pytest.mark.law
@pytest.mark.cluster
@pytest.mark.parametrize(("driver", "stages"), [("threads", 2), ("processes", 2)])
def test_a_run_that_checks_itself_may_be_arranged(
    files: Path, monkeypatch: pytest.MonkeyPatch, driver: str, stages: int
) -> None:
    whole = stream_hash(mapped(files).with_options(executor="sync").epoch(0))
    forced(monkeypatch, driver, stages, 1000)
    ds = mapped(files).with_options(verify="sample").epoch(0)
    it = iter(ds)
    assert stream_hash(it) == whole
    (found,) = (each for each in it.events() if isinstance(each, Verified))
    assert found.verified > 0
    assert not found.differing
