"""Measure that a row group of 500 MB is streamed, and never entirely in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COLUMNS, ROWS = 40, 1_600_000

# Memory is a process's, so the reading is done in one of its own.
READ = """
import sys
import pyarrow as pa
from dml.io.parquet.parquet import read_parquet

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

source = read_parquet(sys.argv[1])
before = most = resident()
rows = 0
for i in range(source.unit_count):
    for block in source.read(source.unit(i), source.schema.names):
        rows += block.n
        most = max(most, resident())
print(rows, source.unit(0).nbytes, most - before, pa.default_memory_pool().max_memory())
"""


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_a_row_group_of_500_mb_takes_little_memory(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "big.parquet"
    rng = np.random.default_rng(1)
    big = {f"c{i}": rng.integers(0, 1 << 40, ROWS) for i in range(COLUMNS)}
    dictionary = compression != "none"
    pq.write_table(
        pa.table(big), path, row_group_size=ROWS, compression=compression, use_dictionary=dictionary
    )
    del big
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True
    )
    rows, nbytes, grown, pool = map(int, done.stdout.split())
    assert rows == ROWS
    assert nbytes == 8 * COLUMNS * ROWS
    # One page and one dictionary of 1 MiB for each column, and two atoms.
    assert pool < 160 << 20, f"Arrow held {pool >> 20} MiB"
    assert grown < 256 << 20, f"the process grew by {grown >> 20} MiB"
