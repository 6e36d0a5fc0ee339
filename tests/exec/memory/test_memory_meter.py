"""Test the measurement of memory, and the memory limit in whole small runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dml.exec.memory import memory_meter
from dml.exec.memory.memory_meter import anonymous_bytes, counted_bytes
from dml.exec.memory.memory_shares import OVERHEAD_BYTES
from tests.alone import alone

MIB = 1 << 20


@pytest.mark.law
@alone
def test_what_is_allocated_is_counted_and_what_is_freed_is_not() -> None:
    before, quick = counted_bytes(), anonymous_bytes()
    if before is None or quick is None:
        pytest.skip("the system does not tell")
    held = np.ones(8 * MIB)
    with_it, quick_with_it = counted_bytes(), anonymous_bytes()
    assert with_it is not None
    assert quick_with_it is not None
    assert with_it - before > 60 * MIB
    assert quick_with_it - quick > 60 * MIB
    del held
    after = counted_bytes()
    assert after is not None
    assert after - before < 8 * MIB


@pytest.mark.law
@alone
def test_children_are_counted() -> None:
    before = counted_bytes()
    if before is None:
        pytest.skip("the system does not tell")
    program = "x = bytearray(b'1') * (40 << 20); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = counted_bytes()
        child.communicate("\n")
    assert during is not None
    assert during - before > 38 * MIB


SHEET = """
import numpy as np
from dml.exec.process.channel import Sheet
from dml.exec.memory.memory_meter import counted_bytes

before = counted_bytes()
sheet = Sheet()
buffer = sheet.keep(lambda sink: sink.write(bytes(40 << 20)))
print(counted_bytes() - before)
sheet.close()  # what is mapped counts as well
np.frombuffer(buffer, np.uint8).sum()
print(counted_bytes() - before)
del buffer, sheet
print(counted_bytes() - before)
"""


@pytest.mark.law
def test_a_nameless_file_is_counted_once_whether_it_is_touched_or_not() -> None:
    if counted_bytes() is None:
        pytest.skip("the system does not tell")
    # A process of its own: what this one frees meanwhile, of earlier tests, would be counted too.
    ran = subprocess.run([sys.executable, "-c", SHEET], check=True, capture_output=True, text=True)
    untouched, touched, gone = (int(line) for line in ran.stdout.split())
    assert 38 * MIB < untouched < 60 * MIB
    assert 38 * MIB < touched < 60 * MIB
    assert gone < 20 * MIB


OF_FILE = "7f00-7f00 rw-p 0 00:01 77   /memfd:dml (deleted)"


@pytest.mark.parametrize(
    ("lines", "touched"),
    [
        # 16 of the file, 8 that were written to since
        ({"Rss": 24, "Pss": 24, "Pss_Dirty": 24, "Anonymous": 8}, 16),
        # the same after a fork: each figure but two is divided
        ({"Rss": 24, "Pss": 12, "Pss_Dirty": 12, "Anonymous": 8}, 8),
        # the same before Linux 6.0
        ({"Rss": 24, "Pss": 24, "Private_Dirty": 20, "Shared_Dirty": 4, "Anonymous": 8}, 16),
        ({"Rss": 8, "Pss": 8, "Anonymous": 8}, 0),
    ],
)
def test_pages_that_were_written_to_are_no_pages_of_the_file(
    lines: dict[str, int], touched: int
) -> None:
    told = [f"{name}: {size} kB" for name, size in lines.items()]
    other = ["5500-5600 rw-p 0 00:00 0 [heap]", "Pss_Dirty: 99 kB", "VmFlags: rd wr"]
    found: dict[str, int] = {}
    text = "\n".join([*other, OF_FILE, *told, "VmFlags: rd wr", *other])
    assert memory_meter._add_mapped(text, found) == touched * 1024
    assert found == {"77": 0}


def test_a_process_that_is_gone_takes_nothing() -> None:
    assert counted_bytes(2**22 + 1) is None


@pytest.mark.slow
def test_runs_stay_within_their_number(tmp_path: Path) -> None:
    bench = Path(__file__).parents[3] / "benchmarks" / "bench_memory.py"
    out = tmp_path / "memory.json"
    done = subprocess.run(
        [sys.executable, str(bench), "--gigabytes", "0.2", "--limit", "64MiB", "--kinds",
         "window,sort", "--buffer", "8192", "--out", str(out), "--groups", "10000000"],
        capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(bench.parents[1]), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert OVERHEAD_BYTES <= 200 * MIB
    assert done.stdout.count("kept") == 3
