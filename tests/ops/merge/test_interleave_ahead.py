"""Test ``interleave`` with pipelines that are opened early and read in parallel."""

from __future__ import annotations

import gc
import json
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dml
from dml.errors import DmlError, UDFError
from dml.exec.delivery.prefetch import ChunkShelf
from dml.exec.slicing import slice_sizes
from dml.exec.slicing.slice_sizes import LOOKED_AT, LOOKED_AT_S
from dml.exec.streams.read_ahead import PullLimit, _Reader
from tests.ops.merge.test_interleave_map import LENGTHS, counted, lengths, mixed, round_robin

LONG_S = 60.0
SCHEMA = {"id": "int64"}


def many(workers: int = 4, **more: Any) -> dict[str, Any]:
    return {"executor": "threads", "num_workers": workers, "telemetry_dir": "off", **more}


ONE = many(1) | {"executor": "sync"}


def ids(ds: dml.Dataset) -> list[int]:
    return [row["id"] for row in ds]


def generated(make: Callable[[], Iterator[int]]) -> dml.Dataset:
    """Rows that are read one by one."""
    return dml.from_generator(lambda: ({"id": i} for i in make()), SCHEMA, atom_rows=1)


def reading() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "dml-ahead"]


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    yield
    for each in reading():
        each.join(LONG_S)
        assert not each.is_alive()


@pytest.mark.parametrize("block", range(1, 6))
@pytest.mark.parametrize("cycle", range(1, 6))
def test_the_order_is_that_of_tf_data_whoever_reads_first(cycle: int, block: int) -> None:
    for given in (LENGTHS, [9] * 3, [0, 0, 5], []):
        ds = lengths(given).interleave(counted, cycle_length=cycle, block_length=block)
        assert ids(ds.with_options(**many(prefetch=0))) == round_robin(given, cycle, block)


@pytest.mark.law
@pytest.mark.parametrize("way", [many(prefetch=0), many(2), ONE])
def test_a_state_goes_on_with_the_same_rows_wherever_they_are_read_ahead(
    way: dict[str, Any],
) -> None:
    ds = lengths([3, 0, 5, 1, 4, 2]).interleave(mixed, cycle_length=3, block_length=2)
    rows = list(ds.with_options(**ONE))
    run = iter(ds.with_options(**many(prefetch=0)))
    for given in range(len(rows) + 1):
        state = json.dumps(run.state_dict())
        rest = iter(ds.with_options(**way))
        rest.load_state_dict(json.loads(state))
        assert list(rest) == rows[given:]
        if given < len(rows):
            assert next(run) == rows[given]


def test_a_state_of_the_callers_thread_goes_on_where_rows_are_read_ahead() -> None:
    ds = lengths([7, 3, 5, 9, 4]).interleave(counted, cycle_length=2, block_length=2)
    rows = ids(ds.with_options(**ONE))
    run = iter(ds.batch(3).with_options(**ONE))
    for given in range(3, len(rows), 3):
        next(run)
        rest = iter(ds.batch(3).with_options(**many()))
        rest.load_state_dict(run.state_dict())
        assert [i for batch in rest for i in batch["id"].tolist()] == rows[given:]


def test_pipelines_that_wait_for_one_another_are_read_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=LONG_S)

    def rows(first: int) -> Iterator[int]:
        for i in range(3):
            meeting.wait()
            yield first + i

    ds = dml.range(2).interleave(
        lambda row: generated(lambda: rows(10 * row["id"])), cycle_length=2
    )
    assert ids(ds.with_options(**many(2))) == [0, 10, 1, 11, 2, 12]


def test_calls_that_wait_for_one_another_are_made_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # nothing is looked at, or a call that waited for nobody would show calls that only compute
    monkeypatch.setattr(slice_sizes, "LOOKED_AT_S", math.inf)
    meeting, called = threading.Barrier(4, timeout=LONG_S), list[int]()

    def opened(row: dict[str, Any]) -> dml.Dataset:
        called.append(row["id"])
        meeting.wait()
        return dml.range(row["id"], row["id"] + 1)

    ds = dml.range(12, atom_rows=12).interleave(opened, cycle_length=4)
    assert ids(ds.with_options(**many(4))) == list(range(12))
    assert sorted(called) == list(range(12))


