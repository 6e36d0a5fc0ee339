"""Law: a task that is begun again gives the same partitions, in any process.

After a crash, a task begins again in another process, which has processed other rows, and continues
after the partitions that were counted. Partitions must be cut in the same way, whatever a process
has measured before.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dml.cache.parts.entry import EntryName
from dml.cache.rows.run_store import Storing
from dml.cache.store.open_stores import Where
from dml.data import row_slicing
from dml.errors import DmlError
from dml.events import Tally
from dml.exec.tasks import steps
from dml.exec.tasks.job import Job
from dml.exec.tasks.partition import PartitionSizes, Piece, ReadTask
from dml.expr.flow import At
from dml.expr.node import Node
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.ops.cache.stored import Stored, storable
from dml.ops.row import lifted, map_rows
from dml.optimize.fingerprints import asked_names, unnamed
from dml.optimize.phases import optimize
from dml.physical.plan import Plan
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case
from tests.laws.test_stored import above, stored_case

PLENTY = 1 << 40
Told = tuple[int, int, int, int, bool, str]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that an atom of a few rows has several of them."""
    monkeypatch.setattr(lifted, "COMPARED", 2)
    for each in (steps, row_slicing):
        monkeypatch.setattr(each, "CALLS", 3)
    monkeypatch.setattr(map_rows, "SETTLING_ROWS", 3)
    monkeypatch.setattr(row_slicing, "FIRST_STEP", 1)
    monkeypatch.setattr(row_slicing, "PART_BYTES", 40)


def job(node: Node, folder: Path, schemas: dict[str, object]) -> Job:
    """The tasks of the first stage, by a process that has seen nothing."""
    plan = optimize(node, 0).plan
    at = At(0, 0, KernelTiers(folder, "numpy"), schemas, None, PLENTY)  # type: ignore[arg-type]
    return Job(plan.stage, at, PartitionSizes(1, PLENTY))


def told(work: Job, task: ReadTask) -> list[Told]:
    """Where each piece stands, its rows and weight, and what ends it."""
    (start,) = work.starts(Tally)
    pieces: list[Piece] = [piece for made in start(task) for piece in made.value]
    return [_told(piece) for piece in pieces]


def _told(piece: Piece) -> Told:
    rows, weight = (-1, 0) if piece.block is None else (piece.block.n, piece.block.weight)
    error = "" if piece.error is None else str(piece.error)
    return piece.place, piece.atom, rows, weight, piece.ends, error


def test_tasks_begun_again_give_the_same_partitions(
    pool: DataPool, cache: Path, many: Callable[[int, int], int]
) -> None:
    compared = 0
    for number in range(9_000_000, 9_000_000 + many(60, 5000)):
        node, draw, schemas = case(number, pool).node, random.Random(number), dict[str, object]()
        try:
            first = job(node, cache, schemas)
        except DmlError:
            continue  # a plan that is refused has no tasks
        places = first.reading.places
        whole = told(first, ReadTask(0, places))
        for _ in range(3):
            place = draw.randrange(places + 1)
            again = draw.choice([first, job(node, cache, schemas)])
            wanted = [each for each in whole if each[0] >= place]
            if whole and whole[-1][0] < place:
                continue  # an error came before
            assert told(again, ReadTask(place, places)) == wanted, number
            compared += len(wanted)
    assert compared > 1000


def stacked(number: int, pool: DataPool) -> Plan | None:
    """A random pipeline with two stored steps; None if it has no place for them, or is refused."""
    one, draw = stored_case(number, pool), random.Random(number)
    if one is None:
        return None
    places = [node for node in one.node.walk() if storable(node)]
    try:
        return optimize(above(one.node, draw.choice(places)), 0).plan
    except DmlError:
        return None


def test_tasks_cut_alike_whatever_was_stored_meanwhile(
    pool: DataPool, cache: Path, tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    """By runs that look for rows of others, and by those that do not."""
    compared = 0
    for number in range(7_000_000, 7_000_000 + many(12, 3000)):
        plan = stacked(number, pool)
        if plan is None or not plan.stage.steps:
            continue
        for looks in (False, True):
            found = []
            for others in (None, False, True):
                folder = tmp_path / f"{number}-{looks}-{others}"
                if others is not None:
                    over(plan, folder, cache, looks=others)
                found.append(over(plan, folder, cache, looks=looks, fills=False))
            assert found[0] == found[1] == found[2], (number, looks)
            compared += len(found[0])
    assert compared > many(150, 50_000)


def over(plan: Plan, folder: Path, cache: Path, *, looks: bool, fills: bool = True) -> list[Told]:
    """What the tasks of the first stage give over a store; ``looks``: in a run that asks others."""
    names = {}
    for node in (each for each in plan.stage.steps if isinstance(each, Stored)):
        if not unnamed(node.input):
            asked = asked_names(node.input, 0)
            named = EntryName(Where(str(folder)), asked.names[-1], {}, asked=asked)
            names[node.digest, ""] = dataclasses.replace(named, looks=looks, fills=fills)
    at = At(0, 0, KernelTiers(cache, "numpy"), {}, None, PLENTY, store=Storing(names))  # type: ignore[arg-type]
    work = Job(plan.stage, at, PartitionSizes(1, PLENTY))
    return told(work, ReadTask(0, work.reading.places))
