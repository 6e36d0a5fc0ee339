"""Test that events become tables, and that the tables have all that the events had."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from dml.events import (
    Event,
    OperatorTotals,
    Progress,
    RunFinished,
    RunStarted,
    Tuned,
    Unknown,
    Waits,
    Warned,
)
from dml.fleet.report import run_table
from dml.fleet.tables import SCHEMAS, TelemetryTables, events_of, tables

COUNTS = st.integers(0, 2**63 - 1)
SECONDS = st.floats(0, 1e9)
WORDS = st.text(st.characters(codec="utf-8"), max_size=6)
MOMENTS = st.integers(1_700_000_000_000_000, 1_900_000_000_000_000).map(lambda us: us / 1e6)
DIGESTS = st.dictionaries(st.sampled_from(["fleet", "result", "cost", "kept", "rows"]), WORDS)


@st.composite
def runs(draw: st.DrawFn, name: str) -> list[Event]:
    """The events of a run that has ended, in the order in which they are recorded."""
    at = draw(MOMENTS)
    operators = [
        OperatorTotals(
            run=name, at=at, ordinal=ordinal, worker=worker, operator=draw(WORDS), name=draw(WORDS),
            fingerprints=draw(DIGESTS), rows_in=draw(COUNTS), rows_out=draw(COUNTS),
            bytes_in=draw(COUNTS), seconds=draw(SECONDS), cpu_s=draw(st.none() | SECONDS),
            peak_bytes=draw(st.none() | COUNTS), lifted=draw(WORDS), medium=draw(WORDS),
        )
        for ordinal in range(draw(st.integers(0, 3)))
        for worker in draw(st.sampled_from([("",), ("", "tcp://b")]))
    ]  # fmt: skip
    started = RunStarted(
        run=name, at=at, job=draw(WORDS), pipeline=draw(WORDS), epoch=draw(COUNTS),
        fingerprints={"fleet": "f" + draw(WORDS)}, options={"executor": draw(WORDS)},
    )  # fmt: skip
    return [
        started,
        *operators,
        Waits(run=name, at=at, consumer_s=draw(SECONDS), variation=draw(SECONDS)),
        Tuned(run=name, at=at, name="n", before=2, after=draw(COUNTS), reason=draw(WORDS)),
        Warned(run=name, at=at, name="SlowDisk", text=draw(WORDS)),
        RunFinished(run=name, at=at, rows=draw(COUNTS), seconds=draw(SECONDS), cpu_s=None),
    ]


def alike(event: Event) -> Event:
    """An event as it can be had back: facts of a plan are those of its first worker."""
    facts = ("operator", "name", "fingerprints", "lifted", "tier", "medium")
    if isinstance(event, OperatorTotals):
        return dataclasses.replace(event, **{name: type(getattr(event, name))() for name in facts})
    return event


@given(st.data())
def test_events_come_back_from_the_tables(data: st.DataObject) -> None:
    events = [*data.draw(runs("a")), *data.draw(runs("b"))]
    found = tables(events)
    assert [each.schema for each in found] == list(SCHEMAS)
    back = list(events_of(found))
    key = repr
    assert sorted(map(alike, back), key=key) == sorted(map(alike, events), key=key)
    again = tables(back)
    assert again.runs.sort_by("run").equals(found.runs.sort_by("run"))
    assert again.operators.equals(found.operators)


@given(st.data())
def test_the_table_of_a_run_is_the_same_from_its_events_and_from_the_store(
    data: st.DataObject,
) -> None:
    events = data.draw(runs("a"))
    assert str(run_table(events_of(tables(events)), "a")) == str(run_table(events, "a"))


def test_the_latest_totals_count_and_damaged_counts_are_null() -> None:
    events = [
        RunStarted(run="a", at=1.5, fingerprints={"fleet": "f1", "result": "r1", "odd": "x"}),
        OperatorTotals(run="a", at=2.0, ordinal=0, operator="Map", rows_out=5),
        OperatorTotals(run="a", at=3.0, ordinal=0, operator="Map", rows_out=2**70, bytes_out=7),
        RunFinished(run="a", at=4.0, rows=10, cpu_s=1.25),
        Progress(run="a", at=4.0, rows=1),
        RunStarted(run="b", at=5.0),
        Unknown(run="b", at=5.0, name="Later", fields={"n": 1}),
    ]
    found = tables(events)
    first, second = found.runs.to_pylist()
    assert (first["fleet_fingerprint"], first["rows"], first["cpu_s"]) == ("f1", 10, 1.25)
    assert (first["started"].timestamp(), first["finished"].timestamp()) == (1.5, 4.0)
    assert (second["run"], second["rows"], second["status"]) == ("b", None, None)
    (row,) = found.operators.to_pylist()
    assert (row["bytes_out"], row["rows_out"]) == (7, None)
    assert found.notes.to_pylist()[0]["kind"] == "Later"
    assert Unknown(run="b", at=5.0, name="Later", fields={"n": 1}) in list(events_of(found))


def test_runs_of_one_plan_have_one_entry_for_its_operators() -> None:
    def events(run: str, tier: str) -> list[Event]:
        return [
            OperatorTotals(run=run, at=1.0, ordinal=n, worker=worker, operator="Map", tier=tier)
            for n in range(3)
            for worker in ("", "tcp://b")
        ]

    found = tables([*events("a", "numpy"), *events("b", "numpy"), *events("c", "numba")])
    assert (found.plans.num_rows, found.operators.num_rows) == (6, 18)
    plans = dict(zip(*(found.runs[name].to_pylist() for name in ("run", "plan")), strict=True))
    assert plans["a"] == plans["b"] != plans["c"]


def test_no_events_make_empty_tables() -> None:
    assert tables([]) == TelemetryTables(*(schema.empty_table() for schema in SCHEMAS))
