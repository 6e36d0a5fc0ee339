"""This file compares what explain says of pipelines with the texts beside it.

After a change of plans: ``pytest tests/plans --update-plans``, then read the diff.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import dml
from dml import Dataset, col
from dml.api import explanation, multi_run
from dml.optimize.cost.estimate import Estimate, estimates
from dml.optimize.explain.physical_text import physical_text
from dml.optimize.explain.stations import explained
from dml.optimize.phases import optimize
from dml.optimize.work_names import work_names
from dml.physical.plan import Plan
from dml.profile import Profile
from dml.testing.pipelines import NAMED, Row, write_data

HERE = Path(__file__).resolve().parent
SHOWN = ("written", "normalized", "chosen", "physical", "graph", "rules")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def expected(plan: Plan) -> tuple[Estimate, ...]:
    """The costs of the table, on a machine of the usual speed that has run nothing."""
    return estimates(plan, work_names(plan), Profile())


def compared(text: str, golden: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-plans"):
        golden.write_text(text, encoding="utf-8")
    assert golden.exists(), "run pytest tests/plans --update-plans, and read what it wrote"
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMED)
def test_a_plan_is_the_one_that_was_read(
    name: str, data: Path, request: pytest.FixtureRequest
) -> None:
    stations = optimize(NAMED[name].make(data)._node, 0)
    texts = {stage: explained(stations, stage, micros=False) for stage in SHOWN}
    texts["physical"] = physical_text(stations.plan, expected=expected(stations.plan))
    parts = [f"{stage}\n{_indented(text)}" for stage, text in texts.items()]
    text = "\n\n".join(parts).replace(str(data), "DATA") + "\n"
    compared(text, HERE / f"{name}.txt", request)


def test_every_text_has_its_pipeline() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == set(NAMED)
    assert {path.stem for path in (HERE / "operators").glob("*.txt")} == set(OPERATORS)


def doubled(row: Row) -> Row:
    return {"twice": row["score"] * 2 + len(str(row))}


def people(data: Path) -> Dataset:
    ds = dml.read_parquet(data / "people", atom_rows=16)
    # what earlier runs learned may switch rules off
    return ds.with_options(cache_dir=str(data / "kept"), telemetry_dir="off")


def filled(ds: Dataset) -> str:
    """What explain says of the next run, once one has filled the caches."""
    list(ds.epoch(0))
    return ds.explain("physical")


def shared(data: Path) -> str:
    below = people(data).map(doubled).shuffle(50, seed=1)
    both = [below.batch(8), below.filter(col("twice") > 30).batch(16)]
    wanted = [multi_run.WantedRun(ds._node, ds._settings, 0) for ds in both]
    return multi_run.explained_together(wanted)


def cluster_sort(data: Path) -> str:
    ds = people(data).sort("score").with_options(scheduler="tcp://127.0.0.1:9", spread=True)
    return ds.explain("physical")


# Every kind of operator that is no operator of the pipeline itself.
OPERATORS: dict[str, Callable[[Path], str]] = {
    "functions_on_slices": lambda data: (
        people(data).map(doubled).shuffle(50, seed=1).map(doubled_again).batch(8)
    ).explain("physical"),
    "elements_as_they_are_made": lambda data: (
        people(data).map(doubled).batch(8).with_options(executor="threads", deterministic=False)
    ).explain("physical"),
    "late_filter": lambda data: people(data).filter(col("score") > 0.5).explain("physical"),
    "coalesced_read": lambda _: (
        dml.range(1000).filter(col("id") % 3 == 0).batch(8).with_options(telemetry_dir="off")
    ).explain("physical"),
    "cache_in_memory": lambda data: filled(people(data).map(doubled).cache().batch(8)),
    "cache_on_disk": lambda data: filled(people(data).map(doubled).cache(tier="disk").batch(8)),
    "cache_to_be_filled": lambda data: (
        people(data).map(doubled).cache(tier="disk").with_options(cache_dir=str(data / "empty"))
    ).explain("physical"),
    "self_check": lambda data: (
        people(data).filter(col("score") > 0.5).batch(8).with_options(verify="sample")
    ).explain("physical"),
    "two_inputs": lambda data: (
        people(data)
        .select("person")
        .zip(people(data).select("score").map(doubled))
        .explain("physical")
    ),
    "shared_prefix": shared,
    "cluster_sort": cluster_sort,
}


def doubled_again(row: Row) -> Row:
    return {"twice": row["twice"] * 2 + len(str(row))}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_operators_of_a_run_are_those_that_were_read(
    name: str,
    data: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (explanation, multi_run):
        monkeypatch.setattr(module, "estimates_of", lambda plan, _: expected(plan))
    text = OPERATORS[name](data).replace(str(data), "DATA") + "\n"
    # files, and so their names in stores, differ with the library that wrote them
    text = re.sub(r"[\d,]+ bytes", "N bytes", re.sub(r"as [0-9a-f]{16} in", "as NAME in", text))
    compared(text, HERE / "operators" / f"{name}.txt", request)


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))
