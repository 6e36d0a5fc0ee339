"""Test the pool of worker processes: starting, reuse, ending, and no leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dml.errors import WorkerLostError
from dml.exec.process import worker_pool as module
from dml.exec.process.channel import Message
from dml.exec.process.environment import SINGLE, Surroundings
from dml.exec.process.exception_codec import received
from dml.exec.process.task_runner import SliceOrder
from dml.exec.process.worker_pool import ALL, ProcessPool, UnwantedError, Worker
from dml.exec.scheduler.messages import Run
from tests.idle import descriptors, no_workers

pytestmark = pytest.mark.cluster

HANG_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def nobody_else() -> None:
    """Workers of other tests do not go while these count descriptors."""
    no_workers(HANG_S)


ORDER = SliceOrder("r", Run((0,), 0, 0, ""), None, {})


def job(name: str = "r") -> Message:
    """A job that no worker can read, whose orders are told so."""
    return Message(("job", Surroundings.now(), name, b"nonsense", []))


def never() -> bool:
    return False


def test_a_worker_answers_and_is_forgotten() -> None:
    worker = Worker()
    answer = worker.do(ORDER, job(), never)
    assert "cannot load the pipeline" in str(received(answer.error))
    assert worker.jobs == {"r"}
    assert worker.forget("r")
    assert worker.used
    assert not worker.jobs
    worker.close()
    worker.close()
    assert worker.process.returncode is not None


def test_a_worker_with_a_past_leaves_what_it_cannot_read_to_a_new_one() -> None:
    worker = Worker()
    worker.do(ORDER, job(), never)
    worker.forget("r")
    with pytest.raises(WorkerLostError, match="died"):
        worker.do(ORDER, job(), never)


def test_a_killed_worker_is_lost_and_leaves_nothing() -> None:
    files = descriptors()
    worker = Worker()
    worker.process.kill()
    with pytest.raises(WorkerLostError, match="killed by signal 9"):
        worker.do(ORDER, job(), never)
    assert not worker.forget("r")
    assert not descriptors() - files


def test_nobody_waits_for_an_answer_that_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARD_S", 0.01)
    worker = Worker()
    os.kill(worker.process.pid, signal.SIGSTOP)
    with pytest.raises(UnwantedError):
        worker.do(ORDER, job(), lambda: True)
    worker.close()


def test_a_worker_that_has_what_cannot_begin_again_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HEARD_S", 0.01)
    worker = Worker()
    worker.parked = {("another run", (5,)): True}
    os.kill(worker.process.pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (worker.process.pid, signal.SIGCONT)).start()
    assert worker.do(ORDER, job(), lambda: True).error
    assert ("another run", (5,)) in worker.parked
    worker.close()


def test_who_is_given_back_is_taken_again_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_S", HANG_S)  # nobody is killed who is only slow
    pool = ProcessPool(Worker, ALL)
    first = pool.take()
    pool.give_back(first)
    assert pool.take() is first
    pool.give_back(first)
    fresh = pool.take(fresh=True)
    assert fresh is not first
    first.process.kill()
    first.process.wait()
    second = pool.take()
    assert second is not first
    pool.give_back(second)
    pool.give_back(fresh)
    pool.close()
    assert second.process.returncode == fresh.process.returncode == 0, "they ended by themselves"


def test_who_is_idle_for_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.02)
    monkeypatch.setattr(module, "END_S", HANG_S)  # nobody is killed who is only slow
    pool = ProcessPool(Worker, ALL)
    worker = pool.take()
    pool.give_back(worker)
    deadline = time.monotonic() + HANG_S
    while worker.process.returncode is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert worker.process.returncode == 0
    assert not pool._idle


def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_S", 0.05)
    pool = ProcessPool(Worker, ALL)
    worker = pool.take()
    os.kill(worker.process.pid, signal.SIGSTOP)
    pool.give_back(worker)
    pool.close()
    assert worker.process.returncode == -signal.SIGKILL


def test_ctrl_c_is_for_the_parent_alone() -> None:
    worker = Worker()
    worker.do(ORDER, job(), never)
    assert os.getpgid(worker.process.pid) != os.getpgid(0)
    os.kill(worker.process.pid, signal.SIGINT)
    worker.do(ORDER, job(), never)  # raises an error if the worker has died
    worker.close()


def test_where_no_process_can_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    files = descriptors()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerLostError, match="could not be started"):
        ProcessPool(Worker, ALL).take()
    assert not descriptors() - files


def test_idle_workers_clean_up_when_the_interpreter_ends(tmp_path: Path) -> None:
    program = f"""
import dml
def registered(row):
    import atexit
    atexit.register(open({str(tmp_path / "left")!r}, "w").close)
    return row
list(dml.range(3).map(registered).with_options(executor="processes", telemetry_dir="off"))
import time; time.sleep(0.1); print(time.monotonic())
"""
    here = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", program], check=True, cwd=here, capture_output=True)
    assert (tmp_path / "left").exists()
    assert time.monotonic() - float(ran.stdout) < module.IDLE_S, "it has not waited for them"


def test_surroundings_are_those_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/a", *sys.path])
    monkeypatch.setenv("DML_TEST", "1")
    here = Surroundings.now()
    assert here.path[:2] == (str(tmp_path), "/a")
    assert here.folder == str(tmp_path)
    assert here.environment["DML_TEST"] == "1"
    assert {here.environment[name] for name in SINGLE} == {"1"}
    assert not set(SINGLE) & set(os.environ) or os.environ != here.environment


def test_surroundings_are_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DML_TEST", "1")
    there = Surroundings(("/x", *sys.path), "/", {**os.environ, "DML_TEST": "2"})
    there.enter()
    assert (sys.path[0], os.getcwd(), os.environ["DML_TEST"]) == ("/x", "/", "2")
    os.environ["DML_TEST"] = "1"


def test_a_folder_that_is_gone_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert Surroundings.now().folder == ""


def test_threads_may_share_a_pool() -> None:
    pool, taken = ProcessPool(Worker, ALL), list[Worker]()
    threads = [threading.Thread(target=lambda: taken.append(pool.take())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert len({worker.process.pid for worker in taken}) == 3
    for worker in taken:
        pool.give_back(worker)
    pool.close()
