"""This file appends events to the telemetry store, without ever hurting the run that tells them.

The store is a folder of immutable files, ``v1/day=YYYY-MM-DD/<writer>-<seq>.jsonl``, one event a
line. A file is written in ``v1/tmp``, synced and renamed, so a reader sees a whole file or
none; every writer has names of its own, so writers need no lock, on one machine or on many.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dml.events import Event, Progress, RunFinished, Warned, to_json
from dml.ownership import FILE, make_folders
from dml.settings import user_folder

LAYOUT: Final = "v1"
UNFINISHED: Final = "tmp"
QUEUE_EVENTS: Final = 4096
INTERVAL_S: Final = 30.0
PATIENCE_S: Final = 2.0
ORPHAN_S: Final = 86_400.0
"""A temporary file older than this has lost its writer; generous, since clocks differ."""

Warn = Callable[[str], None]
Learn = Callable[[Sequence[Event], bool], None]

_log = logging.getLogger("dml.fleet")


def telemetry_root(setting: str | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Folder of the store for ``Settings.telemetry_dir``; None when telemetry is off.

    None means ``telemetry`` in the user's folder of dml; "" and "off" mean off.
    """
    if setting is None:
        own = user_folder(environ)
        return None if own is None else Path(own, "telemetry")
    if setting.lower() in {"", "off"}:
        return None
    try:
        return Path(setting).expanduser()
    except RuntimeError:  # a user without a home folder has nowhere to keep anything
        return None


def publish(root: Path, name: str, events: Iterable[Event], at: float) -> Path:
    """Write one immutable file of events, whole or not at all; returns its path.

    ``name`` is the writer's own, never used before; ``at`` (seconds since 1970) picks the day.
    Raises OSError as the file system does, and leaves no temporary file behind then.
    """
    day = dt.datetime.fromtimestamp(at, dt.UTC).date()
    final = root / LAYOUT / f"day={day.isoformat()}" / f"{name}.jsonl"
    temporary = root / LAYOUT / UNFINISHED / final.name
    make_folders(final.parent)
    make_folders(temporary.parent)
    try:
        temporary.touch(FILE)
        with temporary.open("w", encoding="ascii", newline="\n") as file:
            file.writelines(f"{to_json(event)}\n" for event in events)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(final.parent)
    return final


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut; a file system that cannot is left as it is."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sweep(root: Path, now: float, orphan_s: float = ORPHAN_S) -> int:
    """Remove temporary files whose writers died more than ``orphan_s`` ago; returns how many."""
    removed = 0
    for path in (root / LAYOUT / UNFINISHED).glob("*.jsonl"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > orphan_s:
                path.unlink()
                removed += 1
    return removed


def _log_warning(text: str) -> None:
    _log.warning(text)


class Collector:
    """Takes events from any thread and publishes them from a thread of its own.

    ``record`` never blocks and never raises. When the store is down, slow or full, events are
    dropped and counted, ``warn`` is called once, and the run goes on. A file is published when a
    run finishes, on ``flush``, and every ``interval_s``.

    Parameters
    ----------
    root : folder of the store; made on first use
    writer : name unique among all writers of the store; made when not given
    clock : seconds since 1970
    limit : events held at most
    warn : told about the first trouble, in one sentence
    learn : given what was published, by the publishing thread, and whether it is closing
    """

    def __init__(
        self,
        root: Path,
        *,
        writer: str | None = None,
        clock: Callable[[], float] = time.time,
        limit: int = QUEUE_EVENTS,
        interval_s: float = INTERVAL_S,
        warn: Warn = _log_warning,
        learn: Learn | None = None,
    ) -> None:
        self._learn = learn
        self.root, self.writer = root, writer or uuid.uuid4().hex
        self.dropped = self.published = self._told_dropped = 0
        self._clock, self._limit, self._interval_s, self._warn = clock, limit, interval_s, warn
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = self._served = 0
        self._closed = self._closing = self._warned = self._busy = False
        self._pid = os.getpid()

    def record(self, event: Event) -> None:
        """Hand over one event; drops it (Progress first) when the store cannot keep up."""
        if os.getpid() != self._pid:
            return  # a forked child has the queue and no thread: it cannot speak for its parent
        room = self._limit // 2 if isinstance(event, Progress) else self._limit
        with self._changed:
            if self._closed or len(self._events) >= room:
                self.dropped += 1
                return
            self._events.append(event)
            self._asked += isinstance(event, RunFinished)
            self._start()
            if self._due():
                self._changed.notify_all()

    def flush(self, patience_s: float = PATIENCE_S) -> bool:
        """Publish what was recorded until now; False when ``patience_s`` did not suffice."""
        if self._thread is None or os.getpid() != self._pid:
            return True
        with self._changed:
            if not (self._events or self._busy) and self._served == self._asked:
                return True
            self._asked += 1
            ticket = self._asked
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._served >= ticket, patience_s)

    def close(self, patience_s: float = PATIENCE_S) -> bool:
        """Publish the rest and stop; False when ``patience_s`` did not suffice."""
        self._closing = True
        done = self.flush(patience_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        atexit.unregister(self.close)
        return done

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: a hung disk must not keep the process from ending.
            thread = threading.Thread(target=self._work, name="dml-telemetry", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: the next event tries again
                thread.start()
                self._thread = thread
                atexit.register(self.close)

    def _work(self) -> None:
        """Publish whenever asked or due, until closed."""
        self._guard(lambda: sweep(self.root, self._clock()))
        sequence = 0
        while self._events or not self._closed:
            with self._changed:
                self._changed.wait_for(self._due, self._interval_s)
                ticket, batch = self._asked, list(self._events)
                self._events.clear()
                self._busy = True
            if batch:
                self._publish(batch, f"{self.writer}-{sequence:06d}")
                sequence += 1
            self._teach(batch)
            with self._changed:
                self._served, self._busy = ticket, False
                self._changed.notify_all()

    def _teach(self, batch: list[Event]) -> None:
        learn = self._learn
        if learn is not None:
            self._guard(lambda: learn(batch, self._closing))

    def _due(self) -> bool:
        return self._closed or self._served < self._asked or len(self._events) >= self._limit // 2

    def _publish(self, batch: list[Event], name: str) -> None:
        at, told = self._clock(), []
        if self.dropped > self._told_dropped:
            text = f"{self.dropped} events were dropped"
            told = [Warned(run=batch[-1].run, at=at, name="TelemetryDropped", text=text)]
        if self._guard(lambda: publish(self.root, name, [*batch, *told], at)):
            self.published += len(batch)
            self._told_dropped = self.dropped
        else:
            self.dropped += len(batch)

    def _guard(self, work: Callable[[], object]) -> bool:
        """Do work that a disk or an odd event may fail; say so once, and go on."""
        try:
            work()
        except (OSError, ValueError, TypeError, RecursionError) as error:
            if not self._warned:
                self._warned = True
                self._warn(f"telemetry of this run is incomplete: {self.root}: {error}")
            return False
        return True
