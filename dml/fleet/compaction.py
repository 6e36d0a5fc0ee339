"""Rewrite event files as Parquet, a file of each kind and day, and drop what is too old.

A run moves as a whole: its events are in event files until it has ended, and in Parquet from then
on. Events of runs that go on are written to an event file of their own. Any number of processes may
compact a store at once, on any machines: the first snapshot counts, the work of others is removed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dml.base.fingerprint import digest
from dml.base.ownership import FILE, make_folders
from dml.events import Event, RunFinished, Warned
from dml.fleet.collector import LAYOUT, UNFINISHED, publish
from dml.fleet.reader import DAMAGED, latest, read_file
from dml.fleet.snapshot import Snapshot, TableFile, commit, event_files, snapshot
from dml.fleet.tables import TelemetryTables, tables

SETTLED_S: Final = 3600.0
"""An event file is compacted when it is this old, so that events of one run are together."""
ABANDONED_S: Final = 7 * 86_400.0
"""A run without events for so long was killed: it is compacted without an end."""
SLICE_BYTES: Final = 32 << 20
"""Event files of so many bytes are compacted at once; their events take some 20 times as much."""
MOST_PARTS: Final = 4
"""More files of one kind and day than these are merged into one."""
ROUNDED: Final = ("seconds", "cpu_s")
GROUP_ROWS: Final = 1 << 14
TIMELESS: Final = ("plans", "prefixes")
"""Tables of plans have no days: a plan is stored once, for all its runs."""
LEASE: Final = "compacting"
LEASE_S: Final = 600.0
DAY_S: Final = 86_400.0


class Compacted(NamedTuple):
    """Number of runs, event files and expired Parquet files that were handled, and the damage."""

    runs: int = 0
    event_files: int = 0
    expired: int = 0
    damaged: tuple[str, ...] = ()


def compact(
    root: Path,
    *,
    retain_days: int | None = None,
    settled_s: float = SETTLED_S,
    now: float | None = None,
) -> Compacted:
    """Compact the store below ``root``, and remove days older than ``retain_days``.

    Return at once if another process has compacted in the last ten minutes and not ended. Memory is
    bounded by ``SLICE_BYTES``, whatever the size of the store. Raise OSError as the disk does.
    """
    now = time.time() if now is None else now
    lease = root / LAYOUT / LEASE
    if not _take(lease, now):
        return Compacted()
    done = Compacted()
    try:
        _remove_folded(root)
        for files in _slices(root, now - settled_s):
            found = _fold(root, files, now)
            if found is None:
                break  # another process is at work on the same files
            done = Compacted(
                done.runs + found.runs, done.event_files + found.event_files, 0,
                done.damaged + found.damaged,
            )  # fmt: skip
            os.utime(lease)
        _merge(root)
        expired = _expire(root, now, retain_days) if retain_days is not None else 0
        return done._replace(expired=expired)
    finally:
        lease.unlink(missing_ok=True)


def events_bytes(root: Path) -> int:
    """Return the bytes of all event files."""
    found = 0
    for name in event_files(root):
        with contextlib.suppress(FileNotFoundError):
            found += (root / LAYOUT / name).stat().st_size
    return found


def _take(lease: Path, now: float) -> bool:
    """Create the lease; an old one is taken over. Leases spare work, and decide nothing."""
    make_folders(lease.parent)
    try:
        lease.touch(FILE, exist_ok=False)
    except FileExistsError:
        try:
            if now - lease.stat().st_mtime < LEASE_S:
                return False
        except FileNotFoundError:
            return False
        os.utime(lease)
    return True


def _remove_folded(root: Path) -> None:
    """Remove event files that an earlier process replaced, but could not remove."""
    for name in snapshot(root).folded.intersection(event_files(root)):
        (root / LAYOUT / name).unlink(missing_ok=True)


def _slices(root: Path, until: float) -> Iterator[list[str]]:
    """Yield event files that have not changed since ``until``, some megabytes at a time."""
    files, nbytes = [], 0
    for name in event_files(root):
        try:
            seen = (root / LAYOUT / name).stat()
        except FileNotFoundError:
            continue
        if seen.st_mtime > until:
            continue
        files.append(name)
        nbytes += seen.st_size
        if nbytes >= SLICE_BYTES:
            yield files
            files, nbytes = [], 0
    if files:
        yield files


def _fold(root: Path, files: Sequence[str], now: float) -> Compacted | None:
    """Replace event files by Parquet and one file of runs that go on; None if another did."""
    before = snapshot(root)
    events: dict[str, list[Event]] = {}
    damaged = []
    for name in files:
        for event in read_file(root / LAYOUT / name):
            if isinstance(event, Warned) and event.name == DAMAGED and not event.run:
                damaged.append(event.text)
            elif event.run:
                events.setdefault(event.run, []).append(event)
    ended = {run: each for run, each in events.items() if _has_ended(each, now)}
    waiting = [event for run, each in events.items() if run not in ended for event in each]
    if not ended and len(files) == 1 and not damaged:
        return Compacted()  # only runs that go on, in one file already
    parts = list(_written(root, before, ended.values()))
    carried = _carry(root, waiting) if waiting else None
    folded = (before.folded | set(files)).intersection(event_files(root))
    if not commit(root, before.next(parts, folded=folded)):
        _remove(root, [each.path for each in parts])
        if carried is not None:
            carried.unlink(missing_ok=True)
        return None
    _remove(root, files)
    return Compacted(len(ended), len(files), 0, tuple(damaged))


def _has_ended(events: Sequence[Event], now: float) -> bool:
    if any(isinstance(each, RunFinished) for each in events):
        return True
    return max(each.at for each in events) < now - ABANDONED_S


def _carry(root: Path, events: Sequence[Event]) -> Path:
    """Write the events of runs that go on to one event file, of the day of the last one."""
    name, at = f"carried-{uuid.uuid4().hex}", max(each.at for each in events)
    return publish(root, name, latest(events), at)


def _written(root: Path, before: Snapshot, runs: Iterable[Sequence[Event]]) -> Iterator[TableFile]:
    """Write the runs as Parquet files, by the day on which they ended; yield the files."""
    days: dict[str, list[Event]] = {}
    for events in runs:
        days.setdefault(_day(events), []).extend(events)
    known = _known_plans(root, before)
    for day, events in days.items():
        found = tables(events)
        fresh = {
            kind: table.filter(pc.invert(pc.is_in(table["plan"], known)))
            for kind, table in found._asdict().items()
            if kind in TIMELESS
        }
        known = pa.concat_arrays([known, *found.runs["plan"].chunks])
        yield from write_tables(root, day, found._replace(**fresh))


def _known_plans(root: Path, before: Snapshot) -> pa.Array:
    """Return the plans that the store has already."""
    names = [pa.array([], pa.string())]
    for part in (each for kind in TIMELESS for each in before.of(kind)):
        with contextlib.suppress(OSError, pa.ArrowException):
            names += read_part(root, part)["plan"].chunks
    return pa.concat_arrays(names)


def _day(events: Sequence[Event]) -> str:
    at = max(each.at for each in events)
    return dt.datetime.fromtimestamp(at, dt.UTC).date().isoformat()


def write_tables(root: Path, day: str, found: TelemetryTables) -> Iterator[TableFile]:
    """Write one day's tables as Parquet files, which no snapshot names yet; yield the files."""
    for kind, table in found._asdict().items():
        if table.num_rows:
            yield _write(root, kind, "" if kind in TIMELESS else day, table)


