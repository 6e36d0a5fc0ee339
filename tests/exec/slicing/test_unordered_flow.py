"""Test runs in free order: each row once, even if slices are slow, lost or resumed."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.api.dataset import Dataset
from dml.errors import UDFError
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.tables import Unaccounted
from dml.exec.slicing.open_lanes import ALL, MOST_SPANS, Done, joined
from dml.exec.slicing.slice_sizes import Cutting
from dml.optimize.phases import optimize
from dml.physical.lanes import freed_lanes, stage_lanes, stream_lanes
from dml.testing.executions import RunWay, elements, streaming
from tests.sampling import amount

ROWS = 150
FREE: dict[str, Any] = {"deterministic": False, "telemetry_dir": "off", "prefetch": 0}
Row = dict[str, Any]


def kept(row: Row) -> Row:
    """One row for one, by a call that no expression stands for."""
    return {"id": row["id"], "x": float(os.getppid())}


def odd(row: Row) -> bool:
    """Half of them."""
    return bool(row["id"] % 2)


def several(row: Row) -> Any:
    """None, one or two rows."""
    return ({"id": row["id"] * 10 + part} for part in range(row["id"] % 3))


def failing(row: Row) -> Row:
    """One row for one, but for every seventh."""
    if row["id"] % 7 == 3:
        raise ValueError("every seventh")
    return {"id": row["id"]}


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch of as many rows."""
    return {"id": batch["id"] * 2}


SHAPES: dict[str, Callable[[Dataset], Dataset]] = {
    "map.batch": lambda ds: ds.map(kept).batch(7),
    "map": lambda ds: ds.map(kept),
    "filter.map": lambda ds: ds.filter(odd).map(kept),
    "flat_map.batch": lambda ds: ds.flat_map(several).batch(4),
    "map_batches": lambda ds: ds.map_batches(doubled, batch_size=8).batch(5),
    "skip": lambda ds: ds.map(failing, on_error="skip").batch(3),
    "shuffle.map.batch": lambda ds: ds.shuffle(seed=1).map(kept).batch(7),
    "map.batch.map": lambda ds: ds.map(kept).batch(7).map(doubled, schema={"id": "int64"}),
    "batch.map": lambda ds: ds.batch(7).map(doubled),
    "map.repeat.batch": lambda ds: ds.map(kept, schema={"id": "i8", "x": "f8"}).repeat(3).batch(8),
    "needs": lambda ds: ds.map(kept).map(kept, num_cpus=2).batch(7),
}


def ids(found: list[dict[str, Any]]) -> Counter[int]:
    """How often each id has come."""
    return Counter(np.concatenate([np.atleast_1d(each["id"]) for each in found]).tolist())


@pytest.mark.sample(5)
@pytest.mark.law
@pytest.mark.parametrize("shape", SHAPES)
@given(st.data())
def test_every_row_comes_once_from_any_position(
    tmp_path_factory: pytest.TempPathFactory, shape: str, data: st.DataObject
) -> None:
    node = SHAPES[shape](dml.range(ROWS, atom_rows=40))._node
    draw = st.integers(0, 1 << 30)
    way = RunWay(
        threads=data.draw(st.sampled_from([1, 2, 4])),
        target_bytes=data.draw(st.sampled_from([1, 300, 1 << 20])),
        fuzz=data.draw(st.none() | draw),
        slices=data.draw(st.none() | draw),
        prefetch=data.draw(st.sampled_from([0, 2])),
        free=True,
    )
    cache = tmp_path_factory.getbasetemp()
    expected = ids(list(elements(node, RunWay(), cache)))
    found: list[dict[str, Any]] = []
    state: dict[str, Any] | None = None
    stops = data.draw(st.lists(st.integers(0, 60), max_size=4))
    for stop in [*stops, 10_000]:
        # a run that keeps the order goes on from such a position, too
        each = way if data.draw(st.booleans()) else RunWay(threads=2)
        with elements(node, each, cache, state=state) as it:
            found += islice(it, stop)
            state = json.loads(json.dumps(it.state_dict()))
    assert ids(found) == expected


