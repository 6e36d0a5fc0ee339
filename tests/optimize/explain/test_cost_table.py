"""Test the tables of ``explain``: expected costs, and measured costs beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dml
from dml import col
from dml.errors import PlanError
from dml.events import OperatorTotals, RunFinished
from dml.optimize.cost.estimate import estimates
from dml.optimize.explain.cost_table import WIDE, actuals, analyzed_text, costs_text
from dml.optimize.phases import optimize
from dml.optimize.work_names import work_names
from dml.profile import Profile
from tests.optimize.tables import ROWS, flights


def pipeline(**options: Any) -> dml.Dataset:
    ds = flights().filter(col("miles") > 5).with_columns(z=col("id") * 2).shuffle(4).take(9)
    return ds.with_options(executor="sync", **options)


def test_expected_costs_have_a_line_for_each_operator() -> None:
    stations = optimize(flights().filter(col("miles") > 5).shuffle(4).repeat()._node, 0)
    lines = costs_text(estimates(stations.plan, work_names(stations.plan), Profile())).split("\n")
    assert lines[0].split() == ["#", "operator", "rows", "seconds", "per", "1M", "rows", "from"]
    assert [line.split()[0] for line in lines[1:5]] == ["0", "1", "2", "3"]
    assert str(ROWS) in lines[1]
    assert "~" in lines[2]
    assert "endless" in lines[4]
    assert lines[1].endswith("p x/3")
    assert max(map(len, lines)) <= WIDE


def test_figures_of_workers_are_added_up() -> None:
    events = [
        OperatorTotals(ordinal=1, worker=name, rows_in=4, rows_out=2, seconds=0.5) for name in "ab"
    ]
    assert actuals([*events, RunFinished()]) == {1: (8, 4, 1.0)}


def test_what_was_measured_stands_beside_what_was_expected() -> None:
    stations = optimize(flights().filter(col("miles") > 5).take(3)._node, 0)
    found = estimates(stations.plan, work_names(stations.plan), Profile())
    seconds = [each.seconds for each in found]
    events = [
        OperatorTotals(
            ordinal=each.ordinal,
            rows_out=3,
            seconds=0.0 if belief is None else 2 * belief.typical,
        )
        for each, belief in zip(found, seconds, strict=True)
    ]
    ended = RunFinished(rows=3, seconds=0.5)
    lines = analyzed_text(found, [*events, ended], stations.trace).split("\n")
    assert [line.split()[-2] for line in lines[1 : 1 + len(found)]] == ["2.00x"] * len(found)
    assert "run: 3 rows in 500 ms, finished" in lines
    assert any(line.startswith("  filter_as_segment: ") for line in lines)
    assert any("positions would change" in line for line in lines[lines.index("refused") :])
    assert max(map(len, lines)) <= WIDE


def test_an_operator_that_was_never_asked_has_no_ratio() -> None:
    stations = optimize(flights().shuffle(4)._node, 0)
    found = estimates(stations.plan, work_names(stations.plan), Profile())
    text = analyzed_text(found, [], stations.trace)
    assert text.split("\n")[1].endswith("0.00x      -")
    assert "no rewrites" in text


def test_a_second_run_is_expected_from_the_first(tmp_path: Path) -> None:
    options = {"telemetry_dir": str(tmp_path)}
    ds = pipeline(**options)
    first, second = ds.explain(analyze=True), pipeline(**options).explain(analyze=True)
    own = [line for line in first.split("\n") if line[:1].isdigit()]
    assert all(" p x/" in line for line in own)
    again = [line for line in second.split("\n") if line[:1].isdigit()]
    assert len(again) == len(own) > 2
    assert all(" h +-" in line for line in again)
    assert ds.stats().summary["status"] == "finished"
    assert "rewrites" in second


def test_telemetry_that_is_off_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ds = pipeline(telemetry_dir="off")
    for _ in range(2):
        assert " p x/" in ds.explain(analyze=True)
    assert not list(tmp_path.rglob("*.json*"))


def test_a_stage_may_stand_above() -> None:
    text = pipeline(telemetry_dir="off").explain("physical", analyze=True)
    assert text.startswith("deliver   rows")
    assert "\nwork: " in text
    assert text.index("deliver") < text.index("work: ")


def test_analyzing_needs_an_end() -> None:
    with pytest.raises(PlanError, match="endless"):
        flights().repeat().explain(analyze=True)


def test_analyzing_is_no_epoch() -> None:
    ds = flights().shuffle(seed=1)
    wanted = [row["id"] for row in ds.epoch(0)]
    ds.explain(analyze=True)
    assert [row["id"] for row in ds] == wanted


def test_text_shows_as_it_is() -> None:
    text = flights().filter(col("miles") < 5).explain("written")
    assert repr(text) == str(text)
    assert "\n" in repr(text)
    shown = text._repr_html_()  # type: ignore[attr-defined]
    assert shown.startswith("<pre")
    assert "&lt;" in shown
