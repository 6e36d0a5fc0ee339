"""Check a refusal: it must be a typed error of four lines, and leave no resources."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.errors import DmlError

E = TypeVar("E", bound=DmlError)

PATIENCE_S = 60.0  # only what stays for ever takes so long
ROWS, GROUP = 1000, 300
QUIET = {"telemetry_dir": "off"}


def refused(kind: type[E], act: Callable[[], Any], *words: str) -> E:
    """The error of ``act``: of this very type, with all four parts, naming a line of the user's."""
    with pytest.raises(DmlError) as caught:
        act()
    error = caught.value
    assert type(error) is kind, str(error)
    lines = str(error).split("\n")
    assert [line[:8] for line in lines[1:]] == ["  at    ", "  why   ", "  try   "], str(error)
    assert all(line[8:].strip() for line in lines[1:])
    assert ".py:" in error.at, f"no line of the user's in {error.at!r}"
    for word in words:
        assert word in str(error)
    return error


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """No thread of a run, open file or temporary file outlives the block."""
    folder.mkdir(exist_ok=True)
    before, files = _workers(), _open_files()
    kept, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and (_workers() - before or _open_files() - files):
            time.sleep(0.005)
        assert not _workers() - before
        assert not _open_files() - files
        assert not list(folder.iterdir())
    finally:
        tempfile.tempdir = kept


def _workers() -> set[str]:
    """Threads of runs; the one that publishes telemetry belongs to the process."""
    names = {f"{thread.name} {thread.ident}" for thread in threading.enumerate()}
    return {name for name in names if name.startswith("dml-") and "telemetry" not in name}


def _open_files() -> set[str]:
    found = set()
    for handle in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{handle}")
        except OSError:
            continue
        if ".parquet" in target or ".arrow" in target:
            found.add(target)
    return found


def write(folder: Path, *, null_at: int | None = None) -> str:
    """1000 rows in one checked file of row groups of 300: x, y, s, and k, which may have a null."""
    folder.mkdir(exist_ok=True)
    numbers = np.arange(ROWS)
    columns = {
        "x": numbers,
        "y": numbers / 2,
        "s": [f"text {i}" for i in range(ROWS)],
        "k": pa.array(numbers, mask=None if null_at is None else numbers == null_at),
    }
    path = folder / "a.parquet"
    if not path.exists():
        pq.write_table(pa.table(columns), path, row_group_size=GROUP, write_page_checksum=True)
    return str(folder)


def opened(folder: Path, executor: str = "threads") -> dml.Dataset:
    """``write`` as a dataset."""
    return dml.read_parquet(write(folder)).with_options(executor=executor, **QUIET)
