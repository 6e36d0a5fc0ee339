"""Test that the runs of one pipeline share their worker processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
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


class Model:
    """A class that is slow to construct; it leaves a file for each instance."""

    def __init__(self, folder: str) -> None:
        Path(folder, f"{os.getpid()}-{time.monotonic_ns()}").touch()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(0.005)
        return {"y": batch["id"] * 2}


def doubled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    time.sleep(0.005)  # as long as the class: both have slices in progress
    return {"id": batch["id"] * 2}


@pytest.mark.parametrize("needs", [{"num_gpus": 1}, {"num_gpus": 0.5}, {"concurrency": 2}])
@pytest.mark.parametrize("verb", ["map", "map_batches"])
def test_instances_of_a_class_with_needs_serve_all_epochs(
    tmp_path: Path, verb: str, needs: dict[str, Any]
) -> None:
    """No more instances than calls at once: each may fill the memory of a GPU."""
    ds = dml.range(1600, atom_rows=100).map_batches(doubled, batch_size=100)
    given: dict[str, Any] = {"fn_constructor_args": (str(tmp_path),), **needs}
    if verb == "map":
        ds = ds.batch(100).map(Model, **given)
    else:
        ds = ds.map_batches(Model, batch_size=100, **given).batch(100)
    ds = ds.with_options(executor="processes", num_workers=4, resources={"GPU": 1})
    for _ in range(3):
        found = np.concatenate([batch["y"] for batch in ds])
        assert found.tolist() == [*range(0, 4 * 1600, 4)]
    assert len(list(tmp_path.iterdir())) <= (1 if needs == {"num_gpus": 1} else 2)


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
