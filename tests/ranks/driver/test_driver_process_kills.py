"""Test kills of driver processes and of their trainers: typed errors, and no leftovers."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from dml.api.dataset import Dataset
from dml.data.stream_hash import stream_hash
from dml.errors import WorkerLostError
from dml.ranks.driver.driver_handle import DRIVERS, living
from tests.ranks.driver.driver_cases import (
    HANG_S,
    ROWS,
    afar,
    children,
    gone,
    killed,
    nothing_stays,
    numbers,
    table,
    texts,
)

pytestmark = pytest.mark.cluster

__all__ = ["nothing_stays", "numbers", "table"]


def test_a_killed_driver_is_a_typed_error_and_the_state_goes_on(numbers: Dataset) -> None:
    ds = numbers.map(texts).batch(10)
    far = afar(ds, executor="processes", prefetch=2)
    it = iter(far.epoch(0))
    begun = list(islice(it, 20))
    (driver,) = [each for each in living() if each.known and each not in DRIVERS._idle]
    workers = children(driver.process.pid)
    killed(driver.process.pid)
    with pytest.raises(WorkerLostError, match="the driver process died"):
        begun.extend(it)  # keeps what came before
    with pytest.raises(StopIteration):
        next(it)
    assert "failed" in str(it.stats())
    gone(workers)
    rest = iter(far)
    rest.load_state_dict(it.state_dict())
    assert stream_hash([*begun, *rest]) == stream_hash(ds.epoch(0))


def test_one_that_is_killed_between_runs_is_replaced(numbers: Dataset) -> None:
    ds = afar(numbers.batch(10))
    list(ds)
    for driver in list(living()):
        killed(driver.process.pid)
        driver.process.wait(HANG_S)
    assert len(list(ds)) == ROWS // 10


TRAINER = """
import os, sys, dml
ds = dml.range(10**9, atom_rows=1000).map(lambda r: {"n": r["id"], "t": str(r["id"])}).batch(10)
ds = ds.with_options(driver="process", executor="processes", num_workers=2, telemetry_dir="off",
                     target_partition_bytes=1000)
it = iter(ds)
next(it)
from dml.ranks.driver.driver_handle import living
print(*[each.process.pid for each in living()], flush=True)
input()
"""


def test_a_killed_trainer_ends_the_driver_and_its_workers() -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    (pid,) = map(int, trainer.stdout.readline().split())
    pids = [pid, *children(pid)]
    assert len(pids) == 3
    killed(trainer.pid)
    trainer.communicate()
    gone(pids)


def test_a_trainer_that_ends_in_the_middle_ends_all(tmp_path: Path) -> None:
    program = TRAINER.replace("input()", "").replace('"off"', repr(str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert not done.stderr
    gone([int(each) for each in done.stdout.split()])
