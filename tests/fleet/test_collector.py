"""Test the telemetry store: whole files or none, and no effect on the run."""

from __future__ import annotations

import datetime as dt
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dml
from dml.api import run_telemetry
from dml.events import OperatorTotals, Progress, RunFinished, RunStarted, Warned, from_json, to_json
from dml.exec.delivery import account
from dml.fleet import collector as collect
from dml.fleet.calibration import Measured, calibrated
from dml.fleet.collector import Collector, publish, sweep, telemetry_root
from dml.fleet.learning import Learner
from dml.fleet.reader import latest, read

NOON = dt.datetime(2026, 3, 4, 12, tzinfo=dt.UTC).timestamp()


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_a_file_has_its_place_by_day_and_writer(tmp_path: Path) -> None:
    path = publish(tmp_path, "w-000000", [RunStarted(run="a"), RunFinished(run="a")], NOON)
    assert path == tmp_path / "v1/day=2026-03-04/w-000000.jsonl"
    assert files(tmp_path) == [path]
    assert [from_json(line).kind for line in path.read_text().splitlines()] == [
        "RunStarted",
        "RunFinished",
    ]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        publish(tmp_path, "w-0", [RunStarted()], NOON)
    assert not files(tmp_path)


def test_a_finished_run_is_published_without_being_asked(tmp_path: Path) -> None:
    collector = Collector(tmp_path, writer="w", clock=lambda: NOON)
    collector.record(RunStarted(run="a", at=1.0))
    collector.record(RunFinished(run="a", at=2.0, rows=5))
    assert collector.flush(10)
    assert [each.kind for each in read(tmp_path)] == ["RunStarted", "RunFinished"]
    assert collector.close(10)
    collector.record(RunStarted(run="late"))
    assert (collector.published, collector.dropped) == (2, 1)


def test_what_was_recorded_before_close_is_published(tmp_path: Path) -> None:
    collector = Collector(tmp_path, clock=lambda: NOON)
    for n in range(50):
        collector.record(Warned(run="a", name=str(n)))
    assert collector.close(10)
    assert [each.name for each in read(tmp_path) if isinstance(each, Warned)] == [
        str(n) for n in range(50)
    ]


def test_a_collector_that_recorded_nothing_makes_nothing(tmp_path: Path) -> None:
    assert Collector(tmp_path / "store").close()
    assert not (tmp_path / "store").exists()


def test_a_store_that_is_down_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    told: list[str] = []
    collector = Collector(tmp_path / "file", warn=told.append)
    for n in range(3):
        collector.record(RunFinished(run=str(n)))
        assert collector.flush(10)
    collector.close(10)
    assert len(told) == 1
    assert "file" in told[0]
    assert (collector.published, collector.dropped) == (0, 3)


def test_without_threads_events_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: object) -> None:
        raise RuntimeError("can't start new thread")

    collector = Collector(tmp_path)
    with monkeypatch.context() as limits:
        limits.setattr("threading.Thread.start", failing)
        collector.record(RunStarted(run="a"))
    collector.record(RunFinished(run="a"))
    assert collector.close()
    assert collector.published == 2


def test_an_event_that_is_no_json_does_not_stop_the_collector(tmp_path: Path) -> None:
    told: list[str] = []
    collector = Collector(tmp_path, warn=told.append)
    collector.record(RunFinished(run="odd", extra={"what": object()}))
    assert collector.flush(10)
    collector.record(RunFinished(run="good"))
    assert collector.close(10)
    assert [each.run for each in read(tmp_path)][:1] == ["good"]
    assert len(told) == 1


def test_a_slow_store_never_blocks_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def slow(*_: object) -> None:
        release.wait(30)

    monkeypatch.setattr(collect, "publish", slow)
    collector = Collector(tmp_path, limit=100)
    collector.record(RunFinished(run="first"))
    begin = time.monotonic()
    for _ in range(1000):
        collector.record(Warned(run="a"))
    assert not collector.close(patience_s=0.01)
    assert time.monotonic() - begin < 1
    assert collector.dropped >= 800
    release.set()


