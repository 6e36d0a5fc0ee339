"""This file holds tasks to giving the same partitions wherever they are begun, and by whomever.

A crash begins a task again in another process, which has seen other rows, and goes on behind the
partitions that were counted: they must be cut the same way, whatever a process has learned.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dml.errors import DmlError
from dml.events import Tally
from dml.exec import steps
from dml.exec.job import Job
from dml.exec.work import Piece, Sizes, Task
from dml.expr import cutting
from dml.expr.flow import At
from dml.expr.node import Node
from dml.expr.ops import lifted, map_rows
from dml.kernels.fuse import Tiers
from dml.optimize.phases import optimize
from dml.testing.strategies_data import Pool
from tests.laws.cases import case

PLENTY = 1 << 40
Told = tuple[int, int, int, int, bool, str]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that an atom of a few rows has several of them."""
    monkeypatch.setattr(lifted, "COMPARED", 2)
    for each in (steps, map_rows, cutting):
        monkeypatch.setattr(each, "CALLS", 3)
    monkeypatch.setattr(cutting, "FIRST_STEP", 1)
    monkeypatch.setattr(cutting, "PART_BYTES", 40)


def job(node: Node, folder: Path, schemas: dict[str, object]) -> Job:
    """The tasks of the first stage, by a process that has seen nothing."""
    plan = optimize(node, 0).plan
    at = At(0, 0, Tiers(folder, "numpy"), schemas, None, PLENTY)  # type: ignore[arg-type]
    return Job(plan.stage, at, Sizes(1, PLENTY))


def told(work: Job, task: Task) -> list[Told]:
    """Where each piece stands, its rows and weight, and what ends it."""
    (start,) = work.starts(Tally)
    pieces: list[Piece] = [piece for made in start(task) for piece in made.value]
    return [_told(piece) for piece in pieces]


def _told(piece: Piece) -> Told:
    rows, weight = (-1, 0) if piece.block is None else (piece.block.n, piece.block.weight)
    error = "" if piece.error is None else str(piece.error)
    return piece.place, piece.atom, rows, weight, piece.ends, error


def test_tasks_begun_again_give_the_same_partitions(
    pool: Pool, cache: Path, many: Callable[[int, int], int]
) -> None:
    compared = 0
    for number in range(9_000_000, 9_000_000 + many(200, 5000)):
        node, draw, schemas = case(number, pool).node, random.Random(number), dict[str, object]()
        try:
            first = job(node, cache, schemas)
        except DmlError:
            continue  # a plan that is refused has no tasks
        places = first.reading.places
        whole = told(first, Task(0, places))
        for _ in range(3):
            place = draw.randrange(places + 1)
            again = draw.choice([first, job(node, cache, schemas)])
            wanted = [each for each in whole if each[0] >= place]
            if whole and whole[-1][0] < place:
                continue  # an error came before
            assert told(again, Task(place, places)) == wanted, number
            compared += len(wanted)
    assert compared > 1000