class Held:
    """A function that waits for a permit where the id is ``key``, and notes its calls."""

    def __init__(self, key: int) -> None:
        self.key, self.permit, self.calls = key, threading.Event(), list[int]()

    def __call__(self, row: Row) -> Row:
        self.calls.append(row["id"])
        if row["id"] == self.key:
            self.permit.wait(60)
        return {"id": row["id"]}


def one_by_one(ds: Dataset, cache: Path, workers: int = 4) -> Elements:
    """A run on threads whose slices have one row each."""
    return sliced(ds, cache, 1, workers)


def sliced(ds: Dataset, cache: Path, rows: int, workers: int = 2) -> Elements:
    """A run on threads whose slices have ``rows`` rows each."""
    run = streaming(ds._node, RunWay(threads=workers, free=True), cache)
    cutting = Cutting(workers, 1 << 20, draw=lambda: rows)
    return Elements(dataclasses.replace(run, cutting=cutting), 0, Unaccounted())


def test_one_row_holds_up_no_other(tmp_path: Path) -> None:
    fn = Held(70)
    ds = dml.range(ROWS).map(fn, schema={"id": "int64"})
    with one_by_one(ds, tmp_path) as it:
        first = [next(it)["id"] for _ in range(ROWS - 1)]
        fn.permit.set()
        assert sorted(first) == [n for n in range(ROWS) if n != 70]
        assert [row["id"] for row in it] == [70]


def test_nothing_is_called_again_but_what_was_not_handed_on(tmp_path: Path) -> None:
    fn = Held(5)
    ds = dml.range(ROWS).map(fn, schema={"id": "int64"})
    with one_by_one(ds, tmp_path) as it:
        first = [next(it)["id"] for _ in range(100)]
        state = it.state_dict()
        fn.permit.set()
    fn.calls.clear()
    again = one_by_one(ds, tmp_path)
    again.load_state_dict(state)
    rest = [row["id"] for row in again]
    assert sorted(first + rest) == list(range(ROWS))
    assert not set(first) & set(rest)
    assert sorted(set(fn.calls)) == sorted(rest)


def test_a_position_has_few_spans(tmp_path: Path) -> None:
    even = threading.Event()

    def fn(row: Row) -> Row:
        if row["id"] % 2 == 0:
            even.wait(60)
        return {"id": row["id"]}

    workers = 2 * MOST_SPANS + 20
    ds = dml.range(400).map(fn, schema={"id": "int64"})
    with one_by_one(ds, tmp_path, workers) as it:
        found = [next(it)["id"] for _ in range(MOST_SPANS)]
        spans = it.state_dict()["position"]["in"]["free"]["given"]
        even.set()
        found += [row["id"] for row in it]
    assert MOST_SPANS // 2 < len(spans) <= MOST_SPANS + 1
    assert sorted(found) == list(range(400))


def test_an_error_comes_behind_all_rows_before_it() -> None:
    def fn(row: Row) -> Row:
        if row["id"] == 90:
            raise ValueError("ninety")
        return {"id": row["id"]}

    ds = dml.range(ROWS).map(fn, schema={"id": "int64"})
    found = list[int]()
    with (
        pytest.raises(UDFError, match="ninety"),
        iter(ds.with_options(executor="threads", num_workers=4, **FREE)) as it,
    ):
        found.extend(row["id"] for row in it)
    assert set(range(90)) <= set(found)
    assert len(found) == len(set(found))


FAILING = set[int]()


def flaky(row: Row) -> Row:
    """One row for one, but for the ids that fail now."""
    if row["id"] in FAILING:
        raise ValueError("now")
    return {"id": row["id"]}


ABOVE: dict[str, Callable[[Dataset], Dataset]] = {
    "map": lambda ds: ds.map(kept, num_cpus=2),
    "shuffle.map.batch": lambda ds: ds.shuffle(5, seed=1).map(kept).batch(7),
    "batch.map": lambda ds: ds.batch(7).map(doubled),
    "map_batches": lambda ds: ds.map_batches(doubled, batch_size=8, num_cpus=2),
}


