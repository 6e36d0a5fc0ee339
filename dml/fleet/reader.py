"""Read the telemetry store, as events and as Arrow tables with fixed schemas."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from dml.events import (
    Event,
    OperatorTotals,
    RunFinished,
    RunStarted,
    Scaled,
    Tuned,
    Unknown,
    Waits,
    Warned,
    from_json,
)
from dml.fleet.collector import LAYOUT

MOMENT: Final = pa.timestamp("us", tz="UTC")


def _columns(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names]


RUNS: Final = pa.schema(
    [
        *_columns(pa.string(), "run", "job"),
        *_columns(MOMENT, "started", "finished"),
        *_columns(pa.string(), "status", "error_kind"),
        *_columns(pa.string(), "fleet_fingerprint", "result_fingerprint", "shape_fingerprint"),
        *_columns(pa.int64(), "epoch"),
        *_columns(pa.bool_(), "resumed"),
        *_columns(pa.int64(), "datasets"),
        *_columns(pa.string(), "host", "host_class"),
        *_columns(pa.int64(), "cores"),
        *_columns(pa.float64(), "capability"),
        *_columns(pa.int64(), "rows", "batches", "bytes", "bytes_read"),
        *_columns(pa.float64(), "seconds", "first_batch_s", "cpu_s", "process_cpu_s"),
        *_columns(pa.int64(), "peak_bytes"),
        *_columns(pa.float64(), "consumer_s", "worker_idle_s", "memory_blocked_s"),
    ]
)
"""One row per run. Null means "not recorded"; nothing is ever imputed."""

OPERATORS: Final = pa.schema(
    [
        *_columns(pa.string(), "run", "worker"),
        *_columns(pa.int64(), "ordinal"),
        *_columns(pa.string(), "operator", "name"),
        *_columns(pa.string(), "fleet_fingerprint", "result_fingerprint", "cost_fingerprint"),
        *_columns(pa.int64(), "rows_in", "rows_out", "bytes_in", "bytes_out"),
        *_columns(pa.float64(), "seconds", "cpu_s"),
        *_columns(pa.int64(), "blocks", "python_calls"),
        *_columns(pa.int64(), "cache_hits", "cache_misses", "cache_checks", "cache_wrong"),
        *_columns(pa.int64(), "kept_elements", "kept_bytes", "near_bytes", "far_bytes"),
        *_columns(pa.int64(), "skipped", "spared_bytes", "peak_bytes"),
        *_columns(pa.string(), "lifted", "tier", "medium"),
    ]
)
"""One row per operator, worker and run."""


class TelemetryTables(NamedTuple):
    """The events as two tables with the schemas RUNS and OPERATORS, joined by column ``run``."""

    runs: pa.Table
    operators: pa.Table


def read(
    root: Path, *, since: dt.date | None = None, until: dt.date | None = None
) -> Iterator[Event]:
    """Yield the events published on the days from ``since`` to ``until``, inclusive, file by file.

    A damaged line or unreadable file becomes a Warned event named TelemetryDamaged that names the
    place; a store that does not exist has no events.
    """
    for folder in sorted((root / LAYOUT).glob("day=*")):
        day = _day(folder.name)
        if day is None or (since and day < since) or (until and day > until):
            continue
        for path in sorted(folder.glob("*.jsonl")):
            yield from _read_file(path)


def _day(name: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(name.removeprefix("day="))
    except ValueError:
        return None


def _read_file(path: Path) -> Iterator[Event]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        yield Warned(name="TelemetryDamaged", text=f"{path}: {error}")
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield from_json(line)
        except ValueError as error:
            yield Warned(name="TelemetryDamaged", text=f"{path}:{number}: {error}")


def tables(events: Iterable[Event]) -> TelemetryTables:
    """Return tables of runs and operators; of events with running totals, the latest counts."""
    runs: dict[str, dict[str, Any]] = {}
    operators = []
    for event in latest(events):
        if isinstance(event, OperatorTotals):
            operators.append(_row(event, OPERATORS))
        elif isinstance(event, RunStarted | RunFinished | Waits):
            row = runs.setdefault(event.run, dict.fromkeys(RUNS.names))
            row.update({key: each for key, each in _row(event, RUNS).items() if each is not None})
    return TelemetryTables(
        pa.Table.from_pylist(list(runs.values()), RUNS),
        pa.Table.from_pylist(operators, OPERATORS),
    )


def _row(event: Event, schema: pa.Schema) -> dict[str, Any]:
    """Return the event's fields by the names of ``schema``; None for fields that are missing."""
    row = {field.name: _fitted(getattr(event, field.name, None), field.type) for field in schema}
    fingerprints: Mapping[str, str] = getattr(event, "fingerprints", {})
    row.update(
        (f"{domain}_fingerprint", digest)
        for domain, digest in fingerprints.items()
        if f"{domain}_fingerprint" in row
    )
    moment = {"RunStarted": "started", "RunFinished": "finished"}.get(event.kind)
    if moment is not None:
        row[moment] = round(event.at * 1e6)
    return row


def _fitted(value: object, kind: pa.DataType) -> object:
    """Return ``value``; None for a damaged count over 64 bits, so that the store stays readable."""
    if pa.types.is_int64(kind) and isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    return value


def latest(events: Iterable[Event]) -> list[Event]:
    """Return the events, without those that a later event under the same key replaces.

    The key of an OperatorTotals is its run, worker and operator; that of other events is kind and
    run. All events of warnings, changes and unknown kinds stay. The order is that of the first
    event under each key.
    """
    kept: dict[tuple[object, ...], Event] = {}
    for count, event in enumerate(events):
        key: tuple[object, ...] = (event.kind, event.run)
        if isinstance(event, OperatorTotals):
            key += (event.worker, event.ordinal)
        elif isinstance(event, Warned | Scaled | Tuned | Unknown):
            key += (count,)
        if key not in kept or event.at >= kept[key].at:
            kept[key] = event
    return list(kept.values())
