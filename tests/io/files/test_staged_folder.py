"""Test that a written folder appears whole or not at all, whenever the writer is killed."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.errors import PlanError, SourceError
from dml.io.files import staged_folder
from tests.refusals import nothing_left, refused

pytestmark = pytest.mark.cluster

OFF: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 2}


def numbers(rows: int = 1000) -> Dataset:
    return dml.range(rows, atom_rows=100).with_columns(y=col("id") * 0.5).with_options(**OFF)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "rows"
    target.mkdir()
    numbers(10).write_parquet(target)  # an empty one holds nothing
    with nothing_left(tmp_path / "temporary"):
        error = refused(PlanError, lambda: numbers().write_parquet(target), "not empty")
    assert "overwrite=True" in error.try_
    assert dml.read_parquet(target).count() == 10
    assert names(tmp_path) == ["rows", "temporary"]


@pytest.mark.parametrize("atomic", [True, False])
def test_overwriting_swaps_whole_folders(
    atomic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not atomic:
        monkeypatch.setattr(staged_folder, "_exchanged", lambda *_: False)
    target = tmp_path / "rows"
    numbers(10).write_parquet(target, rows_per_file=3)
    ds = dml.read_parquet(target).with_options(**OFF).with_columns(z=col("id") + 1)
    ds.write_parquet(target, overwrite=True)  # what is being read is replaced when it was read
    assert names(tmp_path) == ["rows"]
    assert names(target) == ["part-00000.parquet"]
    assert dml.read_parquet(target).columns == ["id", "y", "z"]
    dml.range(3).write_arrow(target, overwrite=True)
    assert names(target) == ["part-00000.arrow"]


def test_a_swap_in_two_steps_is_undone_where_the_second_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "rows"
    numbers(10).write_parquet(target)
    rename = Path.rename

    def refusing(self: Path, to: Path) -> Path:
        if self.name == "rows" and to == target and self.parent != tmp_path:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(staged_folder, "_exchanged", lambda *_: False)
    monkeypatch.setattr(Path, "rename", refusing)
    refused(SourceError, lambda: numbers(20).write_parquet(target, overwrite=True), "Input/output")
    assert dml.read_parquet(target).count() == 10
    assert names(tmp_path) == ["rows"]


def test_who_died_between_two_steps_loses_nothing(tmp_path: Path) -> None:
    target = tmp_path / "rows"
    left = tmp_path / f"{staged_folder.prefix(target)}host-1-abcdef"
    numbers(10).write_parquet(left / "old")
    (left / "rows").mkdir()
    refused(PlanError, lambda: numbers(20).write_parquet(target), "not empty")
    assert dml.read_parquet(target).count() == 10, "the old rows are back"
    assert names(tmp_path) == ["rows"]


def test_overwriting_never_removes_other_things(tmp_path: Path) -> None:
    target = tmp_path / "home"
    target.mkdir()
    (target / "thesis.tex").write_text("years of work")
    call = lambda: numbers().write_parquet(target, overwrite=True)  # noqa: E731
    refused(PlanError, call, "more than rows", "thesis.tex")
    (target / "thesis.tex").unlink()
    (target / "part.parquet").mkdir()
    refused(PlanError, call, "more than rows", "part.parquet")
    (tmp_path / "file").touch()
    refused(PlanError, lambda: numbers().write_parquet(tmp_path / "file", overwrite=True), "file")


def test_two_writers_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "rows"

    def meanwhile(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 0:
            numbers(5).write_parquet(target)
        return row

    ds = numbers(20).map(meanwhile, fingerprint="meanwhile")
    refused(PlanError, lambda: ds.write_parquet(target), "not empty")
    assert dml.read_parquet(target).count() == 5
    assert names(tmp_path) == ["rows"]


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("verb", ["write_parquet", "write_arrow"])
def test_a_full_disk_leaves_the_old_rows(verb: str, tmp_path: Path) -> None:
    target = tmp_path / "rows"
    numbers(10).write_parquet(target)
    ds = dml.range(200_000).with_columns(y=col("id") * 0.7).with_options(**OFF)
    with nothing_left(tmp_path / "temporary"), files_of_at_most(100_000):
        error = refused(
            SourceError,
            lambda: getattr(ds, verb)(target, overwrite=True, row_group_size=10_000),
            "rows could not be written",
            "File too large",
        )
    assert "disk" in error.try_
    assert dml.read_parquet(target).count() == 10
    assert names(tmp_path) == ["rows", "temporary"]


def test_a_disk_that_fails_at_the_end_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    refused(SourceError, lambda: numbers().write_parquet(tmp_path / "rows"), "Input/output error")
    assert not names(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    refused(SourceError, lambda: numbers().write_parquet(tmp_path / "rows"), "Permission")


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(SourceError, lambda: numbers().write_parquet(tmp_path / "file/rows"), "exists")
    refused(PlanError, lambda: numbers().write_parquet("a\0b"), "name of a folder")
    refused(PlanError, lambda: numbers().write_parquet(3), "name of a folder")  # type: ignore[arg-type]


KILLED = """
import sys, time, dml
def slow(row):
    if row["id"] == 900:
        print("made", flush=True)
        time.sleep(60)
    return {"x": row["id"], "s": str(row["id"])}
