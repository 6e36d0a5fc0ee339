"""Test the output of ``explain``: every compilation step, in stable text."""

from __future__ import annotations

from pathlib import Path

import pytest

from dml import col
from dml import range as range_
from dml.errors import PlanError
from dml.optimize.explain.stations import STATIONS, explained, graph_text
from dml.optimize.phases import optimize
from tests.optimize.tables import flights, parquet

LATE = col("late") > 0


@pytest.mark.law
def test_all_stations_speak() -> None:
    ds = flights().filter(LATE).with_columns(z=col("id") * 2).shuffle(4).take(9)
    stations = optimize(ds._node, 0)
    for stage in STATIONS:
        if stage not in ("rules", "physical"):  # with times, and with costs
            assert explained(stations, stage) == ds.explain(stage)
    whole = ds.explain()
    assert [line for line in whole.split("\n") if not line.startswith(" ")] == [
        "written",
        "normalized",
        "physical",
        "arranged",
        "costs",
        "rewrites",
        "refused",
    ]


def test_an_unknown_station_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlanError, match="no stage 'nowhere'") as caught:
        flights().explain("nowhere")
    assert "written, normalized, chosen, physical, graph, rules, arranged, costs" in str(
        caught.value
    )


def test_rules_are_told_with_law_and_source() -> None:
    stations = optimize(flights().take(9).take(4)._node, 0)
    assert explained(stations, "rules", micros=False) == "\n".join(
        [
            "merge_takes: take(n) of take(m) is take(min(n, m)).",
            "  Take(4) over Take(9)",
            f"  -> Take(4) over {flights()._node.title()}",
            "  from tf.data, slice merging",
            "take_into_source: Units that lie entirely beyond the last row taken are not read.",
            f"  read {flights()._node.title()}, 4 of 4 columns, then Take(4)",
            f"  -> read {flights()._node.title()}, 1 of 6 units, 4 of 4 columns, then Take(4)",
            "  from limit pushdown",
        ]
    )
    assert "0 us, from tf.data" in explained(stations, "rules")
    assert explained(optimize(flights()._node, 0), "rules") == "no rule applied"


def test_rules_say_which_functions_are_called_as_they_are_and_why() -> None:
    ds = flights().map(lambda row: {"x": str(id(row))}).filter(lambda row: row["x"])
    told = explained(optimize(ds._node, 0), "rules").split("\n")
    first = told.index("refused: MapRows(<lambda>) not computed as expressions")
    assert told[first + 1] == "  it uses id, which is not known to be pure"
    second = told.index("refused: FilterRows(<lambda>) not computed as expressions")
    assert told[second + 1] == "  the columns of its rows are not known yet"


def test_reading_is_told(tmp_path: Path) -> None:
    ds = parquet(tmp_path).filter(col("id") < 9).select("name")
    assert "2 of 3 columns (id, name)" in ds.explain("physical")
    assert "skips units by (id < 9)" in ds.explain("physical")
    assert "2 of 5 units" in parquet(tmp_path).take(9).explain("physical")
    assert "in the order of ShuffleAll" in flights().shuffle().explain("physical")
    assert "from unit 1, atom 0, row 1" in flights().skip(5).explain("physical")


def test_the_cut_into_tasks_is_told(tmp_path: Path) -> None:
    ds = parquet(tmp_path).filter(col("id") < 9).take(3)
    plan = optimize(ds._node, 0).plan
    text = graph_text(plan, target_bytes=1)
    assert text.startswith("5 tasks of about 1 B")
    assert "cut from 5 units, 15 atoms, 40 rows" in text
    assert text.endswith("then in order: Take(3)")
    assert graph_text(plan).startswith("5 tasks of about 16 MiB of decoded columns or one unit")
    assert ds.explain("graph") == graph_text(plan)
    assert ds.take(0).explain("graph").startswith("0 tasks")
    many = range_(2000, atom_rows=10).explain("graph")
    assert many.startswith("67 tasks of 3 units, to have at least 64\n")


def test_a_function_of_batches_is_said_to_be_called_for_each_batch() -> None:
    ds = flights()
    for made in (ds.map_batches(lambda batch: batch), ds.batch(2).map(lambda batch: batch)):
        assert "called for each batch: " in made.explain("physical")
    assert "called for each row: " in ds.flat_map(lambda row: [row]).explain("physical")
