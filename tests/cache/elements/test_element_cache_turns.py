"""Test that threads which read one cached stream compute each block once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dml
from dml.cache.elements import disk_cache
from tests.cache.elements.kept_cases import LOGGED, ROWS, Logged, logged, places, small_parts
from tests.expr.checks import numbers

__all__ = ["small_parts"]
pytestmark = pytest.mark.usefixtures("small_parts")


class Stopping(Logged):
    """Stops one thread in its work on a row, the first time, until it is told to go on."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(path)
        self.at, self.stopped, self.goes_on = at, threading.Event(), threading.Event()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] == self.at and not self.stopped.is_set():
            self.stopped.set()
            assert self.goes_on.wait(60)
        return super().__call__(row)


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[threading.Thread]:
    """A thread that does ``work`` while the block runs; what it raises is raised here."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the thread
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    thread.join(60)
    assert not thread.is_alive()
    for error in failed:
        raise error


@pytest.fixture
def nobody_tires(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads wait for each other as long as it takes."""
    monkeypatch.setattr(disk_cache, "PATIENCE_S", 600.0)
    monkeypatch.setattr(disk_cache, "REST_S", 600.0)


def kept(fn: Logged, tmp_path: Path) -> dml.Dataset:
    """Rows through ``fn``, shuffled and kept."""
    ds = numbers(ROWS).map(fn, fingerprint="logged", schema=LOGGED).shuffle(7, seed=1).cache("disk")
    return ds.with_options(cache_dir=str(tmp_path), executor="sync", prefetch=0)


@pytest.mark.law
@pytest.mark.usefixtures("nobody_tires")
@pytest.mark.parametrize("at", [20, 40, ROWS - 1])
def test_a_block_that_is_being_made_is_kept_though_its_part_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(disk_cache, "PART_BYTES", 1 << 20)
    fn = Stopping(tmp_path / "calls", at)
    cached = kept(fn, tmp_path)
    got: list[int] = []
    with beside(lambda: got.extend(places(cached))):
        assert fn.stopped.wait(60)
        run = iter(cached)  # wants what is in the part, which is committed for it
        first = [next(run)["x"] for _ in range(7)]
        fn.goes_on.set()
    assert [*first, *(row["x"] for row in run)] == got
    assert fn.calls == ROWS


@pytest.mark.law
@pytest.mark.usefixtures("nobody_tires")
def test_an_end_that_is_found_once_its_part_was_committed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, found, goes_on = Logged(tmp_path / "calls"), threading.Event(), threading.Event()
    cached, end = kept(fn, tmp_path), disk_cache.DiskShelf.end

    def late(*args: Any) -> None:
        found.set()
        assert goes_on.wait(60)
        end(*args)

    monkeypatch.setattr(disk_cache, "PART_BYTES", 1 << 20)
    monkeypatch.setattr(disk_cache.DiskShelf, "end", late)
    got: list[int] = []
    with beside(lambda: got.extend(places(cached))):
        assert found.wait(60)
        run = iter(cached)
        rows = [next(run)["x"] for _ in range(ROWS)]
        goes_on.set()
        assert next(run, None) is None
    assert rows == got
    assert fn.calls == ROWS
    assert cached.cache_status()[0].whole


@pytest.mark.law
@pytest.mark.usefixtures("nobody_tires")
def test_threads_make_every_row_once(tmp_path: Path) -> None:
    ds, fn = logged(tmp_path, 400, executor="sync", prefetch=0)
    cached = ds.cache("disk")
    got: list[list[int]] = []
    begin = threading.Barrier(4)

    def run() -> None:
        begin.wait()
        got.append(places(cached.epoch(0)))

    with beside(run), beside(run), beside(run):
        run()
    assert len(got) == 4
    assert all(each == got[0] for each in got)
    assert fn.calls == 400


@pytest.mark.law
@pytest.mark.parametrize("soon", [False, True])
def test_whoever_waits_too_long_goes_on_and_waits_longer_where_that_was_too_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, soon: bool
) -> None:
    monkeypatch.setattr(disk_cache, "PATIENCE_S", 600.0)
    monkeypatch.setattr(disk_cache, "REST_S", 0.0)
    fn, came = Stopping(tmp_path / "calls", -1), threading.Event()
    cached = kept(fn, tmp_path)
    run = iter(cached)
    first = [next(run)["x"] for _ in range(7)]  # and rests, while another wants more
    fn.at = 12 if soon else -1  # of the next block
    returned = disk_cache.PartWriter.returned

    def noted(making: disk_cache.PartWriter) -> bool:
        found = returned(making)
        if found:
            monkeypatch.setattr(disk_cache, "REST_S", 600.0)
            came.set()
            fn.goes_on.set()
        return found

    monkeypatch.setattr(disk_cache.PartWriter, "returned", noted)
    got: list[int] = []
    with beside(lambda: got.extend(places(cached))) as other:
        if soon:
            assert fn.stopped.wait(60)
        else:
            other.join(60)
        rest = [row["x"] for row in run]
    assert [*first, *rest] == got
    assert sorted(got) == list(range(ROWS))
    assert fn.calls < 2 * ROWS  # again: what a flow holds unread where the other went on
    assert came.is_set() is soon
    (times,) = [
        shelf.times
        for (where, _), shelf in disk_cache.SHELVES.items()
        if where.root.startswith(str(tmp_path))
    ]
    assert times == 1 + soon
