"""Law: random trees of operators in little memory neither stall nor exceed their limit.

A simulated driver (``worlds``), whose slices end in any order, runs each tree. The rows are
compared with those of an ordinary run.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dml.api.dataset import Dataset
from dml.errors import DmlError
from dml.exec.scheduler import core, policy
from dml.exec.slicing import sliced_flow
from dml.expr.flow import CHUNK, Flow
from dml.expr.node import Node
from dml.expr.node import tree as shown
from dml.testing.executions import RunWay, streaming
from tests.laws.trees import Functions, tree
from tests.laws.worlds import StuckError, World, head_bytes, placed

SAMPLE, ALL, BLOCK = 150, 10_000, 50
LIMITS = (1.0, 1.0, 1.5, 2.0, 3.0, 6.0, 1000.0)  # slices of a head
EVERY = 1 << 40
# Who asks for rows may stop before their end, or has them from an earlier run.
ENDING = {"Take", "TakeWhile", "Zip", "Skip", "Shard", "Cache"}


@dataclasses.dataclass
class Ran:
    """The ids of what came out, and the error that ended it."""

    ids: list[tuple[int, int]]
    error: str = ""


class Tree:
    """Tree ``number``, and how it is run."""

    def __init__(self, number: int) -> None:
        self.draw, self.calls = random.Random(number), 0
        self.node: Node = self._drawn()._node
        self.shown = f"tree {number}\n{shown(self.node)}"

    def _drawn(self) -> Dataset:
        while True:
            try:
                return tree(self.draw, Functions(self._called), self.draw.randint(1, 6))
            except DmlError:  # it is refused: another one
                pass

    def _called(self) -> None:
        self.calls += 1

    def usual(self, cache: Path) -> Ran:
        return pulled(streaming(self.node, RunWay(slices=1, kept_bytes=0), cache).flow(0, None))

    def run(self, cache: Path, most: int) -> tuple[Ran, World]:
        """What comes out in another world, and that."""
        way = RunWay(target_bytes=self.draw.choice([2000, 6000, 20_000]), kept_bytes=0)
        run = streaming(self.node, way, cache)
        limit_bytes = int(head_bytes(run) * self.draw.choice(LIMITS))
        world = World(self.draw, self.draw.choice([2, 2, 3, 4, 8]), limit_bytes)
        return pulled(placed(run, world).flow(0, None), most), world

    def counted(self) -> bool:
        """Whether functions are called for every row of every run."""
        return not ENDING & {type(node).__name__ for node in self.node.walk()}


def pulled(flow: Flow, most: int = EVERY) -> Ran:
    """Up to ``most`` rows, or all, or those before an error."""
    found = Ran([])
    try:
        while len(found.ids) < most:
            block = flow.pull(min(CHUNK, most - len(found.ids)))
            if block is None:
                break
            high, low = block.ids.arrays()
            found.ids += zip(high.tolist(), low.tolist(), strict=True)
    except DmlError as error:
        found.error = f"{type(error).__name__} {error}"
    finally:
        flow.close()
    return found


def violations(number: int, cache: Path) -> Iterator[str]:
    """What is wrong with a tree."""
    made = Tree(number)
    usual, calls = made.usual(cache), made.calls
    most = EVERY if made.draw.random() < 0.8 else made.draw.randint(0, len(usual.ids))
    made.calls = 0
    try:
        found, world = made.run(cache, most)
    except StuckError as error:
        yield f"stuck: {error}\n{made.shown}"
        return
    limit_bytes = world.ledger.limit_bytes
    if found.ids != usual.ids[:most] or (most == EVERY and found.error != usual.error):
        yield f"other rows: {found}\nfor {usual}\n{made.shown}"
    if most == EVERY and made.counted() and not usual.error and made.calls != calls:
        yield f"{made.calls} calls for {calls}\n{made.shown}"
    if world.over:
        yield f"accounted for: {world.over}, {limit_bytes} allowed\n{made.shown}"
    if not world.forced and world.most_bytes > limit_bytes + world.unforeseen:
        yield f"{world.most_bytes} at most, {limit_bytes} allowed\n{made.shown}"
    if world.used_bytes or world.ledger.free != world.ledger.total:
        yield f"something is held once it is over\n{made.shown}"


@pytest.fixture(autouse=True)
def _waits(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """In every other block whoever waits has waited for long at once."""
    block = getattr(request.node, "callspec", None)
    if block is not None and block.params.get("block", 0) % 2:
        monkeypatch.setattr(sliced_flow, "LONG_S", 0.0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "block" in metafunc.fixturenames:
        trees = ALL if metafunc.config.getoption("--whole") else SAMPLE
        metafunc.parametrize("block", range(trees // BLOCK))


@pytest.mark.law
def test_no_tree_is_stuck_and_none_is_accounted_for_more_than_its_limit(
    block: int, cache: Path
) -> None:
    for number in range(block * BLOCK, (block + 1) * BLOCK):
        assert not list(violations(number, cache))


def words(cache: Path) -> set[str]:
    """The first word of what is wrong with some of the trees."""
    found = (each for number in range(SAMPLE // 3) for each in violations(number, cache))
    return {each.split(maxsplit=1)[0] for each in found}


@pytest.mark.law
def test_a_core_that_never_forced_its_head_would_be_stuck(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core.Core, "_forced", lambda _: None)
    assert "stuck:" in words(cache)


@pytest.mark.law
def test_slices_that_are_admitted_whatever_they_take_would_be_seen(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "admits", lambda *_: True)
    assert "accounted" in words(cache)
