"""Events become Arrow tables with fixed schemas, and rows of these tables become events again.

What is equal for all runs of a plan (names and fingerprints of its operators) is stored once, in
the table of plans; a row of an operator refers to it by ``plan`` and ``ordinal``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from dml.base.fingerprint import digest
from dml.events import (
    Event,
    OperatorTotals,
    Progress,
    RunFinished,
    RunStarted,
    Waits,
    from_json,
    to_json,
)
from dml.fleet.reader import latest

MOMENT: Final = pa.timestamp("us", tz="UTC")
DIGESTS: Final = ("fleet", "result", "cost", "kept", "rows")
RUN_DIGESTS: Final = ("fleet", "result", "shape", "data")
DOCUMENTS: Final = ("options", "versions")


def _columns(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names]


RUNS: Final = pa.schema(
    [
        *_columns(pa.string(), "run", "job"),
        *_columns(MOMENT, "started", "finished"),
        *_columns(pa.string(), "status", "error_kind", "plan"),
        *_columns(pa.string(), *(f"{domain}_fingerprint" for domain in RUN_DIGESTS)),
        *_columns(pa.string(), "pipeline", *DOCUMENTS),
        *_columns(pa.int64(), "epoch"),
        *_columns(pa.bool_(), "resumed"),
        *_columns(pa.int64(), "datasets"),
        *_columns(pa.string(), "host", "host_class"),
        *_columns(pa.int64(), "cores"),
        *_columns(pa.float64(), "capability"),
        *_columns(pa.int64(), "rows", "batches", "bytes", "bytes_read"),
        *_columns(pa.float64(), "seconds", "first_batch_s", "cpu_s", "process_cpu_s"),
        *_columns(pa.int64(), "peak_bytes"),
        *_columns(pa.float64(), "consumer_s", "worker_idle_s", "memory_blocked_s", "variation"),
    ]
)
"""One row per run. Null means "not recorded"; nothing is ever imputed."""

OPERATORS: Final = pa.schema(
    [
        *_columns(pa.string(), "run", "job", "host_class", "data_fingerprint", "worker", "plan"),
        *_columns(pa.int64(), "ordinal", "rows_in", "rows_out", "bytes_in", "bytes_out"),
        *_columns(pa.float64(), "seconds", "cpu_s"),
        *_columns(pa.int64(), "blocks", "python_calls"),
        *_columns(pa.int64(), "cache_hits", "cache_misses", "cache_checks", "cache_wrong"),
        *_columns(pa.int64(), "kept_elements", "kept_bytes", "near_bytes", "far_bytes"),
        *_columns(pa.int64(), "skipped", "spared_bytes", "peak_bytes"),
    ]
)
"""One row per operator, worker and run; :data:`PLANS` says what the operator is."""

PLANS: Final = pa.schema(
    [
        *_columns(pa.string(), "plan"),
        *_columns(pa.int64(), "ordinal"),
        *_columns(pa.string(), "operator", "name"),
        *_columns(pa.string(), *(f"{domain}_fingerprint" for domain in DIGESTS)),
        *_columns(pa.string(), "lifted", "tier", "medium"),
    ]
)
"""One row per operator of a plan, for all runs of it."""

PREFIXES: Final = pa.schema(
    [
        *_columns(pa.string(), "plan", "prefix", "operator"),
        *_columns(pa.int64(), "place", "ordinal"),
    ]
)
"""One row per prefix of a plan's pipeline: its name, place (source first) and last operator."""

NOTES: Final = pa.schema(
    [
        *_columns(pa.string(), "run"),
        *_columns(MOMENT, "at"),
        *_columns(pa.string(), "kind", "event"),
    ]
)
"""Warnings, changes of numbers and of workers, comparisons: one row and JSON text per event."""


class TelemetryTables(NamedTuple):
    """The events of runs as five tables, which columns ``run`` and ``plan`` join."""

    runs: pa.Table
    operators: pa.Table
    plans: pa.Table
    prefixes: pa.Table
    notes: pa.Table


SCHEMAS: Final = TelemetryTables(RUNS, OPERATORS, PLANS, PREFIXES, NOTES)


def tables(events: Iterable[Event]) -> TelemetryTables:
    """Return the tables of the events; of events with running totals, the latest count."""
    runs: dict[str, dict[str, Any]] = {}
    totals: dict[str, list[OperatorTotals]] = {}
    prefixes: dict[str, list[dict[str, Any]]] = {}
    notes = []
    for event in latest(events):
        if isinstance(event, OperatorTotals):
            totals.setdefault(event.run, []).append(event)
        elif isinstance(event, RunStarted | RunFinished | Waits):
            row = runs.setdefault(event.run, dict.fromkeys(RUNS.names))
            row.update(_run_row(event))
            if isinstance(event, RunStarted):
                prefixes[event.run] = _prefixes(event)
        elif event.run and not isinstance(event, Progress):
            notes.append(_note(event))
    rows, plans, shared = _by_plan(runs, totals, prefixes)
    found = (list(runs.values()), rows, plans, shared, notes)
    return TelemetryTables(*map(pa.Table.from_pylist, found, SCHEMAS))


Rows = list[dict[str, Any]]


