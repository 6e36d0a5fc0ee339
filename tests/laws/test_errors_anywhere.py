"""Law: a run delivers the same rows before the same error, on every executor."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.api.sources.objects import read_datasource
from dml.expr.node import Node, tree
from dml.testing.equality import difference
from dml.testing.executions import RunOutcome, RunWay, elements, outcome, random_way
from dml.testing.strategies_data import DataPool
from tests.laws.failing import Broken, drawn

FAILS = 1 / 3  # of the pipelines


def other(draw: random.Random, way: RunWay) -> RunWay:
    """The same plan, run in any other way; nothing is there of earlier runs."""
    return replace(
        random_way(draw),
        rewriting=way.rewriting,
        without=way.without,
        tried=None,
        stores="",
        kept_bytes=0,
    )


def violation(node: Node, way: RunWay, wanted: RunOutcome, cache: Path) -> str:
    """How a run in some way differs from another one; "" if not at all."""
    got = outcome(elements(node, way, cache))
    found = difference(got, wanted, optimized=False)
    if not found and got.text != wanted.text:
        found = f"{got.text}\ninstead of\n{wanted.text}"
    return f"{way}\n{tree(node)}\n{found}" if found else ""


def test_random_pipelines_fail_alike_wherever_they_run(
    many: Callable[[int, int], int], pool: DataPool, cache: Path
) -> None:
    errors = Counter[str]()
    for number in range(count := many(30, 1500)):
        draw, one = drawn(5_000_000 + number, pool)
        node, way = one.dataset._node, RunWay(rewriting=draw.random() < 0.7, kept_bytes=0)
        wanted = outcome(elements(node, way, cache))
        errors[wanted.error] += 1
        for _ in range(many(2, 3)):
            found = violation(node, other(draw, way), wanted, cache)
            assert not found, f"pipeline {number}, {found}"
    assert count - errors[""] > FAILS * count
    assert {"SourceError", "UDFError", "CastError"} <= {*errors}


@pytest.mark.cluster
def test_random_pipelines_fail_alike_in_processes(
    many: Callable[[int, int], int], pool: DataPool, cache: Path
) -> None:
    for number in range(many(6, 100)):
        draw, one = drawn(6_000_000 + number, pool)
        node, way = one.dataset._node, RunWay(rewriting=draw.random() < 0.7, kept_bytes=0)
        wanted = outcome(elements(node, way, cache))
        found = violation(node, replace(other(draw, way), threads=0, workers=2), wanted, cache)
        assert not found, f"pipeline {number}, {found}"


@pytest.mark.parametrize("above", ["shuffle", "batch", "map"])
def test_an_error_of_the_source_tells_one_place_through_all_functions(above: str) -> None:
    source = Broken(pa.table({"n": np.arange(20)}), [10, 20], [True, True], 5)
    source.wrong = 13
    ds = read_datasource(source).map(lambda row: {"n": row["n"], "t": str(row["n"])})
    verbs: dict[str, Callable[[], dml.Dataset]] = {
        "shuffle": lambda: ds.shuffle(3, seed=1),
        "batch": lambda: ds.batch(3).map(lambda batch: {"n": batch["n"]}),
        "map": lambda: ds.map(lambda row: {"n": row["n"]}, num_cpus=2),
    }
    for executor in ("sync", "threads"):
        made = verbs[above]().with_options(executor=executor, num_workers=2, telemetry_dir="off")
        with pytest.raises(dml.errors.SourceError) as caught:
            list(made)
        assert caught.value.at.endswith("; Broken, 10-1")
