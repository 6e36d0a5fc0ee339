"""Test ``cache``: its input is computed once, and no bytes depend on that."""

from __future__ import annotations

import json
import pickle
import random
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset
from dml.cache.elements.element_cache import STORE
from dml.data.row_slicing import SETTLING_ROWS
from dml.errors import PlanError
from dml.testing.draws import Drawn
from dml.testing.equality import difference
from dml.testing.executions import RunOutcome, RunWay, elements, outcome
from dml.testing.strategies import pipeline
from dml.testing.strategies_data import DataPool
from tests.expr.checks import QUIET, UNUSED, holds, node_of, numbers, until_error
from tests.sampling import amount


@pytest.fixture(autouse=True)
def _nobody_else_keeps_anything() -> None:
    """Caches of a process share its memory, and other tests' pipelines may be alive."""
    for each in list(STORE.known.values()):
        each.shorten(0)


ROWS = 100


class Calls:
    """A function that cannot be lifted, and how often it was called."""

    def __init__(self) -> None:
        self.count, self.name = 0, uuid.uuid4().hex

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        return {"x": row["x"], "v": np.array([row["x"], -row["x"]]), "s": str(row["x"])}


def counted(n: int = ROWS, **options: Any) -> tuple[Dataset, Calls]:
    """Rows in atoms of 3, through a function that counts and is like no other."""
    calls = Calls()
    return numbers(n).map(calls, fingerprint=calls.name).with_options(**options), calls


def places(ds: Dataset) -> list[int]:
    return [row["x"] for row in ds]


@pytest.mark.law
def test_rows_batches_and_resuming() -> None:
    assert holds(numbers().cache()) == 10
    assert holds(numbers(0).cache()) == 0
    assert holds(numbers().batch(4).cache()) == 3
    assert holds(numbers().shuffle(4).cache().shuffle().batch(3)) == 4
    assert holds(numbers(7).cache().repeat(3).skip(2)) == 19
    assert holds(numbers(5).shuffle().cache().concat(numbers(4).repeat(2).cache())) == 13


@pytest.mark.law
def test_any_pipeline_is_resumed_anywhere_whatever_is_kept(tmp_path: Path) -> None:
    pool, tried = DataPool(tmp_path), 0
    for number in range(amount(200, 600)):
        draw = random.Random(f"cache {number}")
        drawn: Drawn = pipeline(draw, pool)
        if "cache" not in drawn.used:
            continue
        tried += 1
        node, rewriting = node_of(drawn.dataset), draw.random() < 0.7

        def way(draw: random.Random = draw, rewriting: bool = rewriting) -> RunWay:
            kept = draw.choice([0, 3000, 6000, 1 << 20])
            return RunWay(rewriting=rewriting, target_bytes=draw.choice([1, 4096]), kept_bytes=kept)

        whole = outcome(elements(node, way(), UNUSED))
        run = elements(node, way(), UNUSED)
        states, given = [run.state_dict()], list[dict[str, Any]]()
        for element in until_error(run):
            given.append(element)
            states.append(json.loads(json.dumps(run.state_dict())))
        for at in draw.sample(range(len(states)), min(len(states), amount(3, 6))):
            if draw.random() < 0.3:
                drawn.dataset.clear_cache()
            rest = outcome(elements(node, way(), UNUSED, state=states[at]))
            got = RunOutcome([*given[:at], *rest.elements], rest.error, rest.text)
            assert not difference(got, whole, optimized=rewriting), (number, at)
    assert tried > amount(13, 40)


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_later_epochs_call_nothing(executor: str) -> None:
    ds, calls = counted(executor=executor)
    cached = ds.cache()
    shuffled = cached.shuffle(20).batch(7)
    epochs = [np.concatenate([b["x"] for b in shuffled]).tolist() for _ in range(3)]
    assert calls.count == ROWS
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(ROWS))
    assert epochs[0] != epochs[1] != epochs[2]
    assert places(cached.repeat(2)) == 2 * list(range(ROWS))
    assert calls.count == ROWS