def _by_plan(
    runs: dict[str, dict[str, Any]],
    totals: Mapping[str, Sequence[OperatorTotals]],
    prefixes: Mapping[str, Rows],
) -> tuple[Rows, Rows, Rows]:
    """Return rows of operators, plans and prefixes; set the plans of the runs."""
    rows: Rows = []
    known: dict[str, tuple[Rows, Rows]] = {}
    for run in dict.fromkeys([*totals, *(name for name, each in prefixes.items() if each)]):
        did, shared = totals.get(run, ()), prefixes.get(run, [])
        facts = {each.ordinal: _facts(each) for each in reversed(did)}  # as the first worker says
        ordered = [facts[ordinal] for ordinal in sorted(facts)]
        plan = digest("plan", [[*row.values()] for row in (*ordered, *shared)]).hex()
        known.setdefault(plan, (ordered, shared))
        row = runs.setdefault(run, {**dict.fromkeys(RUNS.names), "run": run})
        row["plan"] = plan
        whose = {name: row[name] for name in ("job", "host_class", "data_fingerprint", "plan")}
        rows += [{**_row(each, OPERATOR_FIELDS), **whose} for each in did]
    plans = [{**row, "plan": plan} for plan, each in known.items() for row in each[0]]
    return rows, plans, [{**row, "plan": plan} for plan, each in known.items() for row in each[1]]


def _prefixes(event: RunStarted) -> Rows:
    found = []
    for place, (prefix, last) in enumerate(event.prefixes.items()):
        ordinal, _, operator = last.partition(" ")
        if ordinal.isdecimal() and len(ordinal) < 10:
            row = {"prefix": prefix, "operator": operator, "place": place, "ordinal": int(ordinal)}
            found.append(row)
    return found


def _run_row(event: Event) -> dict[str, Any]:
    """Return the columns of ``RUNS`` that an event has a figure for."""
    row = _row(event, RUN_FIELDS)
    digests: Mapping[str, str] = getattr(event, "fingerprints", {})
    row |= {f"{name}_fingerprint": digests.get(name) or None for name in RUN_DIGESTS}
    row |= {name: _text(getattr(event, name, None)) for name in DOCUMENTS}
    moment = {"RunStarted": "started", "RunFinished": "finished"}.get(event.kind)
    if moment is not None:
        row[moment] = round(event.at * 1e6)
    return {key: each for key, each in row.items() if each is not None}


def _text(document: Mapping[str, str] | None) -> str | None:
    return json.dumps(document, separators=(",", ":")) if document else None


def _facts(event: OperatorTotals) -> dict[str, Any]:
    """Return what is equal for all runs of the event's plan."""
    row = _row(event, PLAN_FIELDS)
    digests = {domain: event.fingerprints.get(domain) or None for domain in DIGESTS}
    return row | {f"{domain}_fingerprint": each for domain, each in digests.items()}


def _note(event: Event) -> dict[str, Any]:
    kind = getattr(event, "name", "") if event.kind == "Event" else event.kind
    return {"run": event.run, "at": round(event.at * 1e6), "kind": kind, "event": to_json(event)}


def _plain(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that are fields of events as they are."""
    return tuple(
        name for name in schema.names if name not in DOCUMENTS and not name.endswith("_fingerprint")
    )


RUN_FIELDS: Final = _plain(RUNS)
OPERATOR_FIELDS: Final = _plain(OPERATORS)
PLAN_FIELDS: Final = tuple(name for name in _plain(PLANS) if name != "plan")


def _row(event: Event, names: Sequence[str]) -> dict[str, Any]:
    """Return fields of the event by name; None for those that are missing.

    A damaged count over 64 bits is None too, so that the store stays readable.
    """
    fields = vars(event)
    row = {name: fields.get(name) for name in names}
    for name, value in row.items():
        if type(value) is int and not -(2**63) <= value < 2**63:
            row[name] = None
    return row


def events_of(found: TelemetryTables) -> Iterator[Event]:
    """Yield the events whose tables are ``found``."""
    shared: dict[str, dict[str, str]] = {}
    for row in found.prefixes.sort_by("place").to_pylist():
        last = f"{row['ordinal']} {row['operator']}"
        shared.setdefault(row["plan"], {})[row["prefix"]] = last
    for row in found.runs.to_pylist():
        yield from _run_events({**row, "prefixes": shared.get(row["plan"])})
    facts = {(row["plan"], row["ordinal"]): row for row in found.plans.to_pylist()}
    ends = {row["run"]: _seconds(row["finished"]) for row in found.runs.to_pylist()}
    for row in found.operators.to_pylist():
        fact = facts.get((row["plan"], row["ordinal"]), {})
        yield _totals({**fact, **row}, ends.get(row["run"], 0.0))
    for row in found.notes.to_pylist():
        yield from_json(row["event"])


def _run_events(row: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events that a row of ``RUNS`` was made from."""
    digests = {name: row[f"{name}_fingerprint"] for name in RUN_DIGESTS}
    documents = {name: json.loads(row[name] or "{}") for name in DOCUMENTS}
    if row["started"] is not None:
        named = {name: each for name, each in digests.items() if each}
        yield _filled(RunStarted, {**row, **documents, "fingerprints": named}, row["started"])
    at = row["finished"] or row["started"]
    if row["consumer_s"] is not None:
        yield _filled(Waits, row, at)
    if row["finished"] is not None:
        yield _filled(RunFinished, row, row["finished"])


def _totals(row: Mapping[str, Any], at: float) -> OperatorTotals:
    digests = {name: row.get(f"{name}_fingerprint") for name in DIGESTS}
    named = {name: each for name, each in digests.items() if each}
    made: OperatorTotals = _filled(OperatorTotals, {**row, "fingerprints": named}, at)
    return made


def _filled(kind: type[Any], row: Mapping[str, Any], at: Any) -> Any:
    """Return an event of ``kind``; a figure that was not recorded has its default."""
    names = kind.__dataclass_fields__
    known = {name: each for name, each in row.items() if name in names and each is not None}
    return kind(**known, at=at if isinstance(at, float) else _seconds(at))


def _seconds(moment: Any) -> float:
    """Return a moment as seconds since 1970; 0.0 for None."""
    return moment.timestamp() if moment is not None else 0.0
