"""A run is written as a timeline that ui.perfetto.dev and chrome://tracing show.

One line of a timeline is one of the slices that ran at the same time, and one is the training loop.
The file is valid while it grows, so a killed run leaves one, too. Stages are named by their
operators and functions; no value of a row, literal or path is written.

Source: Chrome's Trace Event Format, complete events (``X``) and metadata (``M``).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from dml.base.ownership import make_folders, own_file
from dml.errors import PlanError, worded
from dml.events import Event, RunFinished
from dml.exec.delivery.prefetch import ElementChunk, Received
from dml.exec.scheduler.messages import Run
from dml.exec.tasks.job import Job
from dml.exec.tasks.slices import Failure, Outcome

if TYPE_CHECKING:
    from dml.exec.delivery.account import Account
    from dml.exec.streams.stream import Streaming

LOOP: Final = 0
"""The line of the training loop; those of slices follow."""
FLUSH_S: Final = 1.0
"""Seconds after which what was written is on disk, so that a killed run leaves it."""
SHORT_S: Final = 1e-4
"""A shorter wait of the training loop is not written."""


class RunTrace:
    """Writes one run's slices and waits as they end. Any thread may call the methods."""

    def __init__(self, folder: Path, run: str, warn: Callable[[str, str], None]) -> None:
        self.path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{run[:12]}.json"
        self._warn, self._lock = warn, threading.RLock()  # as in ``Account``
        self._began = time.perf_counter()
        self._start, self._flushed = "[\n", 0.0
        self._free_at = list[float]()  # when the last slice of each line ended
        try:
            make_folders(folder)
            self._file: TextIO | None = open(  # noqa: SIM115 (closed by the run's last event)
                self.path, "w", encoding="ascii", opener=own_file
            )
        except OSError as error:
            raise PlanError(
                "the trace of the run cannot be written",
                at=str(self.path),
                why=worded(error),
                try_="another trace_dir=",
            ) from None
        self._write({"name": "process_name", "ph": "M", "args": {"name": f"dml run {run[:12]}"}})
        self._write(_line_named(LOOP, "training loop"))

    def slice(self, job: Job, run: Run, result: Outcome | Failure | None, seconds: float) -> None:
        """Write a slice that ended just now."""
        ended = time.perf_counter()
        facts: dict[str, Any] = {"unit": run.seq[0], "slice": run.k}
        if isinstance(result, Outcome):
            facts |= {"rows": result.rows, "bytes": result.held_bytes, "cpu_s": result.cpu_s}
        elif result is not None:
            facts["error"] = type(result.error).__name__
        with self._lock:
            line = self._line(ended - seconds, ended)
            self._event(job.titles[run.stage], line, ended - seconds, seconds, facts)

    def waited(self, seconds: float, rows: int) -> None:
        """Write a wait of the training loop, which ended just now with ``rows`` rows."""
        if seconds >= SHORT_S:
            began = time.perf_counter() - seconds
            with self._lock:
                self._event("waits for rows", LOOP, began, seconds, {"rows": rows})

    def hear(self, event: Event) -> None:
        """Close the file after the last event of the run."""
        if isinstance(event, RunFinished):
            with self._lock:
                if self._file is not None:
                    with contextlib.suppress(OSError):  # of a full disk: the file ends early
                        self._file.write("\n]\n")
                        self._file.close()
                    self._file = None

    def _line(self, began: float, ended: float) -> int:
        """Return the first line that was free when a slice began."""
        free = (place for place, free_at in enumerate(self._free_at) if free_at <= began)
        place = next(free, len(self._free_at))
        if place == len(self._free_at):
            self._free_at.append(0.0)
            self._write(_line_named(place + 1, f"slices {place + 1}"))
        self._free_at[place] = ended
        return place + 1

    def _event(
        self, name: str, line: int, began: float, seconds: float, facts: dict[str, Any]
    ) -> None:
        at = max(0.0, began - self._began)
        times = {"ts": round(at * 1e6, 3), "dur": round(seconds * 1e6, 3)}
        self._write({"name": name, "ph": "X", "tid": line, **times, "args": facts})

    def _write(self, event: dict[str, Any]) -> None:
        """Write an event; if that fails, warn, and write no more."""
        if self._file is None:
            return
        start, self._start = self._start, ",\n"
        try:
            self._file.write(start + json.dumps({"pid": 1, **event}, separators=(",", ":")))
            if time.perf_counter() - self._flushed > FLUSH_S:
                self._file.flush()
                self._flushed = time.perf_counter()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
            self._warn("TraceStopped", f"the trace {self.path} ends here: {error}")


def _line_named(line: int, name: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "tid": line, "args": {"name": name}}


class TracedReceived(Received):
    """Counts as ``Received`` does, and writes each wait to a trace."""

    __slots__ = ("_trace",)

    def __init__(self, trace: RunTrace) -> None:
        super().__init__()
        self._trace = trace

    def chunk(self, chunk: ElementChunk, ready: Any, waited_s: float) -> None:
        """Add a chunk, and write the wait for it."""
        super().chunk(chunk, ready, waited_s)
        self._trace.waited(waited_s, chunk.rows)


def traced(account: Account, streaming: Streaming, folder: str) -> None:
    """Write the run of ``account`` and ``streaming`` to a new file in ``folder``."""
    trace = RunTrace(Path(folder), account.run, account.warn)
    account.received = TracedReceived(trace)
    account.listeners.append(trace.hear)
    for each in streaming.all:
        each.listener["on_slice"] = trace.slice
