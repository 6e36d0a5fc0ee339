"""Test the figures of the fleet study, on a few runs by hand and on a synthetic fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

import dml
from dml.events import Event, OperatorTotals, RunFinished, RunStarted
from dml.fleet.collector import publish
from dml.fleet.figures import Figures
from dml.testing.synthetic_fleet import write_fleet

pytest.importorskip("duckdb")
NOON = 1_770_033_600.0


def run(
    name: str,
    job: str,
    pipeline: str,
    operators: list[tuple[str, int, int]],
    *,
    read: int,
    cpu: tuple[float, float],
    at: float = NOON,
) -> list[Event]:
    """A run: ``operators`` are (name, bytes in, bytes out), ``cpu`` that of input and of all."""
    produced = operators[-1][2]
    return [
        RunStarted(run=name, at=at, job=job, fingerprints={"fleet": pipeline}, capability=2.0),
        *(
            OperatorTotals(
                run=name, at=at, ordinal=n, operator=operator, bytes_in=taken, bytes_out=made,
                medium="local" if n == 0 else "", fingerprints={"fleet": f"{pipeline}{n}"},
            )
            for n, (operator, taken, made) in enumerate(operators)
        ),
        RunFinished(run=name, at=at, bytes=produced, bytes_read=read, cpu_s=cpu[0],
                    process_cpu_s=cpu[1]),
    ]  # fmt: skip


@pytest.fixture
def drawn(tmp_path: Path) -> Figures:
    shrink = [("ParquetSource", 0, 100), ("MapRows", 100, 10), ("FilterRows", 10, 4)]
    grow = [("ParquetSource", 0, 100), ("MapRows", 100, 150), ("ShuffleAll", 150, 150)]
    events = [
        *run("a", "j", "p", shrink, read=100, cpu=(1.0, 2.0)),
        *run("b", "j", "p", shrink, read=100, cpu=(1.0, 2.0), at=NOON + 60),
        *run("c", "k", "p", shrink, read=100, cpu=(1.0, 16.0), at=NOON + 3600),
        *run("d", "l", "q", grow, read=10**13, cpu=(3.0, 20.0)),
        RunStarted(run="e", at=NOON, job="m", fingerprints={"fleet": "r"}),
    ]
    publish(tmp_path, "w-0", events, NOON)
    return dml.fleet.open(tmp_path).figures()


def test_statements_about_a_few_runs(drawn: Figures) -> None:
    value = {row["statement"]: row["value"] for row in drawn.headlines.to_pylist()}
    third = pytest.approx(1 / 3)
    assert value["jobs that spend over a third of their compute on input"] == third
    assert value["compute of all jobs that is spent on input"] == pytest.approx(6 / 40)
    assert value["compute that the median job spends on input"] == pytest.approx(3 / 20)
    assert value["jobs that read over 1 TB"] == third
    assert value["compute of the jobs that read over 1 TB"] == pytest.approx(0.5)
    assert value["jobs that produce less than a tenth of what they read"] == 1
    assert value["jobs whose map changes the volume tenfold or more"] == pytest.approx(2 / 3)
    assert value["jobs whose filter drops over half of the bytes"] == 1
    assert value["pipelines that run more than once in an hour"] == third  # q shuffles, r ran once
    assert value["runs of the tenth of the pipelines that runs most"] == pytest.approx(3 / 5)
    assert value["pipelines that several jobs run"] == third
    whole = 3 * 114 + 400
    assert value["bytes produced by Map"] == pytest.approx((3 * 10 + 150) / whole)
    assert value["bytes produced by Read from storage"] == pytest.approx(400 / whole)
    assert value["bytes produced by Zip"] == 0
    assert value["pipelines with Cache"] == 0


def test_tables_have_the_points_of_the_pictures(drawn: Figures) -> None:
    assert drawn.figure_1["ingest_share"].to_pylist()[::50] == pytest.approx([1 / 16, 0.15, 0.5])
    assert drawn.figure_2["bytes_read"].to_pylist()[-1] == 10**13
    kinds = {row["family"]: row["pipelines"] for row in drawn.figure_9.to_pylist()}
    assert kinds == {"Read from storage": 1, "Map": 1, "Filter": 0.5, "Shuffle": 0.5}
    assert {*drawn.figure_10["scope"].to_pylist()} == {"pipeline", "map", "filter"}
    first, second = drawn.figure_11.to_pylist()
    assert (first["pipelines"], first["above_1"], second["above_1"]) == (2, 0.5, 0)
    assert drawn.figure_12["runs"].to_pylist() == pytest.approx([0.6, 0.8, 1.0])
    assert drawn.combinations.to_pylist()[0] == {
        "operators": "Filter + Map + Read from storage", "jobs": 2, "share": pytest.approx(2 / 3)
    }  # fmt: skip


def test_a_synthetic_fleet_has_the_figures_of_the_paper(tmp_path: Path) -> None:
    write_fleet(tmp_path, runs=40_000, pipelines=400, days=4, seed=3)
    fleet = dml.fleet.open(tmp_path)
    rows = fleet.figures().headlines.to_pylist()
    for row in (each for each in rows if each["figure"] != "5.1"):  # of 400 pipelines, ten are many
        assert row["value"] == pytest.approx(row["paper"], abs=0.02), row["statement"]
    assert fleet.query("SELECT count(*) AS n FROM numbers")["n"].to_pylist() == [400_000]
    assert {*fleet.runs()["host"].to_pylist()} == {"synthetic"}


def test_a_fleet_is_drawn_by_its_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_fleet(tmp_path / name, runs=500, pipelines=100, seed=4)
    one, two = (dml.fleet.open(tmp_path / name) for name in ("a", "b"))
    assert one.runs().equals(two.runs())
    assert one.operators().equals(two.operators())


def test_figures_of_a_fleet_without_figures(tmp_path: Path) -> None:
    publish(tmp_path, "w-0", [RunStarted(run="a", at=NOON, job="j")], NOON)
    found = dml.fleet.open(tmp_path).figures()
    rows = found.headlines.to_pylist()
    assert {row["value"] for row in rows if row["figure"] in ("1", "2", "10")} == {None}