def test_progress_is_dropped_before_what_matters(tmp_path: Path) -> None:
    told: list[str] = []
    collector = Collector(tmp_path, limit=8, warn=told.append)
    collector._start = lambda: None  # type: ignore[method-assign]
    for _ in range(8):
        collector.record(Progress(run="a"))
    for _ in range(8):
        collector.record(OperatorTotals(run="a"))
    kinds = [each.kind for each in collector._events]
    assert kinds == ["Progress"] * 4 + ["OperatorTotals"] * 4
    assert collector.dropped == 8


def test_drops_are_told_in_the_store(tmp_path: Path) -> None:
    collector = Collector(tmp_path, clock=lambda: NOON)
    collector.dropped = 3
    collector.record(RunFinished(run="a"))
    collector.close(10)
    (warned,) = [each for each in read(tmp_path) if isinstance(each, Warned)]
    assert (warned.name, warned.text, warned.run) == (
        "TelemetryDropped",
        "3 events were dropped",
        "a",
    )


def test_a_forked_child_does_not_speak_for_its_parent(tmp_path: Path) -> None:
    collector = Collector(tmp_path)
    collector._pid += 1
    collector.record(RunFinished(run="child"))
    assert collector.close()
    assert not files(tmp_path)


@pytest.mark.law
def test_the_end_of_the_process_publishes_the_rest(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from dml.fleet.collector import Collector; "
        "from dml.events import Warned; Collector(Path(sys.argv[1])).record(Warned(name='last'))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert [each.name for each in read(tmp_path) if isinstance(each, Warned)] == ["last"]


def test_writers_do_not_meet(tmp_path: Path) -> None:
    def write(name: str) -> None:
        collector = Collector(tmp_path, writer=name, clock=lambda: NOON)
        for n in range(5):
            collector.record(RunFinished(run=f"{name}{n}"))
            collector.flush(10)
        collector.close(10)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.run for each in read(tmp_path)) == [
        f"{a}{n}" for a in "abcd" for n in range(5)
    ]


def test_the_janitor_takes_only_old_orphans(tmp_path: Path) -> None:
    published = publish(tmp_path, "w-0", [RunStarted()], NOON)
    old, young = (tmp_path / "v1/tmp" / f"{name}.jsonl" for name in ("old", "young"))
    for path, age in ((old, 90_000), (young, 100), (published, 90_000)):
        path.write_text(to_json(RunStarted()) + "\n")
        os.utime(path, (NOON - age, NOON - age))
    assert sweep(tmp_path, NOON) == 1
    assert files(tmp_path) == sorted([published, young])
    assert sweep(tmp_path / "nowhere", NOON) == 0


