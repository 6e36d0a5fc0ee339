"""Test that a pipeline runs without each feature, delivers the same, and is measured in turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dml
from dml.api.ablation import ALL, FEATURES, ablation, in_turns, run_once, without_each
from dml.data.stream_hash import stream_hash
from dml.errors import PlanError


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": [row["id"] * 2] * (row["id"] % 3)}


def cached() -> dml.Dataset:
    rows = dml.range(40).cache(tier="disk").map(doubled).cache().shuffle(8, seed=1)
    return rows.cache().concat(rows.take(5)).padded_batch(7).epoch(0)


def test_all_ways_deliver_the_same(tmp_path: Path) -> None:
    ds = cached().with_options(cache_dir=str(tmp_path))
    expected = stream_hash(ds)
    ways = {name: way for name, way in without_each(ds).items() if not isinstance(way, str)}
    assert {"parallel compute", "caching", "static optimization", ALL} <= ways.keys()
    assert {name: stream_hash(way) for name, way in ways.items()} == dict.fromkeys(ways, expected)


def test_caches_are_left_out_everywhere() -> None:
    ds = cached()
    found = without_each(ds)
    for name in ("caching", ALL):
        way = found[name]
        assert not isinstance(way, str)
        assert "Cache(" not in way.explain("written")
    assert ds.explain("written").count("Cache(") > 2


@pytest.mark.parametrize(
    ("options", "name", "why"),
    [
        ({}, "parallel I/O", "parallel compute"),
        ({}, "no intra-op parallelism", "no option"),
        ({}, "non-determinism", "deterministic=True"),
        ({}, "caching", "no cache()"),
        ({"executor": "sync"}, "parallel compute", "one worker"),
        ({"num_workers": 1}, "parallel compute", "one worker"),
        ({"executor": "distributed"}, "parallel compute", "cluster"),
        ({"prefetch": 0}, "software pipelining", "prefetch=0"),
        ({"optimize": False}, "static optimization", "optimize=False"),
    ],
)
def test_a_feature_that_cannot_be_off_has_a_reason(
    options: dict[str, Any], name: str, why: str
) -> None:
    found = without_each(dml.range(3).with_options(**options))
    assert [*found] == [*FEATURES]
    assert why in str(found[name])


def test_free_order_and_autocache_can_be_off() -> None:
    ds = dml.range(3).with_options(deterministic=False, autocache=True)
    found = without_each(ds)
    assert not isinstance(found["non-determinism"], str)
    assert not isinstance(found["caching"], str)


def test_turns_begin_with_another_way_each() -> None:
    order: list[str] = []

    class Way:
        def __init__(self, name: str) -> None:
            self.name = name

        def __iter__(self) -> Any:
            order.append(self.name)
            yield from range(5)

    found = in_turns({name: Way(name) for name in "abcd"}, turns=3, take=4)
    assert "".join(order) == "abcd" + "abcd" + "dabc" + "cdab"
    assert {turn.elements for turn in found.values()} == {4}
    assert all(turn.seconds > 0 for turn in found.values())
    order.clear()
    in_turns({name: Way(name) for name in "ab"}, turns=3, until=0.0)
    assert len(order) == 4, "the first turn is always run"


def test_processor_seconds_of_worker_processes_count() -> None:
    def busy(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": sum(range(2_000_000)) + row["id"]}

    ds = dml.range(8).map(busy, pure=True).with_options(executor="processes", num_workers=1)
    found = run_once(ds.epoch(0))
    assert found.elements == 8
    assert found.cpu_s > 0.05, "eight sums of two million numbers, in another process"


def test_an_endless_pipeline_needs_a_number() -> None:
    ds = dml.range(3).repeat().batch(2)
    with pytest.raises(PlanError, match=r"(?s)endless.*--take 1000"):
        ablation(ds, turns=1)
    best, kept = ablation(ds, 1, take=4, each_off=False)
    assert (best["nothing"].elements, kept) == (4, {})


def test_what_a_step_needs_stays() -> None:
    ds = dml.range(6).map(doubled, num_cpus=2).with_options(num_workers=2)
    best, kept = ablation(ds.epoch(0), turns=1)
    assert "needs cpu=2" in kept["parallel compute"]
    assert "software pipelining" in best
    with pytest.raises(PlanError, match="needs cpu=3"):
        ablation(dml.range(6).map(doubled, num_cpus=3).with_options(num_workers=2), turns=1)
