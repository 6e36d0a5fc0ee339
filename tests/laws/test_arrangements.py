"""Law: stages, partition sizes and drivers have no effect on results.

Random pipelines are cut into stages wherever that is possible, in partitions of any size, and are
compared with the oracle. A state saved under one arrangement is resumed under another.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dml.ops.cache.stored import settled_epochs
from dml.optimize.phases import optimize
from dml.optimize.search.arrangement_space import cut, must_begin
from dml.testing.executions import RunWay
from dml.testing.strategies_data import DataPool
from tests.laws.cases import Case, case, resumption, violation


def arranged(number: int, pool: DataPool, workers: int = 0) -> Case:
    """A random case, the last of whose ways is cut at random, in partitions of any size."""
    found = case(number, pool)
    draw = random.Random(number)
    size = draw.choice([1, 200, 3000, 1 << 24])
    cuts = draw.randrange(1 << 30)
    found.ways = [
        dataclasses.replace(found.ways[-1], cuts=cuts, target_bytes=size, workers=workers)
    ]
    return found


def stages(way: RunWay, case_: Case) -> int:
    """How many stages the plan could have."""
    made = optimize(case_.node, case_.seed, rewriting=way.rewriting, without=way.without)
    return len(made.plan.on_blocks)


@pytest.mark.law
def test_random_pipelines_in_any_arrangement_equal_the_oracle(
    many: Callable[[int, int], int], pool: DataPool, cache: Path
) -> None:
    several = 0
    for number in range(6_000_000, 6_000_000 + many(22, 5000)):
        found = arranged(number, pool)
        several += stages(found.ways[0], found) > 2
        assert not violation(found, cache)
        assert not resumption(found, cache)
    assert several > many(3, 700)


@pytest.mark.law
@pytest.mark.cluster
def test_random_pipelines_in_any_arrangement_of_processes_equal_the_oracle(
    many: Callable[[int, int], int], pool: DataPool, cache: Path
) -> None:
    for number in range(7_000_000, 7_000_000 + many(5, 200)):
        assert not violation(arranged(number, pool, workers=2), cache)


def plans(pool: DataPool) -> Iterator[Case]:
    return (case(number, pool) for number in range(6_100_000, 6_100_060))


def test_cutting_keeps_operators_names_and_where_stages_must_begin(pool: DataPool) -> None:
    for each in plans(pool):
        plan = optimize(each.node, each.seed).plan
        assert cut(plan, must_begin(plan)) is plan
        # what is stored unit by unit stays where units are read, with what lies below
        anywhere = range(1 + settled_epochs(plan.on_blocks[1:]), len(plan.on_blocks))
        made = cut(plan, range(1, len(plan.on_blocks)))
        assert made.on_blocks == plan.on_blocks
        assert all(len(link.steps) == 1 for link in made.links)
        assert (made.name, made.fingerprint) == (plan.name, plan.fingerprint)
        assert made.stream is plan.stream
        assert must_begin(made) == tuple(anywhere)
        back = cut(made, must_begin(plan))
        assert back.stage.steps == plan.stage.steps
        assert [link.steps for link in back.links] == [link.steps for link in plan.links]
