"""Turn the events of a run into a table: rows, bytes and seconds of each operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dml.base.amounts import ABSENT, bytes_text, count_text, seconds_text
from dml.base.display import Displayed, Grid, one_line
from dml.events import (
    Event,
    OperatorTotals,
    RunFinished,
    RunStarted,
    Scaled,
    Tuned,
    Unknown,
    Verified,
    Waits,
    Warned,
)
from dml.fleet.reader import latest

NAME_LETTERS: Final = 48
SCALED: Final = 5  # number of changes, of the cluster's size and of each stage, in a table's text

Record = dict[str, Any]
Column = tuple[str, str, Callable[[Any], str]]


@dataclass(frozen=True, slots=True, repr=False)
class RunTable(Displayed):
    """Figures of one run: ``summary`` of the whole run, one record per operator, and warnings.

    ``str()`` gives aligned text. Figures that were not recorded are None, and print as ``-``.
    """

    summary: Record
    records: tuple[Record, ...]
    warnings: tuple[str, ...] = ()

    def _parts(self) -> Iterator[str | Grid]:
        yield _summary_line(self.summary)
        if self.records:
            yield operator_grid(self.records)
        yield from _verified_lines(self.summary)
        yield from _scaled_lines(self.summary)
        yield from _tuned_lines(self.summary)
        yield from (f"warning  {one_line(each)}" for each in self.warnings)


def run_table(events: Iterable[Event], run: str | None = None) -> RunTable:
    """Return the table of one run's operators, by default of the last run in ``events``.

    Operators are in pipeline order; workers are summed. ``share`` is an operator's fraction of the
    seconds of all operators, ``rows_per_s`` output rows per second inside the operator.
    """
    kept = [each for each in latest(events) if not isinstance(each, Unknown)]
    if run is None:
        named = [each for each in kept if each.run]
        last = max(named, key=lambda each: (isinstance(each, RunStarted), each.at), default=None)
        run = "" if last is None else last.run
    kept = [each for each in kept if each.run == run]
    operators = _by_ordinal([each for each in kept if isinstance(each, OperatorTotals)])
    whole = sum(each["seconds"] for each in operators)
    records = tuple(_rated(each, whole) for each in operators)
    warned = tuple(f"{each.name}: {each.text}" for each in kept if isinstance(each, Warned))
    return RunTable(_summary(kept, run), records, warned)


def _by_ordinal(events: Sequence[OperatorTotals]) -> list[Record]:
    """Return one record per operator, summed over workers; a sum with a missing figure is None."""
    found: dict[int, Record] = {}
    for event in sorted(events, key=lambda each: each.ordinal):
        record = {name: getattr(event, name) for name in (*NAMES, *SUMS)}
        mine = found.setdefault(event.ordinal, record)
        if mine is not record:
            mine.update({name: _plus(mine[name], record[name]) for name in SUMS})
    return list(found.values())


NAMES: Final = ("ordinal", "operator", "name", "lifted", "tier", "medium")
SUMS: Final = (
    "rows_in", "rows_out", "bytes_in", "bytes_out", "seconds", "cpu_s", "blocks", "python_calls",
    "cache_hits", "cache_misses", "cache_checks", "cache_wrong", "kept_elements", "kept_bytes",
    "skipped", "spared_bytes", "near_bytes", "far_bytes",
)  # fmt: skip


def _plus(one: float | None, two: float | None) -> float | None:
    return None if one is None or two is None else one + two


def _rated(record: Record, whole: float) -> Record:
    seconds = record["seconds"]
    return {
        **record,
        "rows_per_s": record["rows_out"] / seconds if seconds > 0 else None,
        "bytes_per_s": record["bytes_out"] / seconds if seconds > 0 else None,
        "share": seconds / whole if whole > 0 else None,
    }


def _summary(events: Sequence[Event], run: str) -> Record:
    """Return the figures of the whole run, by the field names of their events."""
    summary: Record = {"run": run, "status": "running"}
    for event in events:
        if isinstance(event, RunStarted):
            summary.update(epoch=event.epoch, fingerprints=dict(event.fingerprints))
        elif isinstance(event, RunFinished | Waits | Verified):
            own = {each.name for each in dataclasses.fields(event)} - ENVELOPE
            summary.update({name: getattr(event, name) for name in sorted(own)})
    tuned = [each for each in events if isinstance(each, Tuned)]
    summary |= {"tuned": tuned} if tuned else {}
    return {**summary, **_scaled([each for each in events if isinstance(each, Scaled)])}


def _scaled(events: Sequence[Scaled]) -> Record:
    """Return the number of workers, the figures of the last decision, and all scaling changes."""
    if not events:
        return {}
    last = max(events, key=lambda each: each.at)
    return {
        "workers": last.workers,
        "batch_time_s": last.batch_time_s,
        "result_queue_size": last.result_queue_size,
        "scaled": [
            (each.batches, each.workers, each.asked, each.reason)
            for each in events
            if each.asked != each.workers
        ],
    }


ENVELOPE: Final = frozenset({"run", "at", "version", "extra"})


def _summary_line(summary: Mapping[str, Any]) -> str:
    seconds = summary.get("seconds")
    parts = [str(summary["status"])]
    if seconds is not None:
        rows, size = summary["rows"], summary["bytes"]
        parts.append(f"{count_text(rows)} rows  {bytes_text(size)}  {seconds_text(seconds)}")
        if seconds > 0:
            parts.append(f"{count_text(rows / seconds)} rows/s  {bytes_text(size / seconds)}/s")
    if summary.get("consumer_s") is not None:
        parts.append(f"waited {seconds_text(summary['consumer_s'])}")
    return "  ".join(parts)


def _verified_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return text on the comparison with the plan as written; [] if it was not requested."""
    if "verified" not in summary:
        return []
    lines = [f"verified  {summary['verified']} samples, of {summary['scope']}"]
    lines += [f"differing  {summary['differing']} samples"] * bool(summary["differing"])
    return lines + [f"unverified  {each}" for each in [summary["unverified"]] if each]


