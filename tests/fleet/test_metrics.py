"""Test the figures that Prometheus reads: their format and values; each run counts once."""

from __future__ import annotations

import gc
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import dml
from dml import col
from dml.errors import PlanError, UDFError
from dml.fleet import metrics

LINE = re.compile(r'^(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)$')


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = free.getsockname()[1]
    yield found
    metrics._SERVED.pop(found, None)


def read(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[tuple[str, str], float]:
    """Values by metric and labels, of which ``pipeline`` is left out; no sample occurs twice."""
    found: dict[tuple[str, str], float] = {}
    seen = set()
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = LINE.match(line)
        assert match is not None, line
        assert match[0].rpartition(" ")[0] not in seen
        seen.add(match[0].rpartition(" ")[0])
        labels = ",".join(e for e in match[2].split(",") if e and not e.startswith("pipeline="))
        found[match[1], labels] = found.get((match[1], labels), 0.0) + float(match[3])
    return found


def pipeline(port: int) -> dml.Dataset:
    ds = dml.range(1_000).filter(col("id") > 9).batch(8)
    return ds.with_options(metrics_port=port, telemetry_dir="off", executor="sync")


def test_running_and_ended_runs_count_once_each(port: int) -> None:
    ds = pipeline(port)
    rows = iter(ds)
    next(rows)
    live = samples(read(port))
    assert live["dml_runs_active", ""] == 1
    assert live["dml_batches_total", ""] >= 1
    assert ("dml_runs_total", 'status="finished"') not in live
    assert len(list(rows)) == 123
    assert len(list(ds)) == 124
    ended = samples(read(port))
    assert ("dml_runs_active", "") not in ended
    assert ended["dml_runs_total", 'status="finished"'] == 2
    assert ended["dml_rows_total", ""] == 2 * 990
    assert ended["dml_batches_total", ""] == 2 * 124
    batches = {
        value for (name, labels), value in ended.items()
        if name == "dml_operator_rows_total" and 'operator="Batch"' in labels
    }  # fmt: skip
    assert batches == {2 * 990}
    assert {name for name, _ in live} <= metrics.KINDS.keys()
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", read(port), re.MULTILINE)
    assert dict(kinds) == {name: kind for name, (kind, _) in metrics.KINDS.items()}


def test_scrapes_while_runs_end_lose_and_double_nothing(port: int) -> None:
    ds, wrong, stop = pipeline(port), list[tuple[float, float]](), threading.Event()
    list(ds)

    def scrape() -> None:
        last = 0.0
        while not stop.is_set():
            rows = samples(read(port)).get(("dml_rows_total", ""), 0.0)
            if rows < last:
                wrong.append((last, rows))
            last = rows

    thread = threading.Thread(target=scrape)
    thread.start()
    for _ in range(20):
        list(ds)
    stop.set()
    thread.join()
    assert wrong == []
    assert samples(read(port))["dml_rows_total", ""] == 21 * 990


def test_a_port_in_use_is_one_warning_and_other_paths_are_not_found(port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        ds = pipeline(port)
        assert [len(list(ds)) for _ in range(2)] == [124, 124]
        assert ds.stats().warnings == ()
    list(pipeline(port))  # the port is free now
    with pytest.raises(urllib.error.HTTPError, match="404"):
        read(port, "/secrets")


def test_a_failed_run_is_counted_and_names_cannot_break_a_line(port: int) -> None:
    ds = dml.range(9).map(lambda row: {"x": 1 // (row["id"] - 3)})
    with pytest.raises(UDFError):
        list(ds.with_options(metrics_port=port, telemetry_dir="off"))
    assert samples(read(port))["dml_runs_total", 'status="failed"'] == 1
    assert metrics._escaped('a"\n\\') == 'a\\"\\n\\\\'


@pytest.mark.parametrize("wrong", [0, -1, 1 << 16, True, "9464", 1.5])
def test_a_wrong_port_is_an_error(wrong: object) -> None:
    with pytest.raises(PlanError, match="metrics_port"):
        dml.range(3).with_options(metrics_port=wrong)


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    path = Path(__file__).parents[2] / "examples" / "grafana_dashboard.json"
    board = json.loads(path.read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"dml_\w+", target["expr"])
    }
    assert asked <= metrics.KINDS.keys()
    assert len(asked) > 10


def test_iterators_that_are_collected_at_any_time_stop_no_scrape(port: int) -> None:
    ds, stop = pipeline(port).take(3), threading.Event()
    list(ds)
    made = list[int]()

    def scrape() -> None:
        while not stop.is_set():
            made.append(len(read(port)))

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    threshold = gc.get_threshold()
    gc.set_threshold(50)
    try:
        for _ in range(150):
            rows = iter(ds)
            next(rows)
            cycle: list[object] = [rows]
            cycle.append(cycle)
            del rows, cycle
    finally:
        gc.set_threshold(*threshold)
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert made
