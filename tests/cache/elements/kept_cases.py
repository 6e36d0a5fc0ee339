"""Pipelines with a cache on disk that log which rows they compute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.cache.elements import disk_cache
from dml.data.schema import tensor
from tests.expr.checks import numbers

ROWS = 100
# of what ``Logged`` gives: rows that settle types would be made before anybody asks for them
LOGGED = {"x": "int64", "v": tensor("i8", (2,)), "s": "string"}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows make many parts."""
    monkeypatch.setattr(disk_cache, "PART_BYTES", 400)
    monkeypatch.setattr(disk_cache, "FOLLOWED_BYTES", 200)
    monkeypatch.setattr("dml.cache.elements.element_parts.MARK_BYTES", 150)
    monkeypatch.setattr("dml.cache.elements.element_parts.GATHERED_BYTES", 250)


class Logged:
    """A function that notes each row in a file, whatever process calls it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        with self.path.open("a") as file:
            file.write(f"{row['x']}\n")
        return {"x": row["x"], "v": np.array([row["x"], -row["x"]]), "s": str(row["x"])}

    @property
    def calls(self) -> int:
        """Of all processes."""
        return len(self.path.read_text().split()) if self.path.exists() else 0


def logged(tmp_path: Path, n: int = ROWS, **options: Any) -> tuple[dml.Dataset, Logged]:
    """Rows through a function that counts, shuffled."""
    tmp_path.mkdir(exist_ok=True)
    fn = Logged(tmp_path / "calls")
    ds = numbers(n).map(fn, fingerprint="logged", schema=LOGGED).shuffle(7, seed=1)
    return ds.with_options(cache_dir=str(tmp_path), **options), fn


def places(ds: dml.Dataset) -> list[int]:
    return [row["x"] for row in ds]


PROGRAM = """
import os, sys, time
import numpy as np, dml
from dml.cache.elements import disk_cache
from dml.data.schema import tensor
from dml.cache.parts.parts import PartStore

disk_cache.PART_BYTES = 400
PartStore.__init__.__kwdefaults__["ttl_s"] = 1.0
root, rows, dies = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def work(row):
    with open(root + "/calls", "a") as file:
        file.write(f"{row['x']}\\n")
    return {"x": row["x"], "s": str(row["x"])}

ds = dml.from_dict({"x": np.arange(rows)}, atom_rows=3).map(work, fingerprint="work")
ds = ds.shuffle(7, seed=1).cache("disk").with_options(
    cache_dir=root, executor="sync", prefetch=0, telemetry_dir="off")
found = []
for number, row in enumerate(ds):
    found.append(row["x"])
    if number == dies:
        os.kill(os.getpid(), 9)
print(*found)
"""


def begun(root: Path, rows: int, dies: int = -1) -> subprocess.Popen[str]:
    """A process that runs the same pipeline over the same store."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root), str(rows), str(dies)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(Path(dml.__file__).parents[1]), "PATH": "/usr/bin:/bin",
             "HOME": str(root)},
    )  # fmt: skip


def given_by(process: subprocess.Popen[str]) -> list[int]:
    out, error = process.communicate(timeout=120)
    assert process.returncode in {0, -9}, error
    return [int(word) for word in out.split()]


def parts_of(root: Path) -> list[Path]:
    """Files of rows in a store, oldest first."""
    return sorted((root / "store").rglob("*.arrow"), key=lambda file: file.stat().st_mtime_ns)


def failing_from(patch: pytest.MonkeyPatch, call: str, nth: int, code: int) -> list[int]:
    """Let a call of the system fail from its nth on; a mark for each that was made."""
    real, calls = getattr(os, call), list[int]()

    def failing(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > nth:
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    patch.setattr(os, call, failing)
    return calls