def _write(root: Path, kind: str, day: str, table: pa.Table) -> TableFile:
    """Write one file, sorted by run, so that a run is found without reading the whole file.

    Seconds of operators, which are most of all figures, are rounded to seven digits.
    """
    keys = [name for name in ("run", "plan", "ordinal") if name in table.schema.names]
    name = "/".join(filter(None, (kind, day, f"{uuid.uuid4().hex}.parquet")))
    final = root / LAYOUT / name
    temporary = root / LAYOUT / UNFINISHED / f"{uuid.uuid4().hex}.parquet"
    for folder in (final.parent, temporary.parent):
        make_folders(folder)
    try:
        temporary.touch(FILE)
        ordered = _rounded(table).sort_by([(key, "ascending") for key in keys])
        with temporary.open("wb") as file:
            pq.write_table(
                ordered, file, compression="zstd",
                compression_level=6, row_group_size=GROUP_ROWS, write_page_checksum=True,
                use_dictionary=_words(table.schema), column_encoding=_splits(table.schema),
            )  # fmt: skip
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    columns = digest(*table.schema.names).hex()
    return TableFile(name, kind, day, table.num_rows, final.stat().st_size, columns)


def _rounded(table: pa.Table) -> pa.Table:
    """Round an operator's seconds as float32 does: the zeros at their ends take no space."""
    for place, name in enumerate(table.schema.names):
        if name in ROUNDED and "ordinal" in table.schema.names:
            column = table[name].cast(pa.float32(), safe=False).cast(pa.float64())
            table = table.set_column(place, table.schema.field(name), column)
    return table


