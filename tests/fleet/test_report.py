"""Test the table of a run's operators, as records and as text."""

from __future__ import annotations

from typing import Any

import pytest

from dml.base.amounts import bytes_text, count_text, seconds_text
from dml.events import OperatorTotals, RunFinished, RunStarted, Scaled, Unknown, Waits, Warned
from dml.fleet.report import run_table

EVENTS = [
    RunStarted(run="old", at=0.0),
    RunStarted(run="r", at=1.0, epoch=2, fingerprints={"result": "abc"}),
    OperatorTotals(
        run="r", at=2.0, ordinal=1, operator="Filter", rows_in=1000, rows_out=250, bytes_in=8000,
        bytes_out=2000, seconds=0.5, cpu_s=0.25, worker="a",
    ),
    OperatorTotals(
        run="r", at=2.0, ordinal=1, operator="Filter", rows_in=1000, rows_out=250, bytes_in=8000,
        bytes_out=2000, seconds=0.5, worker="b",
    ),
    OperatorTotals(
        run="r", at=2.0, ordinal=0, operator="ReadParquet", name="train", rows_out=2000,
        bytes_out=16_000, seconds=3.0, cpu_s=1.0,
    ),
    Waits(run="r", at=2.0, consumer_s=0.125),
    Warned(run="r", at=2.0, name="SlowDisk", text="12 MB/s"),
    Unknown(run="zzz", at=9.0, name="New"),
    RunFinished(run="r", at=3.0, rows=500, bytes=4000, seconds=2.0),
]  # fmt: skip


def test_records_follow_the_pipeline_and_add_up_workers() -> None:
    table = run_table(EVENTS)
    read, kept = table.records
    assert [read["operator"], kept["operator"]] == ["ReadParquet", "Filter"]
    assert (kept["rows_in"], kept["rows_out"], kept["seconds"]) == (2000, 500, 1.0)
    assert kept["cpu_s"] is None  # one worker did not measure it
    assert (read["share"], kept["share"]) == (0.75, 0.25)
    assert kept["rows_per_s"] == 500
    assert table.summary["consumer_s"] == 0.125
    assert (table.summary["epoch"], table.summary["status"]) == (2, "finished")
    assert table.warnings == ("SlowDisk: 12 MB/s",)


def test_text_is_aligned_and_leaves_out_what_nobody_has() -> None:
    lines = str(run_table(EVENTS)).splitlines()
    assert lines[0] == "finished  500 rows  4.0 kB  2.00 s  250 rows/s  2.0 kB/s  waited 125 ms"
    assert lines[1].split()[:3] == ["#", "operator", "name"]
    assert "calls" not in lines[1]
    assert lines[2].index("ReadParquet") == lines[3].index("Filter") == lines[1].index("operator")
    assert lines[-1] == "warning  SlowDisk: 12 MB/s"
    assert run_table(EVENTS)._repr_html_().count("<tr>") == 3


def test_a_run_can_be_chosen_and_may_have_no_figures() -> None:
    table = run_table(EVENTS, run="old")
    assert table.records == ()
    assert str(table) == "running"
    assert str(run_table([])) == "running"


def test_a_run_of_no_time_has_no_rates() -> None:
    events = [OperatorTotals(run="r", operator="Map"), RunFinished(run="r")]
    (record,) = run_table(events).records
    assert (record["rows_per_s"], record["share"]) == (None, None)
    assert "-" in str(run_table(events))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB")),
        *((999_950, "1.0 MB"), (1.5e12, "1.5 TB"), (10**21, "1,000,000.0 PB")),
    ],
)
def test_bytes(size: float | None, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((None, "-"), (0.0, "0 s"), (1.5e-6, "1.50 us"), (0.0456, "45.6 ms"), (1.234, "1.23 s")),
        *((999.9, "1,000 s"), (86_400.0, "86,400 s"), (0.99, "990 ms"), (99.96, "100 s")),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


def test_counts() -> None:
    assert count_text(1234567.8) == "1,234,568"


def test_long_names_are_cut_in_the_table_only() -> None:
    name = "WithColumns(" + "x" * 200
    totals = OperatorTotals(
        run="r", at=2.0, ordinal=0, operator="WithColumns", name=name, rows_out=1, seconds=1.0
    )
    table = run_table([totals])
    assert table.records[0]["name"] == name
    assert max(map(len, str(table).split("\n"))) < 200


def test_a_table_tells_how_many_workers_there_are_and_why() -> None:
    figures: dict[str, Any] = {"batch_time_s": 0.25, "result_queue_size": 3.5}
    changes = [
        Scaled(run="r", at=n, batches=n * 100, workers=n, asked=n + 1, reason=f"why {n}", **figures)
        for n in range(1, 8)
    ]
    now = Scaled(run="r", at=9.0, batches=900, workers=8, asked=8, **figures)
    table = run_table([*EVENTS, *changes, now])
    assert table.summary["workers"] == 8
    assert (table.summary["batch_time_s"], table.summary["result_queue_size"]) == (0.25, 3.5)
    assert len(table.summary["scaled"]) == 7
    lines = [each for each in str(table).splitlines() if each.startswith(("workers", "scaled"))]
    assert lines[0] == "workers  8  batch_time 250 ms  result_queue_size 3.5"
    assert lines[-1] == "scaled  7 to 8 after 700 batches: why 7"
    assert len(lines) == 6
    assert "workers" not in run_table(EVENTS).summary