def test_what_is_below_is_frozen_at_epoch_0() -> None:
    def drawn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"x": row["x"], "r": rng.random()}

    below = numbers().shuffle().random_map(drawn)
    kept = below.cache()
    first = list(below.epoch(0))
    assert list(kept) == list(kept) == list(kept.epoch(5)) == first
    kept.clear_cache()
    assert list(kept.epoch(3)) == first != list(below.epoch(3))


def test_a_broken_loop_leaves_what_it_saw() -> None:
    ds, calls = counted()
    cached = ds.cache()
    for row in cached.batch(5):
        assert row["x"].tolist() == [0, 1, 2, 3, 4]
        break
    assert places(cached.take(10)) == list(range(10))
    assert calls.count < ROWS
    assert places(cached) == places(cached) == list(range(ROWS))
    ahead = SETTLING_ROWS + 2  # rows that were made when the loop was left, and are made again
    assert ROWS <= calls.count <= ROWS + ahead


@pytest.mark.law
def test_what_does_not_fit_is_computed_again() -> None:
    ds, calls = counted()
    node = node_of(ds.cache())
    way = RunWay(kept_bytes=20_000)
    assert len(list(elements(node, way, UNUSED))) == ROWS
    assert calls.count == ROWS
    assert len(list(elements(node, way, UNUSED))) == ROWS
    assert ROWS < calls.count < 2 * ROWS


@pytest.mark.law
def test_two_iterators_at_once_have_every_row_once() -> None:
    draw = random.Random(3)
    for kept in (0, 20_000, 1 << 20):
        ds, _ = counted()
        node = node_of(ds.cache())
        runs = [elements(node, RunWay(kept_bytes=kept), UNUSED) for _ in "abc"]
        got: list[list[int]] = [[] for _ in runs]
        for _ in range(3 * ROWS):
            turn = draw.choice([n for n, each in enumerate(got) if len(each) < ROWS])
            got[turn].append(next(runs[turn])["x"])
            if draw.random() < 0.02:
                dml.Dataset(node).clear_cache()
        assert got == [list(range(ROWS))] * 3
        assert all(next(run, None) is None for run in runs)