class Crowd:
    """Counts who is in at once."""

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), 0, 0
        self.threads = set[threading.Thread]()

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.threads.add(threading.current_thread())

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_no_more_run_at_once_than_num_parallel_calls(calls: int) -> None:
    crowd = Crowd()

    def rows() -> Iterator[int]:
        for i in range(6):
            with crowd:
                sum(range(2000))
            yield i

    def opened(_row: dict[str, Any]) -> dml.Dataset:
        with crowd:
            return generated(rows)

    ds = dml.range(9).interleave(opened, cycle_length=4, num_parallel_calls=calls)
    assert len(ids(ds.with_options(**many(8, prefetch=0)))) == 54
    assert crowd.most <= calls
    assert (crowd.threads == {threading.current_thread()}) is (calls == 1)


def test_the_function_is_called_once_for_each_row() -> None:
    called = list[int]()

    def noted(row: dict[str, Any]) -> dml.Dataset:
        called.append(row["x"])
        return counted(row)

    ds = lengths([3, 0, 1] * 20).interleave(noted, cycle_length=3)
    assert len(ids(ds.with_options(**many(3)))) == 80
    assert sorted(called) == list(range(60))


def test_no_more_are_opened_than_are_in_the_cycle_and_as_many_behind_it() -> None:
    called = list[int]()

    def noted(row: dict[str, Any]) -> dml.Dataset:
        called.append(row["x"])
        return counted(row)

    ds = lengths([2] * 30).interleave(noted, cycle_length=3).batch(1)
    for given, _ in enumerate(ds.with_options(**many(3, prefetch=0))):
        assert len(called) <= given // 2 + 2 * 3


def test_nothing_is_opened_or_read_ahead_in_the_callers_thread() -> None:
    called, read = list[int](), list[int]()

    def rows(first: int) -> Iterator[int]:
        for i in range(3):
            read.append(first + i)
            yield first + i

    def noted(row: dict[str, Any]) -> dml.Dataset:
        called.append(row["id"])
        return generated(lambda: rows(10 * row["id"]))

    run = iter(dml.range(5).interleave(noted, cycle_length=2).batch(1).with_options(**ONE))
    for i in (0, 10, 1):
        assert next(run)["id"].tolist() == [i]
        assert read[-1] == i
    assert called == [0, 1]
    assert not reading()


def failing(row: dict[str, Any], at: int) -> dml.Dataset:
    def rows() -> Iterator[int]:
        for i in range(4):
            if (row["x"], i) == (2, at):
                raise ValueError("here")
            yield row["x"] * 100 + i

    if (row["x"], at) == (2, -1):
        raise ValueError("here")
    return generated(rows)


@pytest.mark.parametrize("at", [-1, 0, 2, 3])
@pytest.mark.parametrize("block", [1, 3])
def test_an_error_stands_in_its_place_however_early_it_is_met(at: int, block: int) -> None:
    wanted = round_robin([4] * 6, 3, block)
    wanted = wanted[: wanted.index(200 + max(at, 0))]
    ds = lengths([4] * 6).interleave(
        lambda row: failing(row, at), cycle_length=3, block_length=block
    )
    for way in (many(3), many(3, prefetch=0), ONE):
        run = iter(ds.with_options(**way))
        assert [next(run)["id"] for _ in wanted] == wanted
        with pytest.raises(DmlError, match="raised ValueError"):
            next(run)


