"""Test the served page: who is answered, what goes on, and that names are text."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dml.events import Event, OperatorTotals, RunFinished, RunStarted, Waits
from dml.fleet.collector import publish
from dml.fleet.page_server import PageServer, live_runs

NOW = time.time()


def run(name: str, began: float, told: float, *, ended: bool = False) -> list[Event]:
    events: list[Event] = [
        RunStarted(run=name, at=began, job="j", host="h"),
        OperatorTotals(run=name, at=told, ordinal=0, operator="Range", worker="a", rows_out=60,
                       seconds=2.0),
        OperatorTotals(run=name, at=told, ordinal=0, operator="Range", worker="b", rows_out=40,
                       seconds=1.0, cache_hits=3),
        OperatorTotals(run=name, at=told, ordinal=1, operator="Batch", rows_out=100, seconds=1.0),
        Waits(run=name, at=told, consumer_s=0.25 * (told - began)),
    ]  # fmt: skip
    return [*events, RunFinished(run=name, at=told, rows=100)] if ended else events


def test_runs_go_on_until_they_end_or_say_nothing_any_more(tmp_path: Path) -> None:
    publish(tmp_path, "w-0", run("fresh", NOW - 50, NOW - 10), NOW)
    publish(tmp_path, "w-1", run("killed", NOW - 3000, NOW - 2000), NOW)
    publish(tmp_path, "w-2", run("over", NOW - 30, NOW - 5, ended=True), NOW)
    publish(tmp_path, "w-3", [RunStarted(run="young", at=NOW - 1, job="j")], NOW)
    young, fresh, killed = live_runs(tmp_path, NOW)
    assert [young["run"], fresh["run"], killed["run"]] == ["young", "fresh", "killed"]
    assert [each["state"] for each in (young, fresh, killed)] == ["running", "running", "silent"]
    assert fresh["waited"] == pytest.approx(0.25)
    assert (fresh["rows"], young["rows"]) == (100, 0)
    (first, last) = fresh["operators"]
    assert (first["operator"], first["rows_out"], first["seconds"], first["cache_hits"]) == (
        "Range", 100, 3.0, 3,
    )  # fmt: skip
    assert last["rows_per_s"] == 100.0  # in one second of work
    assert live_runs(tmp_path / "none", NOW) == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[PageServer]:
    pytest.importorskip("duckdb")
    publish(tmp_path, "w-0", run("<b>fresh", NOW - 50, NOW - 10), NOW)
    yield from _serving(PageServer(tmp_path, "127.0.0.1", 0))


@pytest.fixture
def public(tmp_path: Path) -> Iterator[PageServer]:
    publish(tmp_path, "w-0", run("fresh", NOW - 50, NOW - 10), NOW)
    yield from _serving(PageServer(tmp_path, "0.0.0.0", 0))


def _serving(server: PageServer) -> Iterator[PageServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def asked(server: PageServer, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    link.request("GET", path, headers={"Host": f"{host}:{server.server_address[1]}"})
    answer = link.getresponse()
    found = answer.status, answer.read().decode()
    link.close()
    return found


def test_this_machine_is_answered_and_other_names_are_not(served: PageServer) -> None:
    status, body = asked(served, f"/live?token={served.token}")
    assert (status, [each["run"] for each in json.loads(body)]) == (200, ["<b>fresh"])
    token = f"?token={served.token}"
    assert asked(served, f"/live{token}", "localhost")[0] == 200
    assert asked(served, "/live")[0] == 403  # another user of the machine
    assert asked(served, f"/live{token}", "evil.example")[0] == 403
    assert asked(served, f"/../v1{token}")[0] == 404
    assert asked(served, "http://[/")[0] == 400
    assert served.url == f"http://127.0.0.1:{served.server_address[1]}/{token}"


def test_the_page_is_served_and_made_once(served: PageServer) -> None:
    pytest.importorskip("bokeh")
    status, body = asked(served, f"/?token={served.token}")
    assert status == 200
    assert "<div id=live>" in body
    assert "connect-src 'self'" in body
    assert "<b>fresh" not in body
    assert served.page() is served.page()


def test_who_has_no_token_is_not_answered_from_outside(public: PageServer) -> None:
    assert len(public.token) > 16
    assert asked(public, "/live")[0] == 403
    assert asked(public, "/live?token=wrong")[0] == 403
    assert asked(public, "/live?token=%C3%A4")[0] == 403
    assert asked(public, f"/live?token={public.token}", "example.org")[0] == 200
    assert public.url.endswith(f"?token={public.token}")
