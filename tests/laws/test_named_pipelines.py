"""Law: named pipelines give one hash however they run, with bounded states and work."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml.api.dataset import Dataset
from dml.data.row_slicing import SETTLING_ROWS
from dml.data.stream_hash import stream_hash
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.tables import Unaccounted
from dml.physical.lanes import Lane, stage_lanes, stream_lanes
from dml.physical.plan import Plan
from dml.testing.equality import difference
from dml.testing.executions import PLAIN, WRITTEN, RunWay, elements, outcome, streaming
from dml.testing.oracle import Oracle
from dml.testing.pipelines import NAMED
from tests.laws.other_process import asked
from tests.vectors.make_streams import read, states, units_of

STATE_BYTES = 4096
SIZES = (1, 3000, 1 << 20)
WAYS = {
    "written": WRITTEN,
    **{f"sync, {n} B": RunWay(target_bytes=n) for n in SIZES},
    **{f"{t} threads, {n} B": RunWay(threads=t, target_bytes=n) for t in (1, 2, 4) for n in SIZES},
    "ahead": RunWay(threads=2, target_bytes=3000, prefetch=4),
    "spilling": RunWay(budget=1),
    "fuzzed": RunWay(threads=4, target_bytes=1, fuzz=1),
    "compiled": RunWay(kernels="compiled"),
    "swapped": RunWay(kernels="swap-at-block-2", threads=2, target_bytes=3000),
    "demoted": RunWay(kernels="demote-at-block-1"),
}


@pytest.fixture(params=NAMED)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def dataset(name: str, data: Path) -> Dataset:
    return NAMED[name].make(data)


def hash_of(dataset: Dataset, way: RunWay, cache: Path) -> str:
    return stream_hash(elements(dataset._node, way, cache))


def test_the_oracle_says_what_is_delivered(dataset: Dataset, cache: Path) -> None:
    for epoch in (0, 3):
        wanted = outcome(Oracle(dataset._node, epoch=epoch).elements())
        got = outcome(elements(dataset._node, PLAIN, cache, epoch=epoch))
        assert not wanted.error
        assert wanted.elements
        assert not difference(got, wanted, optimized=False)


def ways_of(name: str) -> list[str]:
    """Of a sample: four ways, other ones for each pipeline; and every sixth pipeline compiled."""
    number = [*NAMED].index(name)
    compiled = [way for way, how in WAYS.items() if how.kernels != "numpy"]
    others = [way for way in WAYS if way not in compiled]
    found = [others[(4 * number + i) % len(others)] for i in range(4)]
    return found if number % 6 else [*found, compiled[number // 6 % len(compiled)]]


def test_all_ways_are_in_the_sample() -> None:
    assert {way for name in NAMED for way in ways_of(name)} == {*WAYS}


@pytest.mark.sample(7)
def test_every_way_has_one_stream_hash(
    name: str, dataset: Dataset, cache: Path, whole: bool
) -> None:
    wanted = read("stream_hashes")[name]
    for way in WAYS if whole else ways_of(name):
        assert hash_of(dataset, WAYS[way], cache) == wanted, way


def test_doors_deliver_what_the_ways_do(name: str, dataset: Dataset) -> None:
    wanted = read("stream_hashes")[name]
    made = dataset.with_options(telemetry_dir="off", num_workers=2, kernels="numpy")
    assert stream_hash(iter(made)) == wanted


def places(count: int, sampled: Callable[[list[int], int], list[int]]) -> list[int]:
    return sorted({0, count, *sampled(list(range(count + 1)), 3)})


@pytest.mark.sample(10)
def test_restored_at_any_place_it_gives_the_rest(
    dataset: Dataset, cache: Path, sampled: Callable[[list[int], int], list[int]]
) -> None:
    out, found = states(dataset, cache)
    for number, place in enumerate(places(len(out), sampled)):
        way = list(WAYS.values())[number % 16]
        way = dataclasses.replace(way, rewriting=True)  # a state belongs to a plan
        rest = list(elements(dataset._node, way, cache, state=found[place]))
        assert stream_hash(rest) == stream_hash(out[place:]), (place, way)


def test_a_restored_iterator_is_saved_and_restored_again(dataset: Dataset, cache: Path) -> None:
    out, found = states(dataset, cache)
    middle = len(out) // 3
    second = elements(dataset._node, PLAIN, cache, state=found[middle])
    more = list(islice(second, len(out) // 3))
    third = list(elements(dataset._node, PLAIN, cache, state=second.state_dict()))
    assert stream_hash([*out[:middle], *more, *third]) == stream_hash(out)


def test_restored_in_a_new_process(
    data: Path, cache: Path, sampled: Callable[[list[int], int], list[int]]
) -> None:
    request: list[Any] = []
    wanted: list[str] = []
    for name, named in NAMED.items():
        out, found = states(named.make(data), cache)
        for place in sampled(list(range(len(out) + 1)), 2):
            request.append([name, found[place]])
            wanted.append(stream_hash(out[place:]))
    assert asked("rests", folder=str(data), cache=str(cache), states=request) == wanted


def test_without_new_instructions_of_the_cpu(data: Path, cache: Path) -> None:
    wanted = read("stream_hashes")
    environment = {"NPY_DISABLE_CPU_FEATURES": " ".join(disabled())}
    assert asked("hashes", environment, folder=str(data), cache=str(cache)) == wanted


def disabled() -> list[str]:
    """What this NumPy chooses while it runs, and this machine has."""
    core = importlib.import_module("numpy._core._multiarray_umath")
    return [feature for feature in core.__cpu_dispatch__ if core.__cpu_features__.get(feature)]


def test_state_is_small_and_what_was_declared(name: str, dataset: Dataset, cache: Path) -> None:
    _, found = states(dataset, cache)
    plan = streaming(dataset._node, PLAIN, cache).plan
    declared = sum(node.resume_cost.state_bytes for node in plan.stream)
    assert declared <= NAMED[name].state_bytes
    for state in found:
        assert len(json.dumps(state)) <= STATE_BYTES
        lanes = sum(lane.sections for lane in lanes_of(plan))
        assert len(json.dumps(state["position"])) <= 64 + 2 * declared + 32 * lanes


def test_resuming_reads_no_more_than_was_declared(
    name: str, dataset: Dataset, cache: Path, sampled: Callable[[list[int], int], list[int]]
) -> None:
    out, found = states(dataset, cache)
    for place in sampled(list(range(len(out))), 4):
        run = streaming(dataset._node, RunWay(target_bytes=1), cache)
        iterator = Elements(run, 0, Unaccounted())
        iterator.load_state_dict(found[place])
        rows = max(len(np.atleast_1d(column)) for column in next(iterator).values())
        read = run.tallies.total()._cells[0].rows_out
        iterator.close()
        # where functions are called: rows by which types settle, and those of slices under way,
        # which are no more than were handed on
        unsettled = bool(lanes_of(run.plan)) and not found[place]["schemas"]
        under_way = 2 * (NAMED[name].work_rows + rows + 2) * bool(lanes_of(run.plan))
        ahead = under_way + SETTLING_ROWS * unsettled
        assert read <= NAMED[name].work_rows + ahead, place


def lanes_of(plan: Plan) -> list[Lane]:
    return [*stage_lanes(plan), *stream_lanes(plan).values()]


def test_cuts_and_positions_are_the_committed_ones(
    name: str, dataset: Dataset, cache: Path
) -> None:
    wanted = read("cuts")[name]
    source = dataset._node.chain()[0]
    assert units_of(source) == wanted["units"]
    _, found = states(dataset, cache)
    assert [state["position"] for state in found[:5]] == wanted["positions"]