def test_errors_that_cost_rows_count_when_these_are_handed_on() -> None:
    def inner(row: dict[str, Any]) -> dml.Dataset:
        return generated(lambda: iter(range(row["x"] * 100, row["x"] * 100 + 6))).map(
            lambda each: {"z": each["id"] // (each["id"] % 3)}, on_error="skip"
        )

    ds = lengths([6] * 4).interleave(inner, cycle_length=4, block_length=2).batch(1)
    wanted = [1, 1, 100, 50, 100, 202, 301, 151]  # without 0, 201 and 300; the next one lost is 3
    for way in (many(4), many(4, prefetch=0), ONE):
        run = iter(ds.with_options(**way, max_errors=3))
        assert [int(next(run)["z"][0]) for _ in wanted] == wanted
        with pytest.raises(UDFError, match="raised 4 errors, and max_errors=3"):
            next(run)


def test_a_pipeline_that_stands_still_holds_up_no_rows_before_its_turn() -> None:
    go = threading.Event()

    def rows(number: int) -> Iterator[int]:
        for i in range(6):
            if number:
                go.wait(LONG_S)
            yield 10 * number + i

    ds = dml.range(4).interleave(
        lambda row: generated(lambda: rows(row["id"])), cycle_length=4, block_length=5
    )
    run = iter(ds.batch(1).with_options(**many(2, prefetch=0)))
    assert [int(next(run)["id"][0]) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert not go.is_set()
    go.set()
    assert len(list(run)) == 19


def test_whoever_closes_waits_for_nothing_and_threads_end_after_their_row() -> None:
    go, begun, made = threading.Event(), threading.Barrier(3, timeout=LONG_S), list[int]()

    def rows(number: int) -> Iterator[int]:
        yield number
        begun.wait()
        go.wait(LONG_S)
        for i in range(5000):
            made.append(i)
            yield i

    ds = dml.range(9).interleave(lambda row: generated(lambda: rows(row["id"])), cycle_length=2)
    run = iter(ds.batch(1).with_options(**many(2, prefetch=0)))
    next(run)
    next(run)
    begun.wait()
    threads = reading()
    assert len(threads) == 2
    run.close()
    go.set()
    for each in threads:
        each.join(LONG_S)
        assert not each.is_alive()
    assert len(made) < 5000


def test_threads_end_where_a_run_is_forgotten() -> None:
    ds = dml.range(9).interleave(
        lambda _row: generated(lambda: iter(range(100_000))), cycle_length=3
    )
    run = iter(ds.batch(1).with_options(**many(3, prefetch=0)))
    next(run)
    threads = reading()
    assert threads
    del run
    gc.collect()
    for each in threads:
        each.join(LONG_S)
        assert not each.is_alive()


def test_few_large_rows_are_read_ahead() -> None:
    lock, made, given, most = threading.Lock(), 0, 0, 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal made, most
        for _ in range(12):
            with lock:
                made += 1
                most = max(most, made - given)
            yield {"x": bytes(1 << 20)}

    def opened(_row: dict[str, Any]) -> dml.Dataset:
        return dml.from_generator(rows, {"x": "binary"}, atom_rows=1)

    ds = dml.range(8).interleave(opened, cycle_length=4).batch(1)
    for _ in ds.with_options(**many(4, prefetch=0, memory_limit="64MiB")):
        with lock:
            given += 1
    # of each place one at hand, one that waits, one that is read and one that its source holds;
    # and one of each that follows
    assert made == given == 96
    assert most <= 4 * 4 + 4


def test_the_one_that_is_waited_for_may_always_be_read() -> None:
    gate = PullLimit(2, 3)
    first, second, third = (_Reader(_nothing, gate, ChunkShelf(1, 1)) for _ in range(3))
    assert gate.enter(first)
    assert not gate.admits(second)
    gate.awaits(third)
    assert gate.enter(third)
    gate.leave(third, 1, (0.0, 0.0, 0.0))
    gate.awaits(first)
    assert gate.admits(second)


def test_one_that_nobody_wants_any_more_is_not_read() -> None:
    gate, shelf = PullLimit(2, 2), ChunkShelf(1, 1)
    shelf.stop()
    assert not gate.enter(_Reader(_nothing, gate, shelf))
    assert not gate.running


def test_pipelines_that_hold_pythons_lock_are_read_one_by_one() -> None:
    gate = PullLimit(4, 4)
    readers = [_Reader(_nothing, gate, ChunkShelf(1, 1)) for _ in range(2)]
    gate.awaits(readers[0])
    for _ in range(4 * LOOKED_AT):
        entered = [each for each in readers if gate.admits(each) and gate.enter(each)]
        for each in entered:
            gate.leave(each, 1, (len(entered) * LOOKED_AT_S, LOOKED_AT_S, 0.0))
    assert [each for each in readers if gate.admits(each)] == readers[:1]


def _nothing() -> Any:
    """No flow is opened."""


def test_what_it_may_do_at_once_is_shown_and_no_part_of_its_name() -> None:
    ds = lengths([1, 2])
    two = ds.interleave(counted, num_parallel_calls=2)
    assert "concurrency=2" in two.explain("written")
    assert two.fingerprint() == ds.interleave(counted).fingerprint()


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", [many(2), ONE])
def test_an_input_in_another_order_may_give_many_empty_pipelines(way: dict[str, Any]) -> None:
    """Its rows are taken one by one, and none is read before the first row that is not empty."""

    def opened(row: dict[str, Any]) -> dml.Dataset:
        return dml.range(2 if row["id"] == last else 0)

    def failing_late(_row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("late")

    rows = dml.range(800).concat(dml.range(800, 1600)).shuffle(1600).epoch(0)
    last = list(rows.with_options(**ONE))[1500]["id"]
    ds = rows.interleave(opened, cycle_length=200).map(failing_late, schema=SCHEMA)
    with pytest.raises(UDFError, match="late"):
        list(ds.with_options(**way))