@pytest.mark.law
def test_two_threads_at_once_have_every_row_once() -> None:
    ds, _ = counted(2000, executor="threads", num_workers=2)
    cached = ds.cache()
    got: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: got.append(places(cached.epoch(0)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [list(range(2000))] * 4


def test_delivered_arrays_are_the_callers() -> None:
    data = {
        "i": np.arange(12),
        "f": np.linspace(0, 1, 12),
        "b": np.arange(12) % 2 == 0,
        "v": np.ones((12, 2)),
    }
    for cached in (dml.from_dict(data, atom_rows=4).cache().batch(4),
                   dml.from_dict(data, atom_rows=4).batch(4).cache(),
                   dml.from_dict(data, atom_rows=12).batch(12).cache()):  # fmt: skip
        before = [{k: v.copy() for k, v in b.items()} for b in cached.with_options(**QUIET)]
        for _ in range(2):
            for batch, wanted in zip(cached.with_options(**QUIET), before, strict=True):
                for name, array in batch.items():
                    assert np.array_equal(array, wanted[name])
                    array[...] = 0


def test_delivered_rows_are_the_callers() -> None:
    ds, _ = counted(9)
    cached = ds.cache()
    for _ in range(3):
        for number, row in enumerate(cached):
            assert row["v"].tolist() == [number, -number]
            row["v"][:] = 99


@pytest.mark.law
def test_equal_pipelines_share_and_others_do_not() -> None:
    ds, calls = counted()
    one, other = ds.cache(), ds.filter(dml.col("x") >= 0).cache()
    again = numbers(ROWS).map(calls, fingerprint=calls.name).cache()
    assert places(one) == places(again)
    assert calls.count == ROWS
    assert places(other) == places(one)
    assert calls.count == 2 * ROWS
    assert places(one.with_options(seed=4))
    assert calls.count == 3 * ROWS


def test_columns_that_nothing_above_reads_are_kept_all_the_same() -> None:
    ds, calls = counted()
    cached = ds.cache()
    assert places(cached.select("x")) == list(range(ROWS))
    assert [row["s"] for row in cached] == [str(n) for n in range(ROWS)]
    assert calls.count == ROWS


def test_an_error_comes_at_its_place_every_time() -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["x"], "y": 1 // (7 - row["x"])}

    cached = numbers().map(fails).cache()
    for _ in range(3):
        found = outcome(iter(cached))
        assert [row["x"] for row in found.elements] == list(range(7))
        assert found.error == "UDFError"


def test_types_settled_below_are_known_to_those_above() -> None:
    mixed = numbers().map(lambda row: {"z": [row["x"]] if row["x"] % 2 else [0.5]}).cache()
    above = mixed.map(lambda row: {"z": row["z"], "n": len(row["z"])})
    first = above.to_arrow()
    assert above.to_arrow().equals(first)
    state = (run := iter(above)).state_dict()
    run.close()
    assert list(elements(node_of(above), RunWay(), UNUSED)) == list(above)
    assert state["position"] is None


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path)
    first = dml.read_parquet(path).cache()
    assert places(first) == [1, 2, 3]
    pq.write_table(pa.table({"x": [4, 5, 6]}), path)
    assert places(dml.read_parquet(path).cache()) == [4, 5, 6]


def test_another_process_begins_with_nothing() -> None:
    ds = numbers().cache()
    assert places(ds) == list(range(10))
    sent = pickle.loads(pickle.dumps(ds))
    assert node_of(sent) == node_of(ds)
    assert node_of(sent).anchor.kept == {}  # type: ignore[attr-defined]
    assert places(sent) == list(range(10))


def test_it_is_a_part_of_the_name() -> None:
    ds = numbers().shuffle()
    assert ds.cache().fingerprint() != ds.fingerprint()
    assert ds.cache().fingerprint() == ds.cache().cache().fingerprint() == ds.cache().fingerprint()


def test_a_tier_that_is_not_there_is_refused() -> None:
    with pytest.raises(PlanError, match="no tier 'tape'"):
        numbers().cache(tier="tape")


def test_static_graphs_keep_nothing_and_read_the_first_epoch() -> None:
    ds = numbers(30).shuffle(5).cache().epoch(2)
    tables = [part.compute(scheduler="sync") for part in ds.to_dask()]
    assert pa.concat_tables(tables).to_pydict()["x"] == places(ds)
    with pytest.raises(PlanError, match="several passes"):
        ds.repeat(2).to_dask()


def test_what_is_kept_is_told() -> None:
    ds, _ = counted()
    cached = ds.cache().batch(10)
    assert "keeps the first 0 elements" in cached.explain()
    assert "cache hit " not in cached.explain()
    list(cached)
    kept = cached.stats().records[-2]
    assert (kept["kept_elements"], kept["cache_hits"]) == (ROWS, 0)
    assert kept["kept_bytes"] > ROWS * 24
    list(cached)
    again = cached.stats().records[-2]
    assert again["cache_hits"] >= kept["cache_misses"] - 1 > 0  # of which one was the end
    (line,) = (each for each in cached.explain("physical").splitlines() if "cache hit " in each)
    assert f"keeps all {ROWS} elements" in line
    assert "cache " not in ds.explain("physical")


STEP = {"by": 1}


def stepped(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"] + STEP["by"]}


def moved(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"] + BY}


BY = 1


@pytest.mark.parametrize("fn", [stepped, moved])
def test_what_a_function_did_before_its_global_changed_is_not_taken_for_what_it_does(
    fn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cached() -> Dataset:
        return numbers(4).map(fn).cache()

    first = cached()
    with monkeypatch.context() as patch:
        patch.setitem(STEP, "by", 5)
        patch.setitem(globals(), "BY", 5)
        assert [row["x"] for row in first] == [5, 6, 7, 8]
    assert [row["x"] for row in cached()] == [1, 2, 3, 4]
    assert [row["x"] for row in first] == [1, 2, 3, 4]
