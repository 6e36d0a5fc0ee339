"""Test driver processes whose run ends during a call, or during a message."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import WorkerLostError
from dml.exec.process import channel, worker_pool
from dml.exec.process.worker_pool import ChildProcess, ProcessPool
from dml.ranks.driver import driver_handle
from dml.ranks.driver.driver_handle import DriverProcess
from dml.ranks.driver.driver_process import DriverRun, Ending
from tests.ranks.driver.driver_cases import HANG_S, ROWS, afar, nothing_stays, numbers, table

pytestmark = pytest.mark.cluster

__all__ = ["nothing_stays", "numbers", "table"]


def driver_of(it: Any) -> DriverProcess:
    found = it.report.driver
    assert isinstance(found, DriverProcess)
    return found


class Gate:
    """A function of batches that stands still from row ``at`` on, while ``path`` is there."""

    def __init__(self, path: Path, at: int) -> None:
        self.path, self.at = path, at
        path.touch()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        while batch["n"][0] >= self.at and self.path.exists():
            time.sleep(0.01)
        return batch


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for module in (worker_pool, driver_handle):
            patch.setattr(module, "END_S", 0.05)
        patch.setattr(driver_handle, "CLOSE_S", 0.05)
        yield


@pytest.mark.parametrize("closed", [True, False])
def test_a_loop_that_is_left_while_a_function_is_busy_costs_no_process(
    numbers: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    gate, calls = Gate(tmp_path / "shut", 200), tmp_path / "calls"

    def counted(batch: dict[str, Any]) -> dict[str, Any]:
        with calls.open("a") as file:
            file.write(".")
        return batch

    kept = afar(numbers.take(500).map_batches(counted).cache().batch(100), executor="threads")
    begun = iter(kept)
    list(begun)
    first = driver_of(begun)
    made = len(calls.read_text())
    it = iter(afar(kept.map(gate), executor="threads"))
    next(it)
    assert driver_of(it) is first
    time.sleep(0.1)
    with impatient(monkeypatch):
        if closed:
            it.close()
        report: Any = it.report
        del it
        gc.collect()
        other = iter(afar(numbers.batch(100)))
        assert len(list(other)) == ROWS // 100
        assert driver_of(other) is not first
    assert first.process.poll() is None
    gate.path.unlink()
    assert "stopped" in str(dml.api.session.stats(report.so_far()))
    assert report.final is not None, "the account that the process has given"
    again = iter(kept)
    assert len(list(again)) == 5
    assert driver_of(again) is first, "who has had the pipeline is asked first"
    assert len(calls.read_text()) == made


def test_an_account_that_nobody_asks_for_is_taken_while_the_process_is_idle(
    numbers: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = afar(numbers.take(50).cache().batch(5), executor="threads")
    it = iter(ds)
    for _ in islice(it, 3):
        pass
    driver = driver_of(it)
    del it
    gc.collect()
    until = time.monotonic() + HANG_S
    while driver.over is not None:
        assert time.monotonic() < until
        driver.look()  # unless whoever looks after processes that are idle has been here
    assert driver.stays


def test_a_process_that_is_ended_tells_its_run(numbers: Dataset) -> None:
    """Its descriptors are others' by then: who waits there would wait for ever."""
    it = iter(afar(numbers.batch(100), prefetch=2))
    next(it)
    driver = driver_of(it)
    it.report.finished("stopped", None)
    assert driver.ending
    driver.close()
    assert driver_of(it).over is None
    with pytest.raises(OSError, match="closed"):
        driver.channel.heard(HANG_S)
    assert "stopped  100 rows" in str(it.stats())


def test_how_a_run_ended_is_heard_from_a_parent_that_is_gone_by_then() -> None:
    ours, theirs = (channel.Channel(end) for end in socket.socketpair())
    quiet: Any = SimpleNamespace(drain=list)
    run = DriverRun(theirs, quiet, quiet)
    ours.send("more")
    ours.send(Ending("failed", b"", None))
    ours.close()
    run._send("end", None)
    assert run.ending == Ending("failed", b"", None)
    theirs.close()


class Lazy(ChildProcess):
    """No process at all."""

    def __init__(self) -> None:
        self.idle_since, self.done = 0.0, threading.Event()
        self.in_ready: Any = lambda: None
        self.is_ready = self.is_ending = True
        self.channel: Any = SimpleNamespace(close=lambda: None)

    def ready(self) -> bool:
        self.in_ready()
        return self.is_ready

    @property
    def ending(self) -> bool:
        return self.is_ending

    def close(self, seconds: float = 0.0) -> None:
        self.done.set()


def lazy_pool() -> ProcessPool[Lazy]:
    every = weakref.WeakSet[Lazy]()

    def start() -> Lazy:
        made = Lazy()
        every.add(made)
        return made

    return ProcessPool(start, every)


def test_one_may_be_given_back_while_another_is_taken() -> None:
    """As the garbage collector does it, which runs wherever something is made."""
    some = lazy_pool()
    one, other = some.take(), some.take()
    some.give_back(one)
    one.in_ready = lambda: some.give_back(other)
    found = list[Lazy]()
    taking = threading.Thread(target=lambda: found.append(some.take()), daemon=True)
    taking.start()
    taking.join(HANG_S)
    assert found == [one]
    with some._lock:  # in the middle of anything
        giving = threading.Thread(target=some.give_back, args=(one,), daemon=True)
        giving.start()
        giving.join(HANG_S)
        assert not giving.is_alive()
    assert {some.take(), some.take()} == {one, other}