def _scaled_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return text with the number of workers and its last changes; [] if none was recorded."""
    if "workers" not in summary:
        return []
    took, queue = summary["batch_time_s"], summary["result_queue_size"]
    told = "" if took is None else f"  batch_time {seconds_text(took)}"
    told += "" if queue is None else f"  result_queue_size {queue:.1f}"
    return [f"workers  {summary['workers']}{told}"] + [
        f"scaled  {before} to {asked} after {count_text(batches)} batches: {reason}"
        for batches, before, asked, reason in summary["scaled"][-SCALED:]
    ]


def _tuned_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return text on the last changes of the number of slices at once; [] if there were none."""
    return [f"tuned  {each.text}" for each in summary.get("tuned", ())[-SCALED:]]


def _word(value: object) -> str:
    return ABSENT if value is None else str(value)


def _name_text(name: object) -> str:
    """Return ``name`` cut to the column's width; the record has the full name."""
    text = _word(name)
    return text if len(text) <= NAME_LETTERS else f"{text[: NAME_LETTERS - 4]} ..."


def _share_text(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.1%}"


def operator_grid(records: Sequence[Record]) -> Grid:
    """Return a header and one row per record; optional columns appear if any has a figure."""
    shown = [
        column
        for column in COLUMNS
        if column[1] not in OPTIONAL or any(record.get(column[1]) for record in records)
    ]
    rows = [[title for title, _, _ in shown]]
    rows += [[text(record.get(key)) for _, key, text in shown] for record in records]
    return Grid(rows, {place for place, (_, key, _) in enumerate(shown) if key in NAMES})


CACHE: Final = ("cache_hits", "cache_misses", "cache_checks", "cache_wrong")
KEPT: Final = ("kept_elements", "kept_bytes", "near_bytes", "far_bytes")
OPTIONAL: Final = frozenset(
    {"name", "cpu_s", "python_calls", "lifted", "tier", "skipped", "spared_bytes", *CACHE, *KEPT}
)
COLUMNS: Final[tuple[Column, ...]] = (
    ("#", "ordinal", _word),
    ("operator", "operator", _word),
    ("name", "name", _name_text),
    ("rows in", "rows_in", count_text),
    ("rows out", "rows_out", count_text),
    ("bytes in", "bytes_in", bytes_text),
    ("bytes out", "bytes_out", bytes_text),
    ("seconds", "seconds", seconds_text),
    ("cpu", "cpu_s", seconds_text),
    ("share", "share", _share_text),
    ("rows/s", "rows_per_s", count_text),
    ("bytes/s", "bytes_per_s", bytes_text),
    ("calls", "python_calls", count_text),
    ("skipped", "skipped", count_text),
    ("spared", "spared_bytes", bytes_text),
    ("hits", "cache_hits", count_text),
    ("misses", "cache_misses", count_text),
    ("checked", "cache_checks", count_text),
    ("wrong", "cache_wrong", count_text),
    ("kept", "kept_elements", count_text),
    ("kept bytes", "kept_bytes", bytes_text),
    ("from copies", "near_bytes", bytes_text),
    ("from store", "far_bytes", bytes_text),
    ("lifted", "lifted", _word),
    ("tier", "tier", _word),
)