@pytest.mark.law
@pytest.mark.parametrize("above", ABOVE)
@settings(deadline=None, max_examples=amount(12, 60))
@given(st.data())
def test_a_run_goes_on_where_its_input_failed(
    tmp_path_factory: pytest.TempPathFactory, above: str, data: st.DataObject
) -> None:
    """In any order of arrival, no row is lost or doubled, and an error is behind what precedes."""
    node = ABOVE[above](dml.range(ROWS, atom_rows=40).map(flaky, schema={"id": "i8"}))._node
    draw = st.none() | st.integers(0, 1 << 30)
    way = RunWay(
        threads=data.draw(st.sampled_from([1, 2, 4])),
        target_bytes=data.draw(st.sampled_from([1, 300, 1 << 20])),
        fuzz=data.draw(draw),
        slices=data.draw(draw),
        free=data.draw(st.booleans()),
    )
    cache, found, state = tmp_path_factory.getbasetemp(), list[dict[str, Any]](), None
    FAILING.clear()
    expected = ids(list(elements(node, RunWay(), cache)))
    stops = st.tuples(st.integers(0, 200), st.sets(st.integers(0, ROWS - 1), max_size=2))
    for stop, failing_now in [*data.draw(st.lists(stops, max_size=3)), (10_000, set[int]())]:
        FAILING.clear()
        FAILING.update(failing_now)
        with elements(node, way, cache, state=state) as it:
            try:
                found.extend(islice(it, stop))
            except UDFError:
                assert above != "map" or set(range(min(failing_now))) <= set(ids(found))
            state = json.loads(json.dumps(it.state_dict()))
    assert ids(found) == expected


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("above", ["batch.map", "shuffle.map.batch"])
def test_rows_that_were_gathered_when_the_input_failed_come_again(
    tmp_path: Path, above: str, *, free: bool
) -> None:
    node = ABOVE[above](dml.range(ROWS, atom_rows=40).map(flaky, schema={"id": "i8"}))._node
    way = RunWay(threads=1, target_bytes=1, slices=1, free=free)
    for failing_now in (36, 40, 100):
        FAILING.clear()
        expected = ids(list(elements(node, way, tmp_path)))
        FAILING.add(failing_now)
        found = list[dict[str, Any]]()
        with elements(node, way, tmp_path) as it:
            with pytest.raises(UDFError):
                found.extend(it)
            state = it.state_dict()
        FAILING.clear()
        with elements(node, way, tmp_path, state=state) as it:
            found += it
        assert ids(found) == expected


def test_an_error_is_behind_the_slice_that_is_made_again(tmp_path: Path) -> None:
    """Half of a slice was delivered; when it is made again, its input fails behind that half."""
    FAILING.clear()
    ds = dml.range(ROWS).map(flaky, schema={"id": "i8"}).map(kept, num_cpus=2, schema=KEPT)
    with sliced(ds, tmp_path, 60) as it:
        first = [each["id"] for each in islice(it, 30)]
        state = it.state_dict()
    assert state["position"]["in"]["free"]["given"] == [[0, 60, 30]]
    FAILING.add(45)
    rest = list[int]()
    again = sliced(ds, tmp_path, 60)
    again.load_state_dict(state)
    with again, pytest.raises(UDFError, match="now"):
        rest.extend(each["id"] for each in again)
    assert [*first, *rest] == list(range(45))


KEPT = {"id": "i8", "x": "f8"}


DYING = """
import os
def dies(row):
    mark = os.path.join(folder, str(row["id"]))
    if row["id"] % every == 2 and not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(9)
    return {"id": row["id"]}
"""


