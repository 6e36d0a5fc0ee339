"""Law: pipelines deliver the same bytes on every executor as on threads."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dml.data.stream_hash import stream_hash
from dml.testing.executions import RunWay, elements
from dml.testing.pipelines import NAMED
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case, violation
from tests.vectors.make_streams import read, states

SIZES = (1, 3000, 1 << 20)
PROCESSES = {
    f"{n} processes, {size} B{'' if rewriting else ', as written'}": RunWay(
        workers=n, target_bytes=size, rewriting=rewriting
    )
    for n in (1, 2)
    for size in SIZES
    for rewriting in (True, False)
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", NAMED)
def test_named_pipelines_in_processes(name: str, data: Path, cache: Path, whole: bool) -> None:
    wanted = read("stream_hashes")[name]
    node = NAMED[name].make(data)._node
    turn = [*NAMED].index(name) % len(PROCESSES)  # each pipeline in one way, all ways in turn
    for way in [*PROCESSES] if whole else [[*PROCESSES][turn]]:
        assert stream_hash(elements(node, PROCESSES[way], cache)) == wanted, way


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", NAMED)
def test_restored_in_processes_it_gives_the_rest(
    name: str, data: Path, cache: Path, sampled: Callable[[list[int], int], list[int]]
) -> None:
    node = NAMED[name].make(data)._node
    out, found = states(NAMED[name].make(data), cache)
    for place in sampled(list(range(len(out) + 1)), 1):
        rest = list(elements(node, RunWay(workers=2, target_bytes=3000), cache, state=found[place]))
        assert stream_hash(rest) == stream_hash(out[place:]), place


def test_random_pipelines_in_processes(
    pool: DataPool, cache: Path, many: Callable[[int, int], int]
) -> None:
    for number in range(7_000_000, 7_000_000 + many(10, 500)):
        one, draw = case(number, pool), random.Random(number)
        ways = draw.sample(list(PROCESSES.values()), 2)
        one.ways = [replace(way, fuzz=draw.choice([None, number])) for way in ways]
        found = violation(one, cache)
        assert not found, found
