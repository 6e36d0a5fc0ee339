"""Test disk failures of the telemetry store, which must not affect the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dml.events import RunFinished, Warned
from dml.fleet.collector import Collector, sweep
from dml.fleet.reader import read

WRITER = """
import sys
from pathlib import Path
from dml.events import OperatorTotals
from dml.fleet.collector import publish
print("ready", flush=True)
for n in range(10**9):
    events = [OperatorTotals(run=str(n), ordinal=k, name="x" * 200) for k in range(200)]
    publish(Path(sys.argv[1]), f"{sys.argv[2]}-{n:06d}", events, 1.0)
"""

TOO_LARGE = """
import resource, signal, sys
from pathlib import Path
from dml.events import Warned
from dml.fleet.collector import Collector
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
collector = Collector(Path(sys.argv[1]), warn=lambda text: print(text))
for n in range(100):
    collector.record(Warned(text="x" * 100))
assert collector.close(30)
print(collector.published, collector.dropped)
"""

STEPS = ["mkdir", "open", "fsync", "replace"]


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_files_and_orphans_that_go(
    tmp_path: Path,
) -> None:
    for kill in range(5):
        with python(WRITER, tmp_path, f"w{kill}") as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.02 + kill * 0.007)
            process.send_signal(signal.SIGKILL)
    events = list(read(tmp_path))
    assert len(events) % 200 == 0
    assert not [each for each in events if isinstance(each, Warned)]
    sweep(tmp_path, time.time() + 2, orphan_s=1)
    assert not list((tmp_path / "v1/tmp").iterdir())


@pytest.mark.law
def test_a_file_size_limit_costs_events_not_the_run(tmp_path: Path) -> None:
    with python(TOO_LARGE, tmp_path) as process:
        said, _ = process.communicate(timeout=60)
    warning, counts = said.splitlines()
    assert "File too large" in warning
    assert counts == "0 100"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number", [5, 13, 24, 28])  # EIO, EACCES, EMFILE, ENOSPC
def test_any_error_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    told: list[str] = []
    collector = Collector(tmp_path, warn=told.append)
    with monkeypatch.context() as broken:
        broken.setattr(os if step == "fsync" else Path, step, fail)
        collector.record(RunFinished(run="lost"))
        assert collector.flush(10)
    collector.record(RunFinished(run="kept"))
    assert collector.close(10)
    events = list(read(tmp_path))
    assert [each.run for each in events if isinstance(each, RunFinished)] == ["kept"]
    assert [each.name for each in events if isinstance(each, Warned)] == ["TelemetryDropped"]
    assert len(told) == 1
    assert os.strerror(number) in told[0]
    assert not list((tmp_path / "v1/tmp").iterdir())


def test_many_threads_may_record_at_once(tmp_path: Path) -> None:
    collector = Collector(tmp_path, limit=100_000)

    def tell(worker: int) -> None:
        for n in range(500):
            collector.record(Warned(name=f"{worker}-{n}"))

    threads = [threading.Thread(target=tell, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert collector.close(30)
    told = [each.name for each in read(tmp_path) if isinstance(each, Warned)]
    assert sorted(told) == sorted(f"{worker}-{n}" for worker in range(4) for n in range(500))
    assert collector.dropped == 0


@pytest.mark.law
def test_recording_costs_little(tmp_path: Path) -> None:
    collector, event = Collector(tmp_path, limit=100_000), Warned(run="r")
    begin = time.thread_time()
    for _ in range(10_000):
        collector.record(event)
    spent = time.thread_time() - begin
    collector.close(30)
    assert spent / 10_000 < 20e-6