@pytest.mark.law
def test_a_worker_that_dies_costs_and_doubles_no_row(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    kills = 200 if pytestconfig.getoption("--whole") else 8
    space: dict[str, Any] = {"folder": str(tmp_path), "every": 10}
    exec(DYING, space)
    ds = dml.range(10 * kills).map(space["dies"], schema={"id": "int64"}).batch(5)
    ds = ds.with_options(executor="processes", num_workers=2, **FREE)
    assert ids(list(ds)) == Counter(range(10 * kills))
    assert len(os.listdir(tmp_path)) == kills


@pytest.mark.parametrize(
    ("ds", "free"),
    [
        (dml.range(9).map(kept), "Map"),
        (dml.range(9).map(kept).batch(2), "Map"),
        (dml.range(9).map(kept).batch(2).map(doubled), "Map"),
        (dml.range(9).batch(2).map(doubled), "Map"),
        (dml.range(9).map(kept).batch(2).repeat(2), "Map"),
        (dml.range(9).map(kept).shuffle(3).batch(2), ""),
        (dml.range(9).map(kept).take(3).batch(2), ""),
        (dml.range(9).map(kept).with_row_index("n").batch(2), ""),
        (dml.range(9).map(kept).cache().batch(2), ""),
        (dml.range(9).map(kept).sort("x").batch(2), ""),
        (dml.range(9).map(kept).repeat(2), ""),
        (dml.range(9).map(kept).zip(dml.range(9).rename({"id": "n"})).batch(2), ""),
        (dml.range(9).batch(2), ""),
    ],
)
def test_where_order_is_free(ds: Dataset, free: str) -> None:
    plan = optimize(ds._node, 0).plan
    lanes = freed_lanes(plan, stream_lanes(plan), stage_lanes(plan), None)
    found = [lane for lane in lanes.values() if lane.free]
    assert [lane.nodes[0].title().startswith(free) for lane in found] == [True] * bool(free)
    text = ds.with_options(**FREE).explain("physical")
    assert ("elements go out as they are made]" if free else "order is kept") in text
    assert ("elements go out" in text) is bool(free)
    usual = ds.explain("physical")
    assert "elements go out" not in usual
    assert "order is kept" not in usual


def test_order_is_kept_where_all_rows_are_handed_over(tmp_path: Path) -> None:
    ds = dml.range(ROWS).map(kept).with_options(executor="threads", num_workers=4, **FREE)
    assert ds.to_arrow()["id"].to_pylist() == list(range(ROWS))
    assert [row["id"] for row in ds.with_options(executor="sync")] == list(range(ROWS))
    ds.write_parquet(tmp_path / "out")
    assert dml.read_parquet(tmp_path / "out").to_arrow()["id"].to_pylist() == list(range(ROWS))


@given(st.sets(st.integers(0, 60)))
def test_spans_hold_what_was_put_in(numbers: set[int]) -> None:
    spans = joined([Done(n, n + 1) for n in sorted(numbers, reverse=True)])
    assert {n for span in spans for n in range(span.start, span.stop)} == numbers
    assert all(one.stop < two.start for one, two in pairwise(spans))
    assert all(span.given == ALL for span in spans)


def test_a_batch_that_was_given_is_behind_the_position_though_its_task_goes_on(
    tmp_path: Path,
) -> None:
    node = SHAPES["map.batch.map"](dml.range(ROWS, atom_rows=40))._node
    way = RunWay(threads=4, target_bytes=1, slices=2025, free=True)
    expected = ids(list(elements(node, RunWay(), tmp_path)))
    for stop in (5, 15, 15, 15, 19, 19, 19):
        with elements(node, way, tmp_path) as it:
            found = list(islice(it, stop))
            state = json.loads(json.dumps(it.state_dict()))
        with elements(node, way, tmp_path, state=state) as it:
            found += it
        assert ids(found) == expected


def test_delivered_rows_behind_the_inputs_position_are_not_saved_again(tmp_path: Path) -> None:
    """An input that fails twice left spans that began before it: rows came twice after a resume."""
    ds = ABOVE["shuffle.map.batch"](dml.range(ROWS, atom_rows=40).map(flaky, schema={"id": "i8"}))
    way = RunWay(threads=4, target_bytes=300, fuzz=35176, free=True)
    FAILING.clear()
    expected = ids(list(elements(ds._node, RunWay(), tmp_path)))
    for _ in range(20):
        found, state = list[dict[str, Any]](), None
        for stop, failing_now in ((118, {121, 111}), (161, {144, 45}), (10_000, set[int]())):
            FAILING.clear()
            FAILING.update(failing_now)
            with elements(ds._node, way, tmp_path, state=state) as it:
                with suppress(UDFError):
                    found.extend(islice(it, stop))
                state = json.loads(json.dumps(it.state_dict()))
        assert ids(found) == expected
