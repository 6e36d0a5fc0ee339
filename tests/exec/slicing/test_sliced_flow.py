"""Test functions that run in parallel on slices of a flow: ordered output, bounded slices."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.api.dataset import Dataset
from dml.data.row_slicing import SETTLING_ROWS, weighed
from dml.exec.drivers.sync import SyncFeed
from dml.exec.slicing import slice_sizes, sliced_flow
from dml.exec.slicing.slice_sizes import LastRun, SlicePace, Width
from dml.exec.slicing.sliced_flow import LanePart, SlicedFlow
from dml.kernels.rows.ids import RowIds
from dml.udfs.calling.type_inference import Firsts, Returned

OFF: dict[str, Any] = {"telemetry_dir": "off", "prefetch": 0}
ROWS = 200
Row = dict[str, Any]


class Noting:
    """A function that notes its calls, in which threads, and how many ran at once."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self.wait_s, self.lock = wait_s, threading.Lock()
        self.keys: list[int] = []
        self.threads = set[threading.Thread]()
        self.running = self.most = 0

    def __call__(self, row: Row) -> Row:
        with self.lock:
            self.keys.append(int(row["id"]))
            self.threads.add(threading.current_thread())
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(self.wait_s)
        with self.lock:
            self.running -= 1
        return {"id": row["id"], "x": float(row["id"]) / 2}

    def each(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Of a batch."""
        for key in batch["id"]:
            self({"id": key})
        return {"id": batch["id"]}


class Meeting:
    """A function whose first call ends once another has begun: alone it would wait in vain."""

    def __init__(self) -> None:
        self.calls, self.met = 0, False
        self.other, self.lock = threading.Event(), threading.Lock()

    def __call__(self, row: Any) -> Any:
        with self.lock:
            self.calls += 1
            first = self.calls == 1
        if not first:
            self.other.set()
        elif self.other.wait(60):
            self.met = True
        return row


SHAPES: dict[str, Callable[[Dataset, Any], Dataset]] = {
    "one atom": lambda ds, f: ds.map(f),
    "filter": lambda ds, f: ds.filter(lambda row: bool(f(row))),
    "flat_map": lambda ds, f: ds.flat_map(lambda row: [f(row)]),
    "random_map": lambda ds, f: ds.random_map(lambda row, _: f(row)),
    "shuffle": lambda ds, f: ds.shuffle(20).map(f),
    "shuffle all": lambda ds, f: ds.shuffle().map(f),
    "take": lambda ds, f: ds.take(150).map(f),
    "skip": lambda ds, f: ds.skip(10).map(f),
    "shard": lambda ds, f: ds.shard(2, 1).map(f),
    "batch": lambda ds, f: ds.batch(8).map(f, schema={"id": "int64"}),
    "unbatch": lambda ds, f: ds.batch(8).unbatch().map(f),
    "concat": lambda ds, f: ds.concat(ds).map(f),
    "zip": lambda ds, f: dml.zip(ds, ds.rename({"id": "other"})).map(f),
    "mix": lambda ds, f: ds.mix(ds).map(f),
    "repeat": lambda ds, f: ds.repeat(2).map(f),
    "cache": lambda ds, f: ds.shuffle(9).cache().map(f),
    "sort": lambda ds, f: ds.sort("id", descending=True).map(f),
    "with_row_index": lambda ds, f: ds.with_row_index("n").map(f),
    "skipping": lambda ds, f: ds.shuffle(9).map(f, on_error="skip"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_function_runs_side_by_side_wherever_it_stands(shape: str) -> None:
    meeting = Meeting()
    ds = SHAPES[shape](dml.range(ROWS), meeting)
    with iter(ds.with_options(executor="threads", num_workers=4, **OFF)) as it:
        assert next(it)
    assert meeting.met


@pytest.mark.parametrize("shape", ["one atom", "shuffle", "batch", "repeat", "zip"])
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_every_row_is_called_once(shape: str, executor: str) -> None:
    noting = Noting()
    ds = SHAPES[shape](dml.range(ROWS), noting.each if shape == "batch" else noting)
    assert list(ds.with_options(executor=executor, num_workers=4, **OFF))
    wanted = sorted(list(range(ROWS)) * (2 if shape == "repeat" else 1))
    assert sorted(noting.keys) == wanted


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_looking_at_the_first_row_calls_for_the_rows_that_settle_types(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced_flow, "LONG_S", math.inf)  # a busy machine is no slow function
    for source in (dml.range(20_000), dml.from_items([{"id": i} for i in range(20_000)])):
        noting = Noting()
        ds = source.map(noting).with_options(executor=executor, num_workers=8, **OFF)
        assert ds.take_rows(1)[0]["x"] == 0.0
        assert len(noting.keys) <= SETTLING_ROWS


def test_no_more_is_computed_where_a_first_row_tells_little_of_the_others() -> None:
    calls, one_by_one = [0], {"executor": "sync", **OFF}

    def parts(row: Row) -> list[Row]:
        return [row] * (100 if row["id"] else 0)

    def after(row: Row) -> Row:
        calls[0] += 1
        return {"x": len(str(row)) + time.thread_time() * 0}

    many = dml.range(300).flat_map(parts, schema={"id": "int64"}).map(after)
    assert next(iter(many.with_options(**one_by_one)))
    assert calls[0] <= 200  # 6,400 if rows of ``after`` were counted as rows of ``parts``

    def large(row: Row) -> Row:
        calls[0] += 1
        return {"b": bytes(8 << 20 if row["id"] else 8)}

    calls[0] = 0
    heavy = dml.range(300).map(large).map(lambda row: {**row, "u": str(time.thread_time())})
    assert next(iter(heavy.with_options(**one_by_one)))
    assert calls[0] <= 10  # 64 at once would take half a gigabyte


def test_few_rows_are_called_for_who_asks_for_few_and_none_once_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sliced_flow, "LONG_S", math.inf)  # a busy machine is no slow function,
    monkeypatch.setattr(slice_sizes, "LOOKED_AT_S", math.inf)  # nor one that holds the lock
    # nor is the function known to be fast, after which a slice may have a row that waits below
    monkeypatch.setattr(slice_sizes.SlicePace, "measured", lambda *_: None)
    noting, workers = Noting(), 4
    all_at_it, closed = threading.Barrier(workers + 1), threading.Event()

    def f(row: Row) -> Row:
        made = noting(row)
        if row["id"] >= 4:
            all_at_it.wait(60)
            closed.wait(60)
        return made

    ds = dml.range(20_000).map(f, schema={"id": "int64", "x": "float64"}).batch(4)
    with iter(ds.with_options(executor="threads", num_workers=workers, **OFF)) as it:
        next(it)
        all_at_it.wait(60)
    closed.set()
    for thread in noting.threads:
        thread.join(60)
    assert sorted(noting.keys) == list(range(4 + workers))


@pytest.mark.parametrize("shape", ["one atom", "shuffle", "take", "concat"])
def test_concurrency_is_obeyed_wherever_it_stands(shape: str) -> None:
    noting = Noting(0.001)
    limited = {
        "one atom": lambda ds: ds.map(noting, concurrency=2),
        "shuffle": lambda ds: ds.shuffle(20).map(noting, concurrency=2),
        "take": lambda ds: ds.take(150).map(noting, concurrency=2),
        "concat": lambda ds: ds.concat(ds).map(noting, concurrency=2),
    }
    ds = limited[shape](dml.range(ROWS)).with_options(executor="threads", num_workers=8, **OFF)
    assert len(list(ds)) >= 150
    assert 1 <= noting.most <= 2


@pytest.mark.parametrize("shape", ["one atom", "flat_map", "shuffle", "batch", "repeat", "zip"])
def test_resuming_calls_few_rows_again(shape: str) -> None:
    counts: list[int] = []
    for place in (0, 5, 60, 140):
        noting = Noting()
        ds = SHAPES[shape](dml.range(ROWS), noting.each if shape == "batch" else noting)
        ds = ds.with_options(executor="sync", **OFF)
        whole = list(ds.epoch(0))
        it = iter(ds.epoch(0))
        given = len(list(islice(it, min(place, len(whole) - 1))))
        state = json.loads(json.dumps(it.state_dict()))
        it.close()
        before = len(noting.keys)
        again = iter(ds.epoch(0))
        again.load_state_dict(state)
        rest = list(again)
        assert len(rest) == len(whole) - given
        for one, other in zip(rest, whole[given:], strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in other)
        counts.append(len(noting.keys) - before)
    assert counts[-1] < counts[0]


class Blocking:
    """A function of which one call ends only once so many others have ended."""

    def __init__(self, key: int, others: int) -> None:
        self.key, self.others, self.lock = key, others, threading.Lock()
        self.ended, self.enough, self.held_up = 0, threading.Event(), False

    def __call__(self, row: Row) -> Row:
        if row["id"] == self.key:
            self.held_up = not self.enough.wait(60)
        with self.lock:
            self.ended += 1
            if self.ended == self.others:
                self.enough.set()
        return {"id": row["id"]}


@pytest.mark.parametrize("key", [0, 20, 40, 90])
@pytest.mark.parametrize("schema", [None, {"id": "int64"}])
@pytest.mark.parametrize("long_s", [slice_sizes.LONG_S, 0.0])
def test_a_slow_row_holds_up_no_other_worker(
    key: int, schema: dict[str, str] | None, long_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced_flow, "LONG_S", long_s)
    blocking = Blocking(key, key + 100)
    ds = dml.range(300).map(blocking, schema=schema).batch(10)
    found = list(ds.with_options(executor="threads", num_workers=4, **OFF))
    assert not blocking.held_up
    assert np.concatenate([each["id"] for each in found]).tolist() == list(range(300))


def test_a_slow_row_holds_up_nobody_where_slices_are_looked_at_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slice_sizes, "LOOKED_AT", 1)
    monkeypatch.setattr(slice_sizes, "LOOKED_AT_S", 0.0)
    monkeypatch.setattr(slice_sizes, "TAKING_TURNS", (-1.0, math.inf))
    monkeypatch.setattr(Width, "_tried", lambda _: 1)  # it would go on for ever
    blocking = Blocking(90, 190)
    ds = dml.range(300).map(blocking, schema={"id": "int64"})
    assert len(list(ds.with_options(executor="threads", num_workers=4, **OFF))) == 300
    assert not blocking.held_up


def test_a_run_that_begins_with_many_slices_finds_out_whether_they_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(SyncFeed, "parallel", property(lambda _: 64))  # the run before waited
    monkeypatch.setattr(Width, "measured", lambda _, spent: seen.append(spent.rows))
    ds = dml.range(300).map(Noting()).with_options(executor="threads", num_workers=2, **OFF)
    assert ds.count() == 300
    assert sum(seen) == 300


def test_the_callers_thread_runs_slices_that_are_worth_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for the rest of a batch, and then for the rest of that rest, where few rows stay."""
    slices, rows = [0], SlicedFlow._next_rows

    def counted(flow: SlicedFlow, under_way: int) -> int:
        slices[0] += 1
        return rows(flow, under_way)

    monkeypatch.setattr(SlicePace, "measured", lambda pace, *_: setattr(pace, "row_s", 1e-6))
    monkeypatch.setattr(SlicedFlow, "_next_rows", counted)
    ds = dml.range(20_000).map(Noting()).filter(lambda row: row["x"] % 4 == 0).batch(100)
    assert sum(len(batch["id"]) for batch in ds.with_options(executor="sync", **OFF)) == 2500
    assert slices[0] < 60


# Types that settle while units are made whole


def units(tmp_path: Path) -> Dataset:
    """Rows in many units, which are made whole."""
    path = tmp_path / "units.parquet"
    pq.write_table(pa.table({"id": np.arange(ROWS), "x": np.arange(ROWS)}), path, row_group_size=10)
    ds = dml.read_parquet(path).with_columns(y=dml.col("x") * 2)
    return ds.with_options(executor="threads", num_workers=4, scheduler_policy="static", **OFF)


def test_first_rows_are_made_by_all_workers_and_once(tmp_path: Path) -> None:
    meeting, noting = Meeting(), Noting()
    assert len(list(units(tmp_path).map(meeting).map(noting))) == ROWS
    assert meeting.met
    assert meeting.calls == ROWS
    assert sorted(noting.keys) == list(range(ROWS))


@pytest.mark.parametrize("given", [0, 3, 10, 65, 70, 75, 130])
@pytest.mark.parametrize("batch", [None, 7])
def test_runs_go_on_from_first_rows_and_from_whole_units(
    tmp_path: Path, given: int, batch: int | None
) -> None:
    ds = units(tmp_path).map(lambda row: {"id": row["id"], "t": str(row["y"])})
    ds = ds if batch is None else ds.batch(batch)
    whole = [str(each) for each in ds.epoch(0)]
    given //= batch or 1
    with iter(ds.epoch(0)) as it:
        before = [str(each) for each in islice(it, given)]
        state = json.loads(json.dumps(it.state_dict()))
    again = iter(ds.epoch(0))
    again.load_state_dict(state)
    assert before + [str(each) for each in again] == whole


# Passes of repeat


@pytest.mark.parametrize("shape", ["one atom", "shuffle", "shuffle all", "batch", "flat_map"])
@pytest.mark.parametrize("below", [False, True])
def test_the_next_pass_begins_before_the_last_row_of_this_one_is_made(
    shape: str, *, below: bool
) -> None:
    last, seen, begun = 199, list[int](), threading.Event()

    def each(key: int) -> None:
        seen.append(key)
        if len(seen) > ROWS:
            begun.set()
        if key == last and not begun.is_set():
            assert begun.wait(60)

    def f(row: Row) -> Row:
        for key in np.atleast_1d(row["id"]):
            each(int(key))
        return {"id": row["id"]}

    ds = SHAPES[shape](dml.range(ROWS), f)
    ds = ds.shuffle(7, seed=1).repeat(2) if below else ds.repeat(2)
    one = SHAPES[shape](dml.range(ROWS), lambda row: {"id": row["id"]})
    one = one.shuffle(7, seed=1).repeat(2) if below else one.repeat(2)
    options: dict[str, Any] = {"executor": "threads", "num_workers": 4, **OFF}
    assert str(list(ds.with_options(**options))) == str(list(one.with_options(**options)))
    assert sorted(seen) == sorted(list(range(ROWS)) * 2)


def test_no_pass_begins_for_rows_that_nobody_asks_for() -> None:
    options: dict[str, Any] = {"executor": "threads", "num_workers": 4, **OFF}
    for ds in (dml.range(ROWS).shuffle(9), dml.range(ROWS)):
        above: Callable[[Dataset], Dataset]
        for above in (
            lambda ds: ds,
            lambda ds: ds.cache().repeat(3),
            lambda ds: ds.take(ROWS).repeat(1),
            lambda ds: ds.repeat(1).take(ROWS),
        ):
            noting = Noting()
            assert list(above(ds.map(noting)).with_options(**options))
            assert sorted(noting.keys) == list(range(ROWS))


def test_a_pass_that_has_begun_ends_when_it_is_closed() -> None:
    noting = Noting(0.002)
    ds = dml.range(ROWS).map(noting).repeat().batch(4)
    with iter(ds.with_options(executor="threads", num_workers=4, **OFF)) as it:
        while len(noting.keys) <= ROWS:
            next(it)
    began = len(noting.keys)
    for thread in list(noting.threads):
        thread.join(60)
    assert len(noting.keys) <= began + 4  # those that were about to begin, one for each worker


@pytest.mark.parametrize("given", [195, 199, 200, 201, 230])
def test_a_position_near_the_edge_of_a_pass_goes_on_there(given: int) -> None:
    ds = dml.range(ROWS).map(Noting(0.0005)).shuffle(5, seed=3).repeat(3)
    ds = ds.with_options(executor="threads", num_workers=4, **OFF)
    whole = [row["id"] for row in ds.epoch(0)]
    with iter(ds.epoch(0)) as it:
        before = [row["id"] for row in islice(it, given)]
        state = json.loads(json.dumps(it.state_dict()))
    again = iter(ds.epoch(0))
    again.load_state_dict(state)
    assert before + [row["id"] for row in again] == whole


def test_functions_that_hold_the_lock_are_called_while_somebody_waits_for_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Holding(Width):
        def __init__(self, most: int, earlier: LastRun) -> None:
            super().__init__(most, earlier)
            self.decided = self.alone = True

    calls = list[int]()

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["id"])
        return row

    monkeypatch.setattr("dml.exec.slicing.sliced_flow.Width", Holding)
    ds = dml.range(400).map(counted).batch(16)
    at_once = list[int]()
    for _ in ds.with_options(executor="threads", num_workers=4, prefetch=0, telemetry_dir="off"):
        at_once.append(len(calls))
        threading.Event().wait(0.005)
        assert len(calls) == at_once[-1]
    assert sorted(calls) == [*range(400)]


