"""Law: pipelines over rows of 4 MiB stay within a memory limit of 64 MiB."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import dml
from dml.exec.memory.memory_shares import OVERHEAD_BYTES
from dml.expr.node import tree
from tests.laws.adversarial_run import sampled
from tests.laws.large_rows import LIMIT_BYTES, drawn, processes

SAMPLE, ALL = 3, 60


def wrong(number: int, folder: Path) -> str:
    """What is not as promised of a run: its rows, or the error for what does not fit."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.laws.large_rows", str(number)]
    found = sampled(command, folder)
    allowed = LIMIT_BYTES + processes(number) * OVERHEAD_BYTES
    refused = found.error and found.error[0] == "MemoryContractError" and all(found.error)
    if found.status or not (found.rows or refused):
        return f"{found}\n{tree(drawn(number, 1)[0]._node)}"
    over = found.peak_bytes > allowed
    return f"{found.peak_bytes} of {allowed} bytes\n{drawn(number, 1)[0]}" if over else ""


@pytest.mark.cluster
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="nobody else tells what a process takes")
def test_large_rows_stay_within_the_number(tmp_path: Path, whole: bool) -> None:
    assert not [bad for n in range(ALL if whole else SAMPLE) if (bad := wrong(n, tmp_path))]


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_the_first_row_may_be_as_large_as_any(executor: str) -> None:
    ids = dml.range(2).concat(dml.range(2)).take(3)
    ds = ids.map(lambda row: {"x": np.full(1 << 20, row["id"], "f4")}).batch(1)
    ds = ds.with_options(executor=executor, num_workers=2, memory_limit="64MiB")
    assert sum(len(batch["x"]) for batch in ds.with_options(telemetry_dir="off")) == 3
