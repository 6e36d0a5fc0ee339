"""Serve figures of this process's runs to Prometheus, with ``with_options(metrics_port=9464)``.

``http://127.0.0.1:<port>/metrics`` has counters of all runs of the process that asked for it, ended
or not, in the text format of Prometheus. Labels are kinds of operators and fingerprints: no text of
a user is among them.

Source: Prometheus, exposition formats, text format 0.0.4.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Final, Protocol

from dml.events import Event, OperatorTotals, RunFinished, RunStarted, Waits, unsaid
from dml.fleet.answer_handler import AnswerHandler

LOOPBACK: Final = "127.0.0.1"
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
LETTERS: Final = 12
"""Letters of a fingerprint in a label."""
KINDS: Final = {
    "dml_runs_total": ("counter", "Runs that ended, by status."),
    "dml_runs_active": ("gauge", "Runs that go on."),
    "dml_rows_total": ("counter", "Rows that were delivered."),
    "dml_batches_total": ("counter", "Batches that were delivered."),
    "dml_bytes_total": ("counter", "Bytes that were delivered."),
    "dml_read_bytes_total": ("counter", "Bytes that were read from sources."),
    "dml_run_seconds_total": ("counter", "Seconds since the starts of runs, until their ends."),
    "dml_wait_seconds_total": ("counter", "Seconds in which training loops waited for rows."),
    "dml_memory_peak_bytes": ("gauge", "Most bytes of rows that a run held at once."),
    "dml_operator_rows_total": ("counter", "Rows that operators returned."),
    "dml_operator_bytes_total": ("counter", "Bytes that operators returned."),
    "dml_operator_seconds_total": ("counter", "Seconds in operators, of all workers together."),
    "dml_operator_cpu_seconds_total": ("counter", "Processor seconds of operators."),
    "dml_operator_skipped_rows_total": ("counter", "Rows that were skipped because of errors."),
    "dml_cache_hits_total": ("counter", "Blocks that were read from caches."),
    "dml_cache_misses_total": ("counter", "Blocks that caches did not have."),
}
HIGHEST: Final = "dml_memory_peak_bytes"
"""The metric whose value is that of the run with the highest one, not a sum."""

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


class LiveRun(Protocol):
    """A run of this process: its events so far, who hears the final ones, and its warnings."""

    listeners: list[Callable[[Event], None]]

    def so_far(self) -> list[Event]:
        """Return the events of the run, finished or not."""

    def warn(self, name: str, text: str) -> None:
        """Record a warning, and log it."""


class Metrics:
    """The figures of the runs that are watched; each run counts once, also after its end."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a collected iterator ends its run in any thread
        self._live: weakref.WeakSet[LiveRun] = weakref.WeakSet()
        self._ended: dict[tuple[str, Labels], float] = {}

    def watch(self, run: LiveRun) -> None:
        """Count ``run``: what it did so far while it goes on, and its final figures afterwards."""
        with self._lock:
            self._live.add(run)
        run.listeners.append(partial(self._hear, weakref.ref(run)))

    def _hear(self, named: weakref.ref[LiveRun], event: Event) -> None:
        run = named()
        if run is not None and isinstance(event, RunFinished):  # the last event of a run
            samples = [*samples_of(run.so_far())]
            with self._lock:
                self._live.discard(run)
                _add(self._ended, samples)

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        with self._lock:
            sums = dict(self._ended)
            for run in list(self._live):
                _add(sums, samples_of(run.so_far()))
        lines = defaultdict[str, list[str]](list)
        for (name, labels), value in sums.items():
            said = ",".join(f'{label}="{_escaped(each)}"' for label, each in labels)
            lines[name].append(f"{name}{{{said}}} {value:.15g}")
        return "".join(
            f"# HELP {name} {said}\n# TYPE {name} {kind}\n" + "".join(f"{e}\n" for e in lines[name])
            for name, (kind, said) in KINDS.items()
        )


def _add(sums: dict[tuple[str, Labels], float], samples: Iterable[Sample]) -> None:
    for name, labels, value in samples:
        known = sums.get((name, labels), 0.0)
        sums[name, labels] = max(known, value) if name == HIGHEST else known + value


def samples_of(events: Iterable[Event]) -> Iterator[Sample]:
    """Yield the samples of one run."""
    pipeline: Labels = (("pipeline", ""),)
    for event in map(unsaid, events):
        match event:
            case RunStarted():
                name = event.fingerprints.get("fleet", "")[:LETTERS]
                pipeline = (("pipeline", name),)
            case Waits():
                yield "dml_wait_seconds_total", pipeline, event.consumer_s
            case OperatorTotals():
                yield from _of_operator(event, pipeline)
            case RunFinished():
                yield from _of_run(event, pipeline)


def _of_run(event: RunFinished, pipeline: Labels) -> Iterator[Sample]:
    if event.status == "running":
        yield "dml_runs_active", pipeline, 1
    else:
        yield "dml_runs_total", (*pipeline, ("status", event.status)), 1
    yield "dml_rows_total", pipeline, event.rows
    yield "dml_batches_total", pipeline, event.batches
    yield "dml_bytes_total", pipeline, event.bytes
    yield "dml_read_bytes_total", pipeline, event.bytes_read or 0
    yield "dml_run_seconds_total", pipeline, event.seconds
    yield HIGHEST, pipeline, event.peak_bytes or 0


def _of_operator(event: OperatorTotals, pipeline: Labels) -> Iterator[Sample]:
    labels = (*pipeline, ("operator", event.operator), ("ordinal", str(event.ordinal)))
    yield "dml_operator_rows_total", labels, event.rows_out
    yield "dml_operator_bytes_total", labels, event.bytes_out
    yield "dml_operator_seconds_total", labels, event.seconds
    yield "dml_operator_cpu_seconds_total", labels, event.cpu_s or 0.0
    if event.skipped:
        yield "dml_operator_skipped_rows_total", labels, event.skipped
    if event.cache_hits or event.cache_misses:
        yield "dml_cache_hits_total", labels, event.cache_hits
        yield "dml_cache_misses_total", labels, event.cache_misses


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ---------------------------------------------------------------------------------------- server

_SERVED: dict[int, tuple[Metrics, ThreadingHTTPServer]] = {}
_REFUSED: set[int] = set()
_STARTING: Final = threading.RLock()


def serve(run: LiveRun, port: int) -> None:
    """Count ``run`` among the metrics of ``port``, which is opened by the first such run.

    If the port is in use, warn once; runs go on without metrics until it is free.
    """
    with _STARTING:
        if port not in _SERVED:
            try:
                _SERVED[port] = _started(port)
            except OSError as error:
                if port not in _REFUSED:
                    run.warn("MetricsUnavailable", f"no metrics on port {port}: {error}")
                _REFUSED.add(port)
                return
    _SERVED[port][0].watch(run)


def _forked() -> None:
    """Close the sockets in a forked child, whose runs open ports of their own."""
    for _, server in _SERVED.values():
        server.socket.close()
    _SERVED.clear()


os.register_at_fork(after_in_child=_forked)


def _started(port: int) -> tuple[Metrics, ThreadingHTTPServer]:
    """Open the port in a thread that ends with the process; return what it serves."""
    metrics = Metrics()

    class Handler(AnswerHandler):
        def do_GET(self) -> None:  # noqa: N802 (the name of http.server)
            if self.path.partition("?")[0] in ("/metrics", "/"):
                self.answer(200, metrics.text().encode(), TEXT)
            else:
                self.answer(404, b"metrics are at /metrics\n", TEXT)

    server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="dml-metrics", daemon=True).start()
    return metrics, server
