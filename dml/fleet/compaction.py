"""Rewrite event files as Parquet, a file of each kind and day, and drop what is too old.

A run moves as a whole: its events are in event files until it has ended, and in Parquet from then
on. Any number of processes may compact a store at once, on any machines: the first snapshot counts,
the work of others is removed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
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
from dml.events import Event, RunFinished
from dml.fleet.collector import LAYOUT, UNFINISHED
from dml.fleet.reader import is_damage, read_file
from dml.fleet.snapshot import Snapshot, TableFile, commit, event_files, snapshot
from dml.fleet.tables import TelemetryTables, tables

SETTLED_S: Final = 3600.0
"""An event file is compacted when it is this old, so that events of one run are together."""
ASIDE: Final = "damaged"
"""The folder of event files with damaged lines, whose other lines are in Parquet."""
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
    """Number of runs, event files and expired Parquet files that were handled, and the damage.

    ``busy`` is true if nothing was done, since another process compacts the store.
    """

    runs: int = 0
    event_files: int = 0
    expired: int = 0
    damaged: tuple[str, ...] = ()
    busy: bool = False


def compact(
    root: Path,
    *,
    retain_days: int | None = None,
    settled_s: float = SETTLED_S,
    now: float | None = None,
) -> Compacted:
    """Compact the store below ``root``, and remove days older than ``retain_days``.

    Do nothing if another process has begun to do so within ten minutes, and has not ended. At once
    in memory are ``SLICE_BYTES`` of event files, or one day's tables. Raise OSError as the disk
    does.
    """
    now = time.time() if now is None else now
    lease = root / LAYOUT / LEASE
    if not _take(lease, now):
        return Compacted(busy=True)
    done = Compacted()
    try:
        _remove_folded(root)
        _sweep(root, now)
        for files in _slices(root, now - settled_s, now):
            found = _fold(root, files)
            done = Compacted(
                done.runs + found.runs, done.event_files + found.event_files, 0,
                done.damaged + found.damaged,
            )  # fmt: skip
            with contextlib.suppress(FileNotFoundError):  # somebody took it over
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
            if abs(now - lease.stat().st_mtime) < LEASE_S:
                return False
            os.utime(lease)
        except FileNotFoundError:
            return False
    return True


def _remove_folded(root: Path) -> None:
    """Remove event files that an earlier process replaced, but could not remove."""
    for name in snapshot(root).folded.intersection(event_files(root)):
        (root / LAYOUT / name).unlink(missing_ok=True)


def _sweep(root: Path, now: float) -> None:
    """Remove Parquet files that no longer belong to the store, a day after they left it."""
    named = {each.path for each in snapshot(root).parts}
    for kind in TelemetryTables._fields:
        for path in (root / LAYOUT / kind).rglob("*.parquet"):
            with contextlib.suppress(FileNotFoundError):
                old = now - path.stat().st_mtime > DAY_S
                if old and str(path.relative_to(root / LAYOUT)) not in named:
                    path.unlink()


class _Groups:
    """Groups of event files: files with events of the same run are in one group."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}
        self.waiting: set[str] = set()
        """Members of groups that must wait: their runs go on, or their files may change."""

    def top(self, member: str) -> str:
        """Return the member that stands for the group of ``member``."""
        while (above := self._above.setdefault(member, member)) != member:
            member = above
        return member

    def join(self, one: str, other: str) -> None:
        """Make the groups of two members one group."""
        self._above[self.top(one)] = self.top(other)

    def ready(self, members: Iterable[str]) -> list[list[str]]:
        """Return the members by group, without groups that must wait."""
        tops = {self.top(each) for each in self.waiting}
        found: dict[str, list[str]] = {}
        for each in members:
            if (top := self.top(each)) not in tops:
                found.setdefault(top, []).append(each)
        return list(found.values())


def _slices(root: Path, until: float, now: float) -> Iterator[list[str]]:
    """Yield event files whose runs have all ended, some megabytes at a time.

    All events of a run are in one slice. Files that have changed since ``until`` wait, and so do
    all files of a writer of which one cannot be read: it may have the end of a run.
    """
    groups, sizes = _Groups(), dict[str, int]()
    ends: dict[str, float] = {}
    for name in event_files(root):
        with contextlib.suppress(FileNotFoundError):
            sizes[name] = (root / LAYOUT / name).stat().st_size
            _add(root, name, groups, ends, until)
    groups.waiting |= {run for run, at in ends.items() if now - ABANDONED_S <= at < math.inf}
    groups.waiting |= {each for each in sizes if _writer(each) in groups.waiting}
    files: list[str] = []
    for group in groups.ready(sizes):
        files += group
        if sum(sizes[each] for each in files) >= SLICE_BYTES:
            yield files
            files = []
    if files:
        yield files


