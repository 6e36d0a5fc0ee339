"""Read the files of the telemetry store that hold events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeGuard

from dml.events import (
    Event,
    OperatorTotals,
    Scaled,
    Tuned,
    Unknown,
    Warned,
    from_json,
)
from dml.fleet.collector import LAYOUT
from dml.fleet.snapshot import event_files

DAMAGED: Final = "TelemetryDamaged"
LATEST: Final = 1e11  # the year 5138: a time beyond is not in seconds


def read(root: Path) -> Iterator[Event]:
    """Yield the events of all event files, file by file.

    A damaged line or unreadable file becomes a Warned event named TelemetryDamaged that names the
    place; a store that does not exist has no events.
    """
    for name in event_files(root):
        path = root / LAYOUT / name
        try:
            yield from read_file(path)
        except OSError as error:
            yield Warned(name=DAMAGED, text=f"{path}: {error}")


def read_file(path: Path) -> Iterator[Event]:
    """Yield the events of one file; a damaged line becomes a Warned event, as in ``read``.

    Raise OSError if the file cannot be read, which need not be so the next time.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _valid(from_json(line), line)
        except ValueError as error:
            yield Warned(name=DAMAGED, text=f"{path}:{number}: {error}")


def _valid(event: Event, line: str) -> Event:
    """Return the event; raise ValueError if no table can have it."""
    if not 0 <= event.at < LATEST:
        raise ValueError(f"the time of an event is in seconds since 1970, got {event.at!r}")
    if "\\ud" in line.lower():  # half of a letter, perhaps
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    return event


def is_damage(event: Event) -> TypeGuard[Warned]:
    """Return True for the event that stands for a damaged line."""
    return isinstance(event, Warned) and event.name == DAMAGED and not event.run


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
