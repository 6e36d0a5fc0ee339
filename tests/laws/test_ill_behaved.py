"""Law: functions that fork, exit, crash, hang or raise do not affect other runs.

A run ends with the rows of the oracle, or with an error that names the place. The next run on the
same workers has its own rows and no others. At the end, no process or file of any run is left.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.laws import ill
from tests.laws.ill import FATAL, SHAPES
from tests.laws.ill_run import SEED, environment
from tests.sampling import is_whole

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for below /proc"),
]

ROOT = Path(__file__).parents[2]
EACH = 50  # runs of one process
WHOLE = {"threads": 100, "processes": 250, "cluster": 150}
SAMPLE = {"threads": (0, 8), "processes": (0, 6), "cluster": (0, 4)}  # the first, and how many


def parts(executor: str) -> list[tuple[int, int]]:
    """The first run of each process, and how many it does."""
    if not is_whole():
        return [SAMPLE[executor]]
    return [(first, EACH) for first in range(0, WHOLE[executor], EACH)]


def told(executor: str, first: int, count: int, folder: Path) -> dict[str, Any]:
    """What such a process says at its end."""
    command = ["-m", "tests.laws.ill_run", executor, str(first), str(count)]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("executor", WHOLE)
def test_functions_that_behave_ill_are_nobody_elses_trouble(executor: str, tmp_path: Path) -> None:
    for first, count in parts(executor):
        folder = tmp_path / str(first)
        folder.mkdir()
        found = told(executor, first, count, folder)
        assert found["runs"] == count
        assert not found["wrong"]
        assert not found["left"]


def test_the_whole_has_everything() -> None:
    for executor, count in WHOLE.items():
        drawn = ill.cases(SEED, executor, count)
        assert {case.kind for case in drawn} == {*ill.kinds_of(executor)}
        assert {case.shape for case in drawn} == {*SHAPES}
        assert executor != "threads" or not {case.kind for case in drawn} & {*FATAL}
    assert sum(WHOLE.values()) == 500
