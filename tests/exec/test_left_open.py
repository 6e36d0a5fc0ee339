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
    if row["id"] == 5:
        begun.set()
        ending.wait()
        total = sum(range(5_000_000))
        pathlib.Path(sys.argv[1]).write_text(str(total))
    return {"x": [row["id"]]}

ds = dml.range(10, atom_rows=1).map(slow).with_options(
    num_workers=2, executor="threads", telemetry_dir="off", target_partition_bytes=1
)
left = iter(ds)
next(left)
begun.wait()
atexit.register(ending.set)
"""


@pytest.mark.law
def test_a_run_that_is_left_open_ends_its_slices_before_the_process_ends(tmp_path: Path) -> None:
    script, told = tmp_path / "script.py", tmp_path / "told"
    script.write_text(LEFT_OPEN)
    subprocess.run([sys.executable, script, told], check=True, timeout=60)
    assert told.exists()
