"""Test spilled runs: they are read back unchanged, and their files are removed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dml
from dml.data.block import Block
from dml.data.schema import Schema, data_type
from dml.errors import MemoryContractError
from dml.exec.memory.spill import DiskSpill, swept
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

SCHEMA = Schema({"x": data_type("int64")})


def block(*values: int) -> Block:
    ids = RowIds.run(7, values[0], len(values))
    return Block(SCHEMA, (Vec(np.array(values, dtype="i8")),), ids)


def values(blocks: list[Block]) -> list[int]:
    return [int(v) for each in blocks for v in each["x"].values]


def test_runs_come_back_once_with_their_ids(tmp_path: Path) -> None:
    spill = DiskSpill(SCHEMA, str(tmp_path))
    spill.write(iter([block(1, 2), block(3)]))
    spill.write(iter([block(10, 11)]))
    assert spill.count == 2
    (first,) = spill.runs(1)
    made = list(first)
    assert values(made) == [1, 2, 3]
    assert [int(low) for each in made for low in each.ids.low()] == [1, 2, 3]
    assert spill.count == 1
    assert [values(list(run)) for run in spill.runs()] == [[10, 11]]
    assert list(Path(spill.folder).glob("*.arrow")) == [], "a run's file goes when it has been read"


def test_runs_that_are_kept_come_back_again(tmp_path: Path) -> None:
    spill = DiskSpill(SCHEMA, str(tmp_path))
    spill.write(iter([block(1, 2)]))
    spill.write(iter([block(10, 11)]))
    for _ in range(2):
        assert [values(list(run)) for run in spill.runs(keep=True)] == [[1, 2], [10, 11]]
    assert [values(list(run)) for run in spill.runs()] == [[1, 2], [10, 11]]
    assert spill.count == 0


def test_the_folder_goes_with_close_and_with_its_owner(tmp_path: Path) -> None:
    closed = DiskSpill(SCHEMA, str(tmp_path))
    closed.write(iter([block(1)]))
    closed.close()
    closed.close()
    forgotten = DiskSpill(SCHEMA, str(tmp_path))
    forgotten.write(iter([block(1)]))
    del forgotten
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_files_are_their_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        spill = DiskSpill(SCHEMA, str(tmp_path))
        spill.write(iter([block(1)]))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in Path(spill.folder).iterdir()} == {0o600}


@pytest.mark.law
def test_a_disk_that_cannot_take_the_rows_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(MemoryContractError, match="could not be written"):
        DiskSpill(SCHEMA, str(tmp_path / "absent"))
    program = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import dml
ds = dml.range(400_000).with_columns(y=dml.col("id") * 3).shuffle()
ds = ds.filter(lambda row: True).shuffle(seed=2).batch(64)
ds = ds.with_options(memory_limit="4MiB", telemetry_dir="off", executor="sync")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    next(iter(ds))
except dml.errors.MemoryContractError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert "could not be written to disk" in done.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.parametrize("limit", ["1MiB", "256MiB"])
def test_a_full_shuffle_is_the_same_spilled_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = dml.range(60_000).flat_map(lambda row: [dict(row), dict(row)]).shuffle(seed=5)
    rows = rows.with_options(telemetry_dir="off", executor="sync")
    ds = rows.batch(1000).with_options(memory_limit=limit)
    it = iter(ds)
    first = next(it)["id"]
    assert bool(list(tmp_path.iterdir())) == (limit == "1MiB")
    found = np.concatenate([first, *(batch["id"] for batch in it)])
    assert list(tmp_path.iterdir()) == []
    assert np.array_equal(np.sort(found), np.repeat(np.arange(60_000), 2))
    assert found[:8].tolist() == rows.batch(8).take_rows(1)[0]["id"].tolist()


@pytest.mark.law
def test_closing_and_forgetting_a_run_removes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ds = dml.range(60_000).flat_map(lambda row: [dict(row), dict(row)]).shuffle().batch(1000)
    ds = ds.with_options(memory_limit="1MiB", telemetry_dir="off", executor="sync")
    it = iter(ds)
    next(it)
    assert list(tmp_path.iterdir())
    it.close()
    assert list(tmp_path.iterdir()) == []
    it = iter(ds)
    next(it)
    del it
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.law
def test_what_a_killed_process_left_goes_when_another_spills(tmp_path: Path) -> None:
    program = (
        "import os, sys; from dml.exec.memory.spill import DiskSpill; "
        "from dml.data.schema import Schema; "
        "kept = DiskSpill(Schema({}), sys.argv[1]); print(kept.folder, flush=True); "
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    left = Path(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    alive, strange = DiskSpill(Schema({}), str(tmp_path)), tmp_path / "dml-spill-1-x"
    strange.mkdir()
    assert left.parent == tmp_path
    swept.cache_clear()
    other = DiskSpill(Schema({}), str(tmp_path))
    assert not left.exists()
    assert Path(alive.folder).exists()
    assert strange.exists(), "nobody knows whose it is"
    for each in (alive, other):
        each.close()
    assert list(tmp_path.iterdir()) == [strange]