def test_those_that_are_ending_are_left_alone_and_the_liked_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = lazy_pool()
    held = [some.take() for _ in range(4)]
    for each in held:
        some.give_back(each)
    held[3].is_ready = False
    held[2].is_ready = held[2].is_ending = False
    assert some.take() is held[1]
    assert [each.done.is_set() for each in held] == [False, False, True, False]
    held[3].is_ready = True
    assert some.take(liked=lambda each: each is held[3]) is held[3]
    assert some.take() is held[0]
    ending = held[0]
    some.give_back(ending)
    monkeypatch.setattr(worker_pool, "IDLE_S", 0.0)
    some._swept()
    assert not ending.done.is_set()
    ending.is_ending = False
    some._swept()
    assert ending.done.is_set()


def test_what_this_process_lacks_is_not_told_as_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = dml.range(640, atom_rows=16).map_batches(wide).batch(16).with_options(telemetry_dir="off")
    it = iter(afar(ds, prefetch=0))
    first = [next(it)]

    def full(*_: Any) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(channel, "_buffers", full)
        with pytest.raises(WorkerLostError, match="cannot be taken in") as caught:
            next(it)
    assert f"process {os.getpid()}" in caught.value.at
    assert "Too many open files" in caught.value.why
    assert "ulimit -n" in caught.value.try_
    assert driver_of(it).process.returncode is not None
    rest = iter(afar(ds))
    rest.load_state_dict(it.state_dict())
    assert len([*first, *rest]) == 40


def wide(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": np.ones((len(batch["id"]), 20_000))}


def test_a_stopped_driver_is_an_error(numbers: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "STOPPED_S", 0.5)
    monkeypatch.setattr(driver_handle, "LOOK_S", 0.1)
    it = iter(afar(numbers.batch(5), prefetch=0))
    next(it)
    os.kill(driver_of(it).process.pid, signal.SIGSTOP)
    with pytest.raises(WorkerLostError, match="did not go on"):
        next(it)
    assert "failed" in str(it.stats())


@pytest.mark.parametrize("name", ["channel", "control"])
def test_a_driver_may_be_stopped_in_the_middle_of_a_message(
    numbers: Dataset, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(worker_pool, "STOPPED_S", 0.5)
    monkeypatch.setattr(worker_pool, "HEARD_S", 0.1)
    it = iter(afar(numbers.batch(5), prefetch=0))
    next(it)
    driver = driver_of(it)
    os.kill(driver.process.pid, signal.SIGSTOP)
    ours, theirs = socket.socketpair()
    theirs.send(channel.HEAD.pack(100, 0, 0))  # and nothing follows
    end = getattr(driver, name)
    end.close()
    setattr(driver, name, channel.Channel(ours))
    with theirs:
        if name == "control":
            assert driver.ask("told") is None
        with pytest.raises(WorkerLostError):
            next(it)


class StopError(Exception):
    pass


@pytest.mark.parametrize("where", ["send", "receive"])
def test_a_question_that_was_interrupted_is_the_last(
    numbers: Dataset, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    it = iter(afar(numbers.batch(100), prefetch=0))
    next(it)
    driver = driver_of(it)

    def half(self: channel.Channel, *_: Any) -> None:
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(channel.Channel, where, half)
        with pytest.raises(StopError):
            it.memory_report()
    assert driver.deaf
    assert driver.ask("memory") is None
    assert it.memory_report() is not None
    assert "running" in str(it.stats())
    assert len(list(it)) == ROWS // 100 - 1
    assert f"finished  {ROWS:,} rows" in str(it.stats()), "the account comes another way"
    other = iter(afar(numbers.batch(100)))
    next(other)
    assert driver_of(other) is not driver


def test_an_account_that_was_half_received_never_comes(
    numbers: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = iter(afar(numbers.batch(100), prefetch=0))
    next(it)
    driver, receive = driver_of(it), channel.Channel.receive

    def half(self: channel.Channel) -> Any:
        receive(self)
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(channel.Channel, "receive", half)
        with suppress(StopError):
            it.close()
            driver.settle(HANG_S)
    assert not driver.whole
    assert not driver.ending
    assert "stopped  100 rows" in str(it.stats())
    assert len(list(afar(numbers.batch(100)))) == ROWS // 100
    assert driver.process.returncode is not None


class Said:
    """Says something at row 100, once ``file`` is there: another ``word`` each time.

    As a process warns of each once.
    """

    def __init__(self, word: str, file: Path) -> None:
        self.word, self.file = word, file

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if batch["n"][0] == 100:
            while not self.file.exists():
                time.sleep(0.01)
            logging.getLogger("dml").warning("said %s", self.word)
            warnings.warn(f"warned {self.word}", stacklevel=1)
        return batch


def test_what_was_said_with_batches_that_nobody_took_arrives(
    numbers: Dataset, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    said = Said("first", tmp_path / "now")
    it = iter(afar(numbers.batch(100).map(said), executor="threads", prefetch=3))
    next(it)
    said.file.touch()
    until = time.monotonic() + HANG_S
    while not driver_of(it).channel.heard(0.1):
        assert time.monotonic() < until
    with pytest.warns(UserWarning, match="warned first"):
        it.close()
    assert "said first" in caplog.text


def test_a_warning_that_is_an_error_does_not_cost_the_account(
    numbers: Dataset, tmp_path: Path
) -> None:
    said = Said("second", tmp_path / "now")
    it = iter(afar(numbers.batch(100).map(said), executor="threads", prefetch=3))
    next(it)
    said.file.touch()
    while not driver_of(it).channel.heard(0.1):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="warned second"):
            it.close()
    assert driver_of(it).over is None
    assert "stopped  100 rows" in str(it.stats())