ds = dml.range(1000, atom_rows=100).map(slow, fingerprint="slow")
ds = ds.with_options(telemetry_dir="off", executor="sync", target_partition_bytes=100)
ds.write_parquet(sys.argv[1], row_group_size=10, rows_per_file=50, overwrite=True)
"""


@contextmanager
def writer(target: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of writing to ``target``."""
    command = [sys.executable, "-c", KILLED, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "made\n"
            yield process
        finally:
            process.kill()


def test_a_killed_writer_leaves_the_target_and_the_next_one_clears(tmp_path: Path) -> None:
    target = tmp_path / "rows"
    numbers(10).write_parquet(target)
    with writer(target) as process:
        staged = [name for name in names(tmp_path) if name.startswith(".rows.dml-")]
        assert len(staged) == 1
        assert str(process.pid) in staged[0]
        assert len(names(tmp_path / staged[0] / "rows")) > 10
        numbers(20).write_parquet(target, overwrite=True)
        assert staged[0] in names(tmp_path), "it is alive"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert dml.read_parquet(target).count() == 20
    assert dml.read_parquet(tmp_path).count() == 20, "what is hidden is not read"
    numbers(30).write_parquet(tmp_path / "other")
    assert staged[0] in names(tmp_path), "another target's are left alone"
    numbers(30).write_parquet(target, overwrite=True)
    assert names(tmp_path) == ["other", "rows"]
    assert dml.read_parquet(target).count() == 30


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    with writer(tmp_path / "rows") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(60)
    deadline = time.monotonic() + 60
    while names(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not names(tmp_path)


@pytest.mark.parametrize("overwrite", [True, False])
def test_the_folder_keeps_its_mode(overwrite: bool, tmp_path: Path) -> None:
    target = tmp_path / "rows"
    target.mkdir()
    target.chmod(0o2770)
    numbers(10).write_parquet(target, overwrite=overwrite)
    assert stat.S_IMODE(target.stat().st_mode) == 0o2770


@pytest.mark.parametrize("name", ["\u597d" * 80, "a" * 250, "-x", "a b%[x]*", ".hidden"])
def test_any_name_of_a_folder_will_do(name: str, tmp_path: Path) -> None:
    numbers(10).write_parquet(tmp_path / name)
    assert names(tmp_path) == [name]


def test_a_target_never_gets_the_rows_of_another(tmp_path: Path) -> None:
    """Names that begin alike: one's writer died between two steps, the other's comes first."""
    ours, theirs = tmp_path / ("a" * 150 + "1"), tmp_path / ("a" * 150 + "2")
    numbers(10).write_parquet(ours)
    left = tmp_path / f"{staged_folder.prefix(ours)}host-1-abcdef"
    left.mkdir()
    ours.rename(left / "old")
    assert not numbers(10).write_parquet(theirs).path.endswith("1")
    assert not ours.exists()
    numbers(20).write_parquet(ours, overwrite=True)
    assert dml.read_parquet(ours).count() == 20
    assert names(tmp_path) == [ours.name, theirs.name]


def test_names_that_are_none_are_refused() -> None:
    refused(PlanError, lambda: numbers().write_parquet(""), "host")
    refused(PlanError, lambda: numbers().write_parquet("a\0b"), "host")


STEPWISE = """
import os, shutil, signal, sys
from pathlib import Path
from dml.io.files import staged_folder

def put(rows):
    with staged_folder.staged(target, overwrite=True) as folder:
        (folder / "part-00000.parquet").write_text(rows)

def killed_at(step):
    def hook(event, args):
        nonlocal step
        if event.partition(".")[0] in ("os", "open", "shutil", "fcntl", "ctypes"):
            step -= 1
            if not step:
                os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if not child:
        sys.addaudithook(hook)
        put("new")
        os._exit(0)
    return os.waitpid(child, 0)[1]

if sys.argv[2] == "two steps":
    staged_folder._exchanged = lambda *_: False
target = Path(sys.argv[1]) / "rows"
step, seen = 1, set()
while True:
    put("old")
    status = killed_at(step)
    seen.add((target / "part-00000.parquet").read_text() if target.exists() else "none")
    with staged_folder.staged(target.with_name("other"), overwrite=True):
        pass
    staged_folder._clear(target)  # what the next writer does first
    assert (target / "part-00000.parquet").read_text() in ("old", "new"), step
    put("last")
    assert (target / "part-00000.parquet").read_text() == "last", step
    assert sorted(os.listdir(sys.argv[1])) == ["other", "rows"], (step, os.listdir(sys.argv[1]))
    if not status:
        break
    step += 1
print(step, *sorted(seen))
"""


@pytest.mark.parametrize(("way", "seen"), [("one step", "new old"), ("two steps", "new none old")])
def test_killed_at_any_step_the_old_rows_or_the_new_are_whole(
    way: str, seen: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", STEPWISE, str(tmp_path), way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    steps, _, found = done.stdout.strip().partition(" ")
    assert (done.returncode, found) == (0, seen), done.stderr
    assert int(steps) > 15
