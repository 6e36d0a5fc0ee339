"""Law: where operators run, and how many at once, has no effect on results.

Random pipelines request random resources, so that they run as chains of stages. They are compared
with the oracle, resumed at every batch, and keep their fingerprints.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.optimize.phases import optimize
from dml.testing.equality import difference
from dml.testing.executions import PLAIN, WRITTEN, RunOutcome, RunWay, elements, outcome
from dml.testing.oracle import Oracle
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case, resumption, violation

ASKED = [
    Needs(),
    Needs(num_cpus=2.0),
    Needs(num_cpus=0.5, concurrency=1),
    Needs(concurrency=2),
    Needs(memory=1000),
]


def needing(root: Node, draw: random.Random) -> Node:
    """The same pipeline, whose functions ask for anything that threads have."""
    below, *rest = root.chain()
    for node in rest:
        changes: dict[str, Any] = {node.input_names[0]: below}
        if "needs" in node.field_names:
            changes["needs"] = draw.choice(ASKED)
        below = node.replace(**changes)
    return below


def test_random_pipelines_in_stages_equal_the_oracle(
    many: Callable[[int, int], int], pool: DataPool, cache: Path
) -> None:
    chains = 0
    for number in range(many(30, 1000)):
        found = case(900_000 + number, pool)
        found.drawn.dataset._node = needing(found.node, random.Random(number))
        chains += bool(optimize(found.node, 0).plan.links)
        assert not violation(found, cache)
        assert not resumption(found, cache)
    assert chains > number / 8


HALF = {"by": 2}  # a global that may change: no function that reads it is lifted


def halved(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "half": row["id"] / HALF["by"]}


def some(row: dict[str, Any]) -> Any:
    return ({**row, "part": part} for part in range(row["id"] % 4))


def odd(row: dict[str, Any]) -> bool:
    return any(row["part"] % 2 for _ in range(1))


def sums(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "sum": batch["half"] * 0 + batch["half"].sum()}


def failing(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "inverse": 1 / (64 - row["id"])}


def chain(source: Dataset, needs: list[dict[str, Any]]) -> Dataset:
    first, second, third, fourth = needs
    made = source.filter(col("id") % 5 != 1).map(halved, **first).flat_map(some, **second)
    return made.filter(odd, **third).map_batches(sums, batch_size=3, **fourth)


NEEDS: list[list[dict[str, Any]]] = [
    [{}, {"num_cpus": 2}, {}, {"num_cpus": 2}],
    [{"num_cpus": 2}, {"num_cpus": 2}, {"concurrency": 1}, {"concurrency": 1}],
    [{"concurrency": 1}, {}, {"num_cpus": 2}, {}],
]
WAYS = [
    RunWay(threads=2, target_bytes=1),
    RunWay(threads=3, target_bytes=400, fuzz=5),
    RunWay(threads=0, target_bytes=1 << 20, fuzz=6),
    RunWay(threads=4, target_bytes=150, rewriting=False, prefetch=2),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("needs", NEEDS)
@pytest.mark.parametrize("last", ["batch", "shuffle", "atoms"])
def test_a_chain_gives_the_rest_from_every_batch(
    needs: list[dict[str, Any]], last: str, cache: Path, whole: bool
) -> None:
    ds = chain(dml.range(120, atom_rows=13), needs)
    plain = chain(dml.range(120, atom_rows=13), [{}] * 4)
    ends: dict[str, Callable[[Dataset], Dataset]] = {
        "batch": lambda made: made.batch(4),
        "shuffle": lambda made: made.shuffle(10).batch(4),
        "atoms": lambda made: made.shuffle(window="atoms", size=3).batch(4),
    }
    node, bare = ends[last](ds)._node, ends[last](plain)._node
    assert optimize(node, 0).plan.links
    every = outcome(elements(bare, PLAIN, cache))
    assert not difference(every, outcome(Oracle(bare).elements()), optimized=True)
    # in a sample every fifth, which comes to all pairs of ways all the same
    for number in range(0, len(every.elements) + 1, 1 if whole else 5):
        before, after = WAYS[number % 4], WAYS[(number + 1) % 3]
        first = elements(node, before, cache)
        given = list(islice(first, number))
        state = json.loads(json.dumps(first.state_dict()))
        first.close()
        other = bare if number % 2 else node  # who resumes may ask for something else
        rest = outcome(elements(other, after, cache, state=state))
        got = RunOutcome([*given, *rest.elements], rest.error, rest.text)
        assert not difference(got, every, optimized=True), (number, before, after)


@pytest.mark.parametrize("way", [WRITTEN, PLAIN, *WAYS])
def test_an_error_of_any_stage_comes_after_the_rows_before_it(way: RunWay, cache: Path) -> None:
    source = dml.range(120, atom_rows=13)
    for cpus in (1, 2):
        fails = source.map(failing, num_cpus=cpus)
        for ds in (fails, fails.map(halved, concurrency=1), fails.flat_map(some, concurrency=2)):
            plain = outcome(Oracle(ds._node).elements())
            found = outcome(elements(ds._node, way, cache))
            assert found.error == plain.error == "UDFError"
            assert len(found.elements) == len(plain.elements)
            assert "row 64" in found.text
            assert "failing" in found.text


def test_names_say_what_is_computed_and_not_where() -> None:
    source = dml.range(120, atom_rows=13)
    plain, asked = chain(source, [{}] * 4), chain(source, NEEDS[0])
    assert plain.fingerprint() == asked.fingerprint()
    names = {optimize(ds._node, 0).plan.name for ds in (plain, asked)}
    assert len(names) == 1
