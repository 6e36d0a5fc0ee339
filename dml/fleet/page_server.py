"""Serve the page about recorded runs to browsers, with the runs that go on now.

The server is open on this machine only, unless the user names a host; each request needs the token
that is part of the address. It reads the telemetry folder and nothing else.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from dml.events import Event, RunFinished, RunStarted
from dml.fleet.answer_handler import AnswerHandler
from dml.fleet.collector import LAYOUT
from dml.fleet.fleet import open_fleet
from dml.fleet.reader import is_damage, latest, read_file
from dml.fleet.report import run_table
from dml.fleet.snapshot import event_files

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 (what a user may ask for)
RECENT_S: Final = 6 * 3600.0
"""Event files that were written earlier are not read for the runs that go on."""
SILENT_S, SILENT_PART = 90.0, 0.25
"""A run that goes on writes events after at most 30 s, later after a tenth of its time."""
SHOWN: Final = ("operator", "rows_out", "rows_per_s", "seconds", "cache_hits", "cache_misses")
"""What is shown of an operator of a run that goes on."""
FRESH_S: Final = 30.0
"""The page is made again after so many seconds."""
SCRIPT: Final = """
const known = x => x >= 100 ? Math.round(x).toLocaleString('en') : x.toPrecision(3);
const number = x => x == null ? '-' : known(x);
const cell = (row, text, right) => {
  const made = row.insertCell();
  made.textContent = text;
  made.style.cssText = `white-space:pre;padding:.2em .8em;text-align:${right ? 'right' : 'left'}`;
};
const operator = (table, each, most) => {
  const row = table.insertRow(), blocks = each.cache_hits + each.cache_misses;
  cell(row, each.operator);
  cell(row, `${number(each.rows_out)} rows`, true);
  cell(row, `${number(each.rows_per_s)} rows/s`, true);
  cell(row, `${number(each.seconds)} s`, true);
  cell(row, blocks ? `${number(100 * each.cache_hits / blocks)} % cached` : '');
  const bar = document.createElement('div'), width = Math.round(240 * each.seconds / most);
  bar.style.cssText = `height:.8em;background:#3b82f6;width:${width}px`;
  row.insertCell().append(bar);
};
const draw = runs => {
  const place = document.getElementById('live');
  place.replaceChildren(runs.length ? '' : 'No run has recorded figures; they come after 30 s.');
  for (const run of runs) {
    const title = document.createElement('p'), table = document.createElement('table');
    const waited = `the training loop waited ${number(100 * run.waited)} % of the time`;
    title.textContent = `${run.run.slice(0, 12)} on ${run.host}: ${run.state} for ` +
      `${number(run.seconds)} s, ${number(run.rows)} rows; ${waited}`;
    place.append(title, table);
    const most = Math.max(...run.operators.map(each => each.seconds), 1e-9);
    for (const each of run.operators) operator(table, each, most);
  }
};
const look = async () => {
  try {
    draw(await (await fetch('live' + location.search)).json());
  } catch (error) {
    console.log(error);
  }
  setTimeout(look, 2000);
};
look();
"""


def live_runs(root: Path, now: float) -> list[dict[str, Any]]:
    """Return what is known of the runs that have not ended, the latest first.

    A run whose process was killed is "silent": it records nothing any more.
    """
    by_run: dict[str, list[Event]] = {}
    for event in latest(_recent(root, now)):
        by_run.setdefault(event.run, []).append(event)
    found = [
        _live(events, now)
        for events in by_run.values()
        if isinstance(events[0], RunStarted)
        and not any(isinstance(each, RunFinished) for each in events)
    ]
    return sorted(found, key=lambda each: each["seconds"])


def _recent(root: Path, now: float) -> Iterator[Event]:
    for name in event_files(root):
        path = root / LAYOUT / name
        try:
            if path.stat().st_mtime > now - RECENT_S:
                yield from _events_of(path)
        except OSError:  # it was compacted meanwhile
            continue


@lru_cache(maxsize=4096)
def _events_of(path: Path) -> tuple[Event, ...]:
    """Return the events of a file, which never changes."""
    return tuple(each for each in read_file(path) if not is_damage(each))


def _live(events: Iterable[Event], now: float) -> dict[str, Any]:
    """Return the figures of a run, from its latest events; it has begun."""
    kept = [*events]
    started = next(each for each in kept if isinstance(each, RunStarted))
    table = run_table(kept)
    told = max(each.at for each in kept)
    seconds = max(told - started.at, 1e-9)
    silent = now - told > max(SILENT_S, SILENT_PART * seconds)
    return {
        "run": started.run, "state": "silent" if silent else "running", "host": started.host,
        "seconds": now - started.at,
        "waited": min(1.0, table.summary.get("consumer_s", 0.0) / seconds),
        "rows": table.records[-1]["rows_out"] if table.records else 0,
        "operators": [{name: each[name] for name in SHOWN} for each in table.records],
    }  # fmt: skip


class PageServer(ThreadingHTTPServer):
    """Answers ``/`` with the page and ``/live`` with the runs that go on, as JSON."""

    daemon_threads = True

    def __init__(self, root: Path, host: str, port: int) -> None:
        self.root = root
        self.token, self.public = secrets.token_urlsafe(18), host not in LOOPBACK
        self._page, self._made_at, self._lock = b"", -FRESH_S, threading.Lock()
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        host, port = self.server_address[:2]
        host = socket.gethostname() if host in EVERYWHERE else host
        return f"http://{host!s}:{port}/?token={self.token}"

    def page(self) -> bytes:
        """Return the page, at most ``FRESH_S`` old."""
        with self._lock:
            if time.monotonic() - self._made_at > FRESH_S:
                live = f"<h2>Now</h2><div id=live></div><script>{SCRIPT}</script>"
                self._page = open_fleet(self.root).page(live).encode()
                self._made_at = time.monotonic()
            return self._page

    def admits(self, query: Mapping[str, list[str]], host: str) -> bool:
        """Return True for a request with the token; on this machine alone, to a name of it.

        Other users of the machine have no token. Another site's script may send requests here
        under a name of its own: their ``host`` is it.
        """
        given = query.get("token", [""])[0]
        known = hmac.compare_digest(given.encode(), self.token.encode())
        return known and (self.public or urlsplit(f"//{host}").hostname in LOOPBACK)


class _Handler(AnswerHandler):
    server: PageServer

    def do_GET(self) -> None:  # noqa: N802 (the name of http.server)
        """Answer one request."""
        try:
            asked = urlsplit(self.path)
            admitted = self.server.admits(parse_qs(asked.query), self.headers.get("Host", ""))
        except ValueError:
            self.answer(400, b"the request is malformed\n", "text/plain")
            return
        if not admitted:
            self.answer(403, b"the address has a token, which is missing or wrong\n", "text/plain")
        elif asked.path == "/":
            self.answer(200, self.server.page(), "text/html; charset=utf-8")
        elif asked.path == "/live":
            runs = json.dumps(live_runs(self.server.root, time.time()))
            self.answer(200, runs.encode(), "application/json")
        else:
            self.answer(404, b"the page is at /\n", "text/plain")
