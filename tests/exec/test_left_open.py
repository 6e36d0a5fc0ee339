"""This file tests runs that are open when a process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LEFT_OPEN = """
import atexit, pathlib, sys, threading
import dml
begun, ending = threading.Event(), threading.Event()

def slow(row):
    if row["id"] == 1:  # it is begun whenever row 0 has come
        begun.set()
        ending.wait()
        total = sum(range(5_000_000))
        pathlib.Path(sys.argv[1]).write_text(str(total))
    return {"id": row["id"]} if sys.argv[2] == "workers" else row

ds = dml.range(10, atom_rows=1)
if sys.argv[2] == "workers":
    ds = ds.map(slow, schema={"id": "int64"})
else:
    ds = ds.batch(1).map(slow, schema={"id": "int64"}).prefetch(2)
ds = ds.with_options(
    num_workers=2, executor="threads", telemetry_dir="off", target_partition_bytes=1
)
left = iter(ds)
next(left)
begun.wait()
atexit.register(ending.set)
"""


@pytest.mark.law
@pytest.mark.parametrize("where", ["workers", "ahead"])
def test_a_run_that_is_left_open_ends_what_it_does_before_the_process_ends(
    tmp_path: Path, where: str
) -> None:
    script, told = tmp_path / "script.py", tmp_path / "told"
    script.write_text(LEFT_OPEN)
    subprocess.run([sys.executable, script, told, where], check=True, timeout=60)
    assert told.exists()
