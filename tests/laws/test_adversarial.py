"""Test that adversarial pipelines stay within one memory limit, on every executor.

Each runs in a process whose memory is measured from outside. No process may be killed for memory.
The counted memory is at most the limit, a tenth of it, and the overhead of each process. The output
is the right rows, or an error that names what does not fit.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.laws import groups
from tests.laws.adversarial import ERROR, ROWS, Case
from tests.laws.adversarial_more import EVERY
from tests.laws.adversarial_run import GROUPED, WAYS, Ending, watched

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(sys.platform != "linux", reason="nobody else tells what a process takes"),
]

Sampled = Callable[[Iterable[str], int], list[str]]
# Of every way, where not all are asked for.
SOME = 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", WAYS)
def test_no_pipeline_takes_more_than_its_number(way: str, tmp_path: Path, sampled: Sampled) -> None:
    if way.startswith(GROUPED) and groups.missing():
        pytest.skip(groups.missing())
    wrong, names = {}, [*EVERY]
    first = WAYS.index(way) * len(names) // len(WAYS)  # of each way others are drawn
    for name in sampled([*names[first:], *names[:first]], SOME):
        found = watched(name, way, tmp_path)
        if bad := found.wrong(EVERY[name]):
            wrong[name] = bad
    assert not wrong


def test_there_are_enough_of_them() -> None:
    assert len(EVERY) >= 50
    assert sum(case.ends == ROWS for case in EVERY.values()) > len(EVERY) // 2


def test_what_is_wrong_is_seen() -> None:
    case = Case(lambda _: pytest.fail("not run"), rows=3, total=5)
    right = Ending(rows=3, total=5, peak_bytes=10, allowed_bytes=10)
    named = ("MemoryContractError", "what", "at", "why", "try")
    assert not right.wrong(case)
    assert dataclasses.replace(right, rows=2).wrong(case)
    assert dataclasses.replace(right, peak_bytes=11).wrong(case)
    assert dataclasses.replace(right, status=-9).wrong(case)
    assert dataclasses.replace(right, kills=1).wrong(case)
    assert dataclasses.replace(right, error=named).wrong(case)
    refused = dataclasses.replace(case, ends=ERROR)
    assert right.wrong(refused)
    assert not dataclasses.replace(right, error=named).wrong(refused)
    assert dataclasses.replace(right, error=(*named[:4], "")).wrong(refused)
    assert dataclasses.replace(right, error=("InternalError", *named[1:])).wrong(refused)


@pytest.mark.skipif(bool(groups.missing()), reason=groups.missing())
def test_a_group_has_so_much_memory_and_no_more() -> None:
    fill = [sys.executable, "-c", "import sys; bytes([1]) * int(sys.argv[1])"]
    with groups.limited(64 << 20) as group:
        assert subprocess.run(group.entering([*fill, "1000"]), check=False).returncode == 0
        assert group.killed() == 0
        assert subprocess.run(group.entering([*fill, "200000000"]), check=False).returncode == -9
        assert group.killed() == 1
        assert 0 <= group.peak_bytes() <= 64 << 20
