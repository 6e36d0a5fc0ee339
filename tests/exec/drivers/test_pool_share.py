"""Test that the runs of one pipeline share their worker processes."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

import dml
from dml.exec.drivers.processes import COMPANIES, Company, company_of
from dml.exec.memory.spill import DiskSpill, Spilling

ROWS, INPUTS, WORKERS = 60, 6, 2


def worked(row: dict[str, Any]) -> dict[str, Any]:
    """The row, and which process has made it."""
    return {"k": row["id"], "pid": os.getpid()}


def several(inputs: int = INPUTS) -> dml.Dataset:
    """Inputs that work on processes at the same time."""
    sources = (dml.range(ROWS, atom_rows=10).map(worked) for _ in range(inputs))
    return dml.interleave(*sources).with_options(executor="processes", num_workers=WORKERS)


@pytest.mark.law
def test_many_inputs_have_as_many_workers_as_one() -> None:
    rows = list(several())
    assert sorted(row["k"] for row in rows) == sorted([*range(ROWS)] * INPUTS)
    assert 1 <= len({row["pid"] for row in rows}) <= WORKERS


@pytest.mark.law
def test_all_runs_of_a_pipeline_have_one_thread_for_each_worker() -> None:
    before = {*threading.enumerate()}  # of other tests, which end a moment later
    it = iter(several())
    next(it)
    desks = [each for each in threading.enumerate() if each.name.startswith("dml-desk")]
    assert 1 <= len([each for each in desks if each not in before]) <= WORKERS
    it.close()


@pytest.mark.law
def test_a_shared_worker_that_dies_is_everybodys_loss_and_nobodys_row() -> None:
    it = iter(several())
    first = next(it)
    os.kill(first["pid"], signal.SIGKILL)
    rows = [first, *it]
    assert sorted(row["k"] for row in rows) == sorted([*range(ROWS)] * INPUTS)


def test_two_pipelines_share_none() -> None:
    assert company_of(Spilling()) is not company_of(Spilling())
    assert company_of(DiskSpill) is not company_of(DiskSpill)
    common = Spilling()
    assert company_of(common) is company_of(common)
    before = len(COMPANIES)
    del common
    assert len(COMPANIES) < before


def test_a_desk_more_is_at_a_worker_where_the_run_has_none() -> None:
    company = Company()
    one, two = company.join("a"), company.join("a")
    assert one is not two
    three = company.join("b")
    assert three in (one, two)
    assert company.join("b") is ({one, two} - {three}).pop()
    company.leave("a", one)
    company.leave("a", two)
    assert company.join("c") in (one, two)
    company.leave("b", one)
    company.leave("b", two)


def test_where_slots_are_shared_nobody_waits_behind_another_run() -> None:
    company = Company()
    busy = company.join("a", shared=True)
    busy.waiting["a"] += 1
    idle = company.join("b", shared=True)
    assert idle is not busy
    assert company.join("a", shared=True) is idle
    busy.waiting["a"] -= 1
    assert company.join("b", shared=True) is busy


def test_without_shared_slots_workers_stay_as_few_as_one_run_has() -> None:
    company = Company()
    busy = company.join("a")
    busy.waiting["a"] += 1
    assert company.join("b") is busy


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_who_leaves_last_leaves_nobody(order: tuple[str, str]) -> None:
    company = Company()
    member = company.join("a")
    assert company.join("b") is member
    for run in order:
        company.leave(run, member)
    assert company.join("c") is not member
