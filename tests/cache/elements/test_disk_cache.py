"""Test caches on disk that are empty, partial or complete: their rows are always right."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.expr.node import Node
from dml.testing.draws import Drawn
from dml.testing.equality import difference
from dml.testing.executions import RunOutcome, RunWay, elements, outcome
from dml.testing.oracle import Oracle
from dml.testing.strategies import pipeline
from dml.testing.strategies_data import DataPool
from tests.cache.elements.kept_cases import ROWS, logged, places, small_parts
from tests.expr.checks import node_of, until_error
from tests.sampling import amount

__all__ = ["small_parts"]
pytestmark = pytest.mark.usefixtures("small_parts")


# ---------------------------------------------------------------------------- whatever is drawn


@pytest.mark.sample(3)
@pytest.mark.law
@pytest.mark.parametrize("part", range(6))
def test_any_pipeline_is_what_the_oracle_says_over_cold_half_filled_and_warm_stores(
    tmp_path: Path, part: int
) -> None:
    pool, tried = DataPool(tmp_path), 0
    for number in range(part * 40, part * 40 + amount(24, 40)):
        draw = random.Random(f"on disk {number}")
        node, rewriting = _drawn(draw, pool), draw.random() < 0.7
        if node is None:
            continue
        tried += 1

        def way(draw: random.Random = draw, rewriting: bool = rewriting) -> RunWay:
            target = draw.choice([1, 300, 4096])
            return RunWay(rewriting=rewriting, target_bytes=target, stores="store")

        wanted = outcome(Oracle(node, epoch=0, seed=0).elements())
        root = tmp_path / str(number)
        begun = elements(node, way(), root)
        list(itertools.islice(until_error(begun), draw.randint(0, 12)))
        if draw.random() < 0.5:
            begun.close()
        states, given_ = [], list[dict[str, Any]]()
        for turn in range(2):
            run = elements(node, way(), root)
            states, given_ = [run.state_dict()], []
            for element in until_error(run):
                given_.append(element)
                states.append(json.loads(json.dumps(run.state_dict())))
            whole = outcome(elements(node, way(), root))
            assert not difference(whole, wanted, optimized=rewriting), (number, turn)
        for at in draw.sample(range(len(states)), min(len(states), 4)):
            where = draw.choice([root, tmp_path / f"{number} {at}"])
            rest = outcome(elements(node, way(), where, state=states[at]))
            got = RunOutcome([*given_[:at], *rest.elements], rest.error, rest.text)
            assert not difference(got, wanted, optimized=rewriting), (number, at)
    assert tried > amount(3, 5)


def _drawn(draw: random.Random, pool: DataPool) -> Node | None:
    """A pipeline with a cache on disk."""
    drawn: Drawn = pipeline(draw, pool)
    if drawn.used and "cache" not in drawn.used and drawn.dataset.schema.known:
        drawn.then(drawn.dataset.cache("disk"))
    node = node_of(drawn.dataset)
    found = any(getattr(each, "tier", "") == "disk" for each in node.walk())
    return node if found else None


# --------------------------------------------------------------------------------- what is spared


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_later_epochs_and_other_pipelines_call_nothing(tmp_path: Path, executor: str) -> None:
    ds, fn = logged(tmp_path, executor=executor)
    cached = ds.cache("disk")
    first = places(cached)
    assert sorted(first) == list(range(ROWS))
    assert fn.calls == ROWS
    assert places(cached) == places(cached.epoch(3)) == first
    assert places(cached.repeat(2)) == 2 * first
    again, _ = logged(tmp_path)
    other = again.cache("disk").filter(dml.col("x") % 2 == 0).batch(3)
    assert np.concatenate([b["x"] for b in other]).tolist() == [x for x in first if x % 2 == 0]
    assert fn.calls == ROWS
    kept = cached.stats().records[-1]
    assert (kept["kept_elements"], kept["cache_misses"]) == (ROWS, 0)
    assert kept["cache_hits"] > 10
    assert kept["kept_bytes"] > ROWS * 24
    assert f"keeps all {ROWS} elements" in cached.explain("physical")
    (status,) = cached.cache_status()
    assert (status.tier, status.rows, status.whole) == ("disk", ROWS, True)
    assert status.where == str(tmp_path / "store")
    assert status.where in cached.explain("physical")
    cached.clear_cache()
    assert cached.cache_status()[0].rows == 0
    assert places(cached) == first
    assert fn.calls == 2 * ROWS


@pytest.mark.law
def test_a_broken_loop_leaves_what_it_saw_and_the_next_one_goes_on(tmp_path: Path) -> None:
    ds, fn = logged(tmp_path, executor="sync", prefetch=0)
    cached = ds.cache("disk")
    seen: list[int] = []
    for n in (1, 30, 60):
        run = iter(cached)
        seen = [next(run)["x"] for _ in range(n)]
        run.close()
    before = fn.calls
    whole = places(cached)
    assert whole[:60] == seen
    # What a shuffle holds is made again where it is opened again. How far the loops looked ahead
    # is left open: that depends on how long a row takes.
    assert fn.calls - before <= ROWS - len(seen) + 30
    after = fn.calls
    assert places(cached) == whole
    assert fn.calls == after


@pytest.mark.law
def test_nothing_kept_is_held_in_memory(tmp_path: Path) -> None:
    ds, _ = logged(tmp_path)
    on_disk = ds.cache("disk").with_options(memory_limit="64MiB")
    in_memory = ds.cache().with_options(memory_limit="64MiB")
    held = [dict(each.memory_report().plans[0]) for each in (on_disk, in_memory)]
    assert [each["caches"] for each in held] == [0, 32 << 20]


@pytest.mark.law
@pytest.mark.parametrize("batched", [False, True])
def test_arrays_lie_over_the_store(tmp_path: Path, *, batched: bool) -> None:
    ds = dml.range(5000).shuffle(100).select("id")
    ds = (ds.batch(500) if batched else ds).cache("disk")
    way = RunWay(stores="store")
    list(elements(node_of(ds), way, tmp_path))
    flow = dml.testing.executions.streaming(node_of(ds), way, tmp_path).flow(0, None)
    block = flow.pull(1 << 20)
    assert block is not None
    values = block["id"].values
    assert not values.flags.writeable
    assert not values.flags.owndata
    flow.close()


# ------------------------------------------------------------------------------ several at once


@pytest.mark.law
def test_iterators_of_a_thread_follow_each_other(tmp_path: Path) -> None:
    ds, fn = logged(tmp_path, executor="sync", prefetch=0)
    cached = ds.cache("disk")
    runs = [iter(cached) for _ in range(3)]
    got = [[row["x"] for row in rows] for rows in zip(*runs, strict=True)]
    assert all(len(set(rows)) == 1 for rows in got)
    assert sorted(rows[0] for rows in got) == list(range(ROWS))
    assert fn.calls == ROWS


@pytest.mark.law
def test_iterators_at_any_pace_have_every_row_once(tmp_path: Path) -> None:
    for seed in range(5):
        draw = random.Random(seed)
        ds, fn = logged(tmp_path / str(seed), executor="sync", prefetch=0)
        cached = ds.cache("disk")
        runs = [iter(cached) for _ in range(3)]
        got: list[list[int]] = [[], [], []]
        while left := [n for n, each in enumerate(got) if len(each) < ROWS]:
            turn = draw.choice(left)
            got[turn] += [row["x"] for row in itertools.islice(runs[turn], draw.randint(1, 30))]
        assert got[0] == got[1] == got[2]
        # Whoever goes ahead makes the window again that it is in, and what the others hold unread.
        assert fn.calls < 2 * ROWS
