"""Test runs that are still open when their process ends."""

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


HELD = """
import collections, ctypes, sys, threading, types
holder = types.ModuleType("holder")  # as libraries in C hold modules: it goes last of all
sys.modules["holder"] = holder
ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))
import dml

def more(row):
    return {"id": row["id"] + 1}

def opened(ds):
    iterator = iter(ds)
    next(iterator)
    return iterator

def kept(started):
    iterator = opened(ds)
    started.set()
    for _ in iterator:
        threading.Event().wait(0.01)

if __name__ == "__main__":
    ds = dml.range(100_000).map(more).batch(10)
    ds = ds.with_options(executor=sys.argv[1], num_workers=1, telemetry_dir=sys.argv[2])
    in_global = opened(ds)
    cycle = collections.UserDict(iterator=opened(ds))
    cycle["self"] = cycle
    del cycle
    started = threading.Event()
    threading.Thread(target=kept, args=(started,), daemon=True).start()
    started.wait()
    holder.dml, holder.iterator = dml, opened(ds.prefetch(2))
    holder.share = opened(ds.streaming_split(1)[0])
"""


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_process_that_ends_while_iterators_live_says_nothing(
    tmp_path: Path, executor: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(HELD)
    command = [sys.executable, str(script), executor, str(tmp_path / "told")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stderr == ""