def killed(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Do ``work`` up to the rename of its file, as a process does that is killed there."""
    with monkeypatch.context() as patched:
        for step in ("replace", "unlink"):
            patched.setattr(Path, step, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            work()


WRITERS: dict[str, Callable[[Path], object]] = {
    "events": lambda root: publish(root, "w-0", [RunStarted()], NOON),
    "costs": lambda root: Learner(root, "here", clock=lambda: NOON).keep(),
    "speed": lambda root: calibrated(root, "here", lambda: Measured(1e-8, 1e-11)),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_a_killed_writer_left_is_swept_when_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    killed(monkeypatch, lambda: WRITERS[writer](tmp_path))
    (left,) = files(tmp_path)
    os.utime(left, (NOON, NOON))
    assert sweep(tmp_path, NOON + 80_000) == 0, "its writer may live"
    assert sweep(tmp_path, NOON + 90_000) == 1
    WRITERS[writer](tmp_path)
    assert files(tmp_path)
    assert sweep(tmp_path, time.time() + 90_000) == 0, "what was finished stays"


@pytest.mark.parametrize("name", ["tmp/3-140.learned", "hosts/0a.tmp"])
def test_what_earlier_versions_left_is_swept_too(tmp_path: Path, name: str) -> None:
    left, whole = tmp_path / "v1" / name, tmp_path / "v1/hosts/here.json"
    for path in (left, whole):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        os.utime(path, (NOON, NOON))
    assert sweep(tmp_path, NOON + 90_000) == 1
    assert files(tmp_path) == [whole]


def test_the_default_root_is_the_users_cache() -> None:
    assert telemetry_root(None, {"XDG_CACHE_HOME": "/x"}) == Path("/x/dml/telemetry")
    home = Path("~/.cache/dml/telemetry").expanduser()
    assert telemetry_root(None, {}) == telemetry_root(None, {"XDG_CACHE_HOME": "rel"}) == home
    assert telemetry_root("/store") == Path("/store")
    assert telemetry_root("") is telemetry_root("off") is telemetry_root("OFF") is None


def test_damage_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    path = publish(tmp_path, "w-0", [RunStarted(run="a"), RunFinished(run="a")], NOON)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    events = list(read(tmp_path))
    assert events[0].run == "a"
    assert isinstance(events[1], Warned)
    assert events[1].name == "TelemetryDamaged"
    assert f"{path}:2" in events[1].text


HOLDING = """
import os, signal, sys, threading
from pathlib import Path
from dml.events import RunFinished
from dml.fleet.collector import Collector
collector = Collector(Path(sys.argv[1]))
held, leave = threading.Event(), threading.Event()
def hold():
    with collector._changed:
        held.set()
        leave.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(20)  # what waits for the lock ends by the signal
    collector.start()
    collector.record(RunFinished(run="a", at=1.0))
    collector.flush()
    collector.close()
    os._exit(0)
leave.set()
thread.join()
print(os.waitpid(child, 0)[1])
"""


def test_a_child_that_was_forked_while_the_lock_was_held_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "0\n"


LIVE = """
import os, sys
import dml
ds = dml.range(10_000).map(lambda row: {"x": [row["id"]][0]}).batch(4)
iterator = iter(ds.with_options(telemetry_dir=sys.argv[1], prefetch=0))
next(iterator)
next(iterator)
if len(sys.argv) > 2 and os.fork() == 0:
    sys.exit()  # a forked child does not report its parent's run
"""


@pytest.mark.parametrize("fork", [(), ("fork",)])
def test_a_run_that_python_s_exit_stops_is_recorded_once(
    tmp_path: Path, fork: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIVE, str(tmp_path), *fork],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    events = list(read(tmp_path))
    assert [each.rows for each in events if isinstance(each, RunFinished)] == [8]
    (started,) = (each for each in events if isinstance(each, RunStarted))
    assert next(iter(started.prefixes.values())) == "0 Range"


def test_a_long_run_tells_its_figures_while_it_goes_on(tmp_path: Path) -> None:
    ds = dml.range(10_000).map(lambda row: {"x": [row["id"]][0]}).batch(4)
    it = iter(ds.with_options(telemetry_dir=str(tmp_path), prefetch=0))
    next(it)
    collector = run_telemetry.collector_of(ds.with_options(telemetry_dir=str(tmp_path))._settings)
    assert collector is not None
    later = time.time() + account.PROGRESS_S + 1
    account.tell_progress(later - account.PROGRESS_S)  # too early
    assert collector.flush()
    assert list(read(tmp_path)) == []
    account.tell_progress(later)
    account.tell_progress(later + 1)  # not again so soon
    assert collector.flush()
    told = list(read(tmp_path))
    assert [each.kind for each in told].count("RunStarted") == 1
    assert not any(isinstance(each, RunFinished) for each in told)
    first = [each.rows_out for each in told if isinstance(each, OperatorTotals)]
    assert first[-1] >= 4
    next(it)
    it.close()
    assert collector.flush()
    last = latest(read(tmp_path))
    assert [each.rows for each in last if isinstance(each, RunFinished)] == [8]
    assert [each.kind for each in last].count("RunStarted") == 1


def test_the_collector_asks_for_events_now_and_then(tmp_path: Path) -> None:
    asked: queue.Queue[float] = queue.Queue()
    collector = Collector(tmp_path, interval_s=0.01, clock=lambda: NOON, ask=asked.put)
    collector.start()
    assert [asked.get(timeout=60) for _ in range(2)] == [NOON, NOON]
    assert collector.close()
    assert not list(read(tmp_path))
