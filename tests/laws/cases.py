"""What the laws share: a seeded case, the rows of the oracle for it, and the comparison."""

from __future__ import annotations

import dataclasses
import json
import random
from itertools import islice
from pathlib import Path

from dml.errors import DmlError
from dml.expr.node import Node, tree
from dml.testing.draws import Drawn
from dml.testing.equality import difference
from dml.testing.executions import PLAIN, WRITTEN, RunOutcome, RunWay, elements, outcome, random_way
from dml.testing.oracle import Oracle
from dml.testing.strategies import Coverage, pipeline
from dml.testing.strategies_data import DataPool

COVERAGE = Coverage()  # of all random pipelines that were compared; told when tests are over


@dataclasses.dataclass
class Case:
    """A random pipeline, when it is run, and how, beside as it was written."""

    number: int
    drawn: Drawn
    epoch: int
    seed: int
    ways: list[RunWay]

    @property
    def node(self) -> Node:
        return self.drawn.dataset._node

    def wanted(self) -> RunOutcome:
        return outcome(Oracle(self.node, epoch=self.epoch, seed=self.seed).elements())

    def got(self, way: RunWay, cache: Path) -> RunOutcome:
        return outcome(elements(self.node, way, cache, epoch=self.epoch, seed=self.seed))


def case(number: int, pool: DataPool, *, compiled: float = 0.0) -> Case:
    """Case ``number``: the same for ever, but for changes of the generator."""
    draw = random.Random(number)
    drawn = pipeline(draw, pool)
    epoch, seed = draw.choice([0, 0, 1, 5]), draw.choice([0, 3])
    ways = [WRITTEN, PLAIN, random_way(draw, compiled=compiled)]
    return Case(number, drawn, epoch, seed, ways)


def violation(case: Case, cache: Path, wanted: RunOutcome | None = None) -> str:
    """Where the engine differs from the oracle; "" if nowhere."""
    wanted = wanted or case.wanted()
    for way in case.ways:
        found = difference(case.got(way, cache), wanted, optimized=way.rewriting)
        if found:
            return f"case {case.number}, {way}\n{tree(case.node)}\n{found}"
    return ""


def resumption(case: Case, cache: Path) -> str:
    """Where stopping at a random element and going on elsewhere differs from not stopping."""
    draw = random.Random(case.number + 1)
    last = case.ways[-1]
    plain = dataclasses.replace(PLAIN, rewriting=last.rewriting, without=last.without)
    whole = case.got(plain, cache)
    place = draw.randint(0, len(whole.elements))
    first = elements(case.node, last, cache, epoch=case.epoch, seed=case.seed)
    way = dataclasses.replace(random_way(draw), rewriting=last.rewriting, without=last.without)
    try:
        before = list(islice(first, place))
        state = json.loads(json.dumps(first.state_dict()))
    except DmlError:
        return ""  # rows that only the optimized plan never touches
    finally:
        first.close()
    rest = outcome(elements(case.node, way, cache, seed=case.seed, epoch=case.epoch, state=state))
    got = RunOutcome([*before, *rest.elements], rest.error, rest.text)
    found = difference(got, whole, optimized=way.rewriting)
    at = f"case {case.number}, stopped at {place} in {last}, resumed in {way}, {state}"
    return f"{at}\n{tree(case.node)}\n{found}" if found else ""
