"""Law: every kind of source obeys the laws of runs: other workers, kills, resuming."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import dml
from tests.laws.doors import DOORS, QUIET, pipelines, written
from tests.sampling import amount

PUBLIC = Path(__file__).parents[1] / "public.txt"
# Doors whose rows have a name in this run only.
NAMELESS = ("from_iterable",)
OPENED = [name for name in DOORS if hasattr(dml, name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("doors"))


def made(name: str, folder: Path) -> list[dml.Dataset]:
    try:
        return pipelines(name, folder)
    except ImportError as error:
        pytest.skip(str(error))


def test_no_door_is_left_out() -> None:
    lines = [line.partition("(")[0].removeprefix("dml.") for line in PUBLIC.read_text().split("\n")]
    names = [name for name in lines if name.startswith(("read_", "from_", "scan_"))]
    assert len(names) > 25
    assert {getattr(dml, name) for name in names} <= {getattr(dml, name) for name in OPENED}


class DiesOnce:
    """Kills the process that it runs in, unless one died before or it is the first one."""

    def __init__(self, flag: Path) -> None:
        self.flag, self.home = str(flag), os.getpid()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if "17" in str(row) and os.getpid() != self.home:
            with suppress(FileExistsError):
                os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return row


@pytest.mark.sample(10)
@pytest.mark.cluster
@pytest.mark.parametrize("name", OPENED)
def test_a_killed_reader_changes_no_row(name: str, folder: Path, tmp_path: Path) -> None:
    if OPENED.index(name) % amount(4, 1):
        pytest.skip("a sample: the others run with --whole")
    ds = made(name, folder)[0]
    want = [str(row) for row in ds]
    fatal = ds.map(DiesOnce(tmp_path / "died"), fingerprint="dies once")
    options = {"executor": "processes", "num_workers": 2, "target_partition_bytes": 300}
    got = [str(row) for row in fatal.with_options(**{**QUIET, **options})]
    assert got == want
    assert (tmp_path / "died").exists() == any("17" in row for row in want)


@pytest.fixture(scope="module")
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that goes on with whatever it is given, door after door."""
    with subprocess.Popen(
        [sys.executable, "-c", "from tests.laws.doors import go_on; go_on()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "4711"},
    ) as started:
        yield started  # it ends when nothing is left to ask


@pytest.mark.sample(9)
@pytest.mark.cluster
@pytest.mark.parametrize("name", [name for name in OPENED if name not in NAMELESS])
def test_another_process_goes_on_at_every_row(
    name: str, folder: Path, other: subprocess.Popen[bytes]
) -> None:
    states, want = [], []
    for number, ds in enumerate(made(name, folder)):
        running = iter(ds)
        places, rows = [running.state_dict()], []
        for row in running:
            rows.append(str(row))
            places.append(running.state_dict())
        places = places[:: 1 + 4 * bool(number)]
        states += [(name, number, state) for state in places]
        want += [rows[at:] for at in range(0, len(rows) + 1, 1 + 4 * bool(number))]
    assert other.stdin is not None
    assert other.stdout is not None
    pickle.dump((folder, states), other.stdin)
    other.stdin.flush()
    assert pickle.load(other.stdout) == want