# By which results types settle


@given(st.lists(st.integers(0, 3), min_size=1, max_size=150), st.data())
def test_types_settle_by_the_same_results_however_slices_are_cut(
    children: list[int], data: st.DataObject
) -> None:
    results = [{"row": row} for row, count in enumerate(children) for _ in range(count)]
    rows = SETTLING_ROWS
    while rows < len(children) and not sum(children[:rows]):
        rows += 1
    wanted = sum(children[:rows])
    firsts, start = Firsts(), 0
    while start < len(children) and not firsts.enough:
        stop = start + data.draw(st.integers(1, 90))
        ends = np.cumsum(children[start:stop]).tolist()
        begin = sum(children[:start])
        out = results[begin : begin + ends[-1]]
        ids = RowIds(len(out), 1, 1)
        firsts.add(Returned(out, ends, ids, ids, weighed(out) if out else 0))
        start = stop
    assert len(firsts.first()[0]) == wanted


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads"])
@pytest.mark.parametrize("size", [3, 7, 100, 130])
def test_groups_end_with_their_atoms_however_long_slices_are(
    tmp_path: Path, executor: str, size: int
) -> None:
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"n": np.arange(2000)}), path, row_group_size=100)

    def spelled(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": row["n"], "t": str(row["n"])}

    def sized(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"n": batch["n"], "size": np.full(len(batch["n"]), len(batch["n"]))}

    ds = dml.read_parquet(path).map(spelled).map_batches(sized, batch_size=size, num_cpus=2)
    sizes = [row["size"] for row in ds.with_options(executor=executor, num_workers=2)]
    whole = [size] * (100 // size * size) + [100 % size] * (100 % size)
    assert sizes == whole * 20


THREADS: dict[str, Any] = {"executor": "threads", **OFF}
FIRST_BATCHES: dict[str, Callable[[Dataset, Any], Dataset]] = {
    "batch": lambda ds, f: ds.batch(5).map(f),
    "batches": lambda ds, f: ds.map_batches(f, batch_size=5),
    "filtered": lambda ds, f: ds.filter(lambda r: r["id"] >= 7).map_batches(f, batch_size=5),
}


@pytest.mark.parametrize("shape", FIRST_BATCHES)
def test_first_batches_are_made_by_all_workers(shape: str) -> None:
    all_at_it = threading.Barrier(3)

    def f(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][0] < 18:  # one of the first three
            all_at_it.wait(60)
        return {"x": batch["id"] * 2}

    source = dml.range(7, 40) if shape == "filtered" else dml.range(3, 40)
    assert list(FIRST_BATCHES[shape](source, f).with_options(num_workers=4, **THREADS))


@pytest.mark.parametrize("shape", FIRST_BATCHES)
@pytest.mark.parametrize("kinds", ["iffi", "fiif", "ibif", "0iif", "fsii", "iiis"])
def test_types_settle_by_the_first_batch_with_rows(shape: str, kinds: str) -> None:
    """Of whole numbers, floats, booleans, texts and no rows; by one worker and by several."""

    def f(batch: dict[str, Any]) -> dict[str, Any]:
        kind = kinds[int(batch["id"][-1]) // 6]
        numbers = batch["id"][:0] if kind == "0" else batch["id"]
        return {"x": numbers.astype({"i": "i8", "f": "f8", "b": "?", "s": "U3", "0": "f8"}[kind])}

    seen = []
    for executor in ("sync", "threads"):
        ds = FIRST_BATCHES[shape](dml.range(20), f)
        rows, said = list[Any](), ""
        try:
            for each in ds.with_options(executor=executor, num_workers=4, **OFF):
                rows.append(repr(each))
        except dml.errors.UDFError as error:
            said = str(error)
        seen.append((rows, said))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("free", [False, True])
def test_types_settle_in_order_above_a_function_that_has_overtaken(free: bool) -> None:
    """The second batch waits for the sixth, by which the types above must not settle."""
    sixth = threading.Event()

    def below(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][0] == 5:
            assert sixth.wait(60)
        elif batch["id"][0] == 25:
            sixth.set()
        return {"id": batch["id"]}

    def above(batch: dict[str, Any]) -> dict[str, Any]:
        first = int(batch["id"][0])
        x = batch["id"] / 2 if first == 25 else batch["id"]
        return {"x": x[:0] if first == 0 else x}

    ds = dml.range(40).batch(5).map(below).map(above)
    ds = ds.with_options(num_workers=4, deterministic=not free, **THREADS)
    rows, error = list[int](), ""
    try:
        for batch in ds:
            rows += batch["x"].tolist()
    except dml.errors.UDFError as raised:
        error = raised.what
    assert "double, while int64 is needed" in error
    assert rows == list(range(5, 25))


def test_large_rows_are_few_also_before_types_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given is held until it is looked at, however fast workers are done with it."""
    given = list[int]()
    start = sliced_flow.SlicedFlow._start

    def noted(flow: sliced_flow.SlicedFlow, part: LanePart, *rest: Any) -> None:
        start(flow, part, *rest)
        given.append(sum(each.given_bytes for each in flow.running.values()))

    monkeypatch.setattr(sliced_flow.SlicedFlow, "_start", noted)
    monkeypatch.setattr("dml.exec.drivers.sync.SyncFeed.unfinished", 0)
    rows = np.zeros((SETTLING_ROWS, 1 << 17))
    ds = dml.from_numpy({"x": rows}, atom_rows=1).shuffle(2, seed=0)
    made = ds.map(lambda row: {"y": float(row["x"].max())})
    made = made.with_options(num_workers=2, memory_limit="128MiB", **OFF)
    assert len(made.to_list()) == SETTLING_ROWS
    assert max(given) <= rows.nbytes // 2


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_slice_ends_with_its_last_rows(executor: str) -> None:
    """An empty partition behind them would be worth a job, and keep delivered slices open."""

    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.005)
        return {"id": batch["id"]}

    # each batch is as large as a partition should be
    options = {"executor": executor, "num_workers": 2, "target_partition_bytes": 1, **OFF}
    ds = dml.range(120).shuffle(9, seed=1).batch(4).map(slow, schema={"id": "int64"})
    iterator = iter(ds.with_options(**options))
    assert sum(len(batch["id"]) for batch in iterator) == 120
    (lane,) = [each for each in iterator.memory_report().stages if each.name.startswith("MapBatch")]
    assert lane.slices == 30
