"""Law: killing workers whose memory other processes have mapped changes no byte."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dml.data.stream_hash import stream_hash
from dml.exec.process import neighbours, shared_memory
from tests.exec.process.lending_cases import pipeline
from tests.exec.process.test_shared_memory import own_files
from tests.laws.kills import HANG_S, Killer, within
from tests.laws.test_kills import START_S, WORKERS, with_nannies, without_nannies

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning"),
    pytest.mark.skipif(not neighbours.here(), reason="no files in memory here"),
]

UNITS = 24


@pytest.fixture(scope="module")
def wanted() -> str:
    return stream_hash(pipeline(UNITS, executor="sync"))


def mapped_here() -> int:
    """Nameless files that this process has mapped: those that others lent, and of earlier tests."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return len({line.split()[4] for line in maps if "memfd:dml" in line})


def test_killed_lenders_change_no_byte(wanted: str, many: Callable[[int, int], int]) -> None:
    before = own_files()
    with with_nannies() as (client, pids):
        kills = run = 0
        while kills < many(3, 60):
            run += 1
            client.wait_for_workers(WORKERS, timeout=START_S)
            with Killer(pids, run, most=2, each_s=0.4) as killer:
                batches = within(iter(pipeline(UNITS, scheduler=client)), HANG_S)
                assert stream_hash(batches) == wanted, run
            kills += killer.kills
    gc.collect()
    assert own_files() <= before


def test_what_is_open_outlives_whoever_lent_it(
    wanted: str, many: Callable[[int, int], int]
) -> None:
    """All batches are kept until the end, while the worker that lent most of them is killed."""
    for seed in range(many(1, 8)):
        with without_nannies() as (client, pids):
            run = iter(pipeline(UNITS, scheduler=client))
            kept = [next(run) for _ in range(random.Random(seed).randint(1, UNITS // 2))]
            os.kill(random.Random(seed).choice(sorted(pids())), signal.SIGKILL)
            kept += within(run, HANG_S)
            assert stream_hash(kept) == wanted, seed
            del kept, run


def test_a_lender_dies_between_its_slip_and_who_opens_it(
    wanted: str, many: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has the slip when its owner is killed: Dask has it made again."""
    opened, deaths, before = shared_memory.opened, list[int](), mapped_here()
    for seed in range(many(1, 8)):
        moment = random.Random(seed).randint(1, UNITS // 2)
        slips: Iterator[int] = iter(range(10 * UNITS))

        def late(
            slip: shared_memory.Slip, slips: Iterator[int] = slips, moment: int = moment
        ) -> Any:
            if next(slips) == moment:
                os.kill(slip.pid, signal.SIGKILL)
                deaths.append(slip.pid)
                while os.path.exists(f"/proc/{slip.pid}/fd/{slip.file}"):
                    os.sched_yield()
            return opened(slip)

        with with_nannies() as (client, _), monkeypatch.context() as patched:
            patched.setattr(shared_memory, "opened", late)
            batches = within(iter(pipeline(UNITS, scheduler=client)), HANG_S)
            assert stream_hash(batches) == wanted, seed
    assert len(deaths) == many(1, 8)
    gc.collect()
    assert mapped_here() <= before