def _add(root: Path, name: str, groups: _Groups, ends: dict[str, float], until: float) -> None:
    """Add a file to the group of its runs; note when these had their last event."""
    path = root / LAYOUT / name
    if path.stat().st_mtime > until:
        groups.waiting.add(name)
    try:
        events = [each for each in read_file(path) if each.run]
    except FileNotFoundError:
        raise
    except OSError:
        groups.waiting.add(_writer(name))
        events = []
    for event in events:
        run = f"run {event.run}"
        groups.join(name, run)
        at = math.inf if isinstance(event, RunFinished) else event.at
        ends[run] = max(ends.get(run, 0.0), at)


def _writer(name: str) -> str:
    return f"writer {Path(name).name.rpartition('-')[0]}"


def _fold(root: Path, files: Sequence[str]) -> Compacted:
    """Replace event files by Parquet; do nothing if another process has done it."""
    before = snapshot(root)
    events: dict[str, list[Event]] = {}
    damaged: dict[str, list[str]] = {}
    for name in files:
        for event in read_file(root / LAYOUT / name):
            if is_damage(event):
                damaged.setdefault(name, []).append(event.text)
            elif event.run:
                events.setdefault(event.run, []).append(event)
    parts: list[TableFile] = []
    try:
        parts.extend(_written(root, before, events.values()))
        folded = (before.folded | set(files)).intersection(event_files(root))
        fresh = before.folded.isdisjoint(files)
        done = fresh and commit(root, before.next(parts, folded=folded))
    except BaseException:
        _remove(root, [each.path for each in parts])
        raise
    if not done:
        _remove(root, [each.path for each in parts])
        return Compacted()
    for name in damaged:
        _set_aside(root, name)
    _remove(root, files)
    texts = tuple(text for each in damaged.values() for text in each)
    return Compacted(len(events), len(files), 0, texts)


def _set_aside(root: Path, name: str) -> None:
    """Move a file with damaged lines to a folder of its own, where it is not read again."""
    final = root / LAYOUT / ASIDE / Path(name).name
    make_folders(final.parent)
    with contextlib.suppress(FileNotFoundError):
        (root / LAYOUT / name).replace(final)


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
    """Return the day on which a run ended; of a killed one, that of its last event."""
    ends = [each.at for each in events if isinstance(each, RunFinished)]
    at = max(ends or [each.at for each in events])
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
        merged = pa.concat_tables(tables_of_day, promote_options="default")  # of several versions
    except (OSError, pa.ArrowException):
        return  # a damaged file stays as it is; who reads it is told
    _replace(root, kind, day, parts, merged)


def _replace(root: Path, kind: str, day: str, parts: Sequence[TableFile], rows: pa.Table) -> None:
    """Replace files of one kind by one file with ``rows``, unless another process was faster."""
    made = _write(root, kind, day, rows)
    before = snapshot(root)
    if before.has(parts) and commit(root, before.next([made], parts, before.folded)):
        _leave(root, parts)
    else:
        _remove(root, [made.path])


def _leave(root: Path, parts: Iterable[TableFile]) -> None:
    """Note when files left the store: whoever has opened it may read them for another day."""
    for each in parts:
        with contextlib.suppress(OSError):
            os.utime(root / LAYOUT / each.path)


def read_part(root: Path, part: TableFile) -> pa.Table:
    """Return a Parquet file's rows. Raise OSError or ArrowException if the file is damaged."""
    path = root / LAYOUT / part.path
    return pq.ParquetFile(path, page_checksum_verification=True).read()


def _expire(root: Path, now: float, retain_days: int) -> int:
    """Remove days that ended over ``retain_days`` days ago, and plans that no run has any more."""
    before = snapshot(root)
    first = dt.datetime.fromtimestamp(now - retain_days * DAY_S, dt.UTC).date().isoformat()
    old = [each for each in before.parts if each.day < first and each.kind not in TIMELESS]
    if not old or not commit(root, before.next((), old, before.folded)):
        return 0
    _remove(root, [each.path for each in old])
    _expire_plans(root)
    return len(old)


def _expire_plans(root: Path) -> None:
    """Rewrite the tables of plans without those that no run in Parquet has."""
    found = snapshot(root)
    try:
        plans = [read_part(root, each).column("plan") for each in found.of("runs")]
        used = pa.concat_arrays([pa.array([], pa.string()), *(c for p in plans for c in p.chunks)])
        for kind in TIMELESS:
            parts = found.of(kind)
            rows = [read_part(root, each) for each in parts]
            if rows:
                whole = pa.concat_tables(rows, promote_options="default")
                _replace(root, kind, "", parts, whole.filter(pc.is_in(whole["plan"], used)))
    except (OSError, pa.ArrowException):
        return  # a run whose plan is not known may have any of them


def _remove(root: Path, names: Iterable[str]) -> None:
    for name in names:
        (root / LAYOUT / name).unlink(missing_ok=True)


def undamaged(root: Path, found: Snapshot) -> tuple[Snapshot, list[str]]:
    """Return the snapshot without damaged files, and a text on each of these."""
    good, wrong = [], []
    for part in found.parts:
        try:
            read_part(root, part)
            good.append(part)
        except (OSError, pa.ArrowException) as error:
            wrong.append(f"{part.path}: {error}")
    return Snapshot(found.number, tuple(good), found.folded), wrong