def _words(schema: pa.Schema) -> list[str]:
    return [each.name for each in schema if pa.types.is_string(each.type)]


def _splits(schema: pa.Schema) -> Mapping[str, str]:
    """Return the encoding of numbers: bytes of equal significance together compress well."""
    numbers = [each for each in schema if not pa.types.is_string(each.type)]
    return {
        each.name: "BYTE_STREAM_SPLIT" for each in numbers if not pa.types.is_boolean(each.type)
    }


def _merge(root: Path) -> None:
    """Merge the files of a kind and day, where they are many."""
    before = snapshot(root)
    groups: dict[tuple[str, str], list[TableFile]] = {}
    for part in before.parts:
        groups.setdefault((part.kind, part.day), []).append(part)
    for (kind, day), parts in groups.items():
        if len(parts) > MOST_PARTS:
            _merge_parts(root, kind, day, parts)


def _merge_parts(root: Path, kind: str, day: str, parts: Sequence[TableFile]) -> None:
    try:
        tables_of_day = [read_part(root, each) for each in parts]
        whole = pa.concat_tables(tables_of_day, promote_options="default")  # of several versions
    except (OSError, pa.ArrowException):
        return  # a damaged file stays as it is; who reads it is told
    made = _write(root, kind, day, whole)
    before = snapshot(root)
    if not before.has(parts) or not commit(root, before.next([made], parts, before.folded)):
        _remove(root, [made.path])
        return
    _remove(root, [each.path for each in parts])


def read_part(root: Path, part: TableFile) -> pa.Table:
    """Return a Parquet file's rows. Raise OSError or ArrowException if the file is damaged."""
    path = root / LAYOUT / part.path
    return pq.ParquetFile(path, page_checksum_verification=True).read()


def _expire(root: Path, now: float, retain_days: int) -> int:
    """Remove the Parquet files of days that ended over ``retain_days`` days ago."""
    before = snapshot(root)
    first = dt.datetime.fromtimestamp(now - retain_days * DAY_S, dt.UTC).date().isoformat()
    old = [each for each in before.parts if each.day < first and each.kind not in TIMELESS]
    if not old or not commit(root, before.next((), old, before.folded)):
        return 0
    _remove(root, [each.path for each in old])
    return len(old)


def _remove(root: Path, names: Iterable[str]) -> None:
    for name in names:
        (root / LAYOUT / name).unlink(missing_ok=True)


def whole(root: Path, found: Snapshot) -> tuple[Snapshot, list[str]]:
    """Return the snapshot without damaged files, and a text on each of these."""
    good, wrong = [], []
    for part in found.parts:
        try:
            read_part(root, part)
            good.append(part)
        except (OSError, pa.ArrowException) as error:
            wrong.append(f"{part.path}: {error}")
    return Snapshot(found.number, tuple(good), found.folded), wrong
