"""Law: after a client of a split is killed, any number of ranks can continue.

The rows before the checkpoint and those after it together are each row exactly once. The element at
each global position is the one that a run without kills has there.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.laws import split_client

LEGS = (3, 5, 2)
PROGRAM = Path(split_client.__file__)
ROOT = PROGRAM.parents[2]


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    found = [batch["id"].tolist() for batch in split_client.pipeline().epoch(0)]
    rows = (row for i in range(split_client.ROWS) for row in split_client.spread({"id": i}))
    assert sorted(chain.from_iterable(found)) == sorted(row["id"] for row in rows)
    return found


def begun(folder: Path, **asked: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), str(folder), json.dumps(asked)]
    env = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(ROOT / ".pytest_cache/xdg/cache")}
    env["XDG_RUNTIME_DIR"] = str(folder)
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def run(folder: Path, asked: dict[str, Any], *, apart: bool) -> int:
    """What became of the client, or of rank 0 where each rank is a process."""
    folder.mkdir()
    ranks = [{"rank": rank, "after": 0 if rank else asked["after"]} for rank in range(asked["n"])]
    clients = [begun(folder, **asked | rank) for rank in (ranks if apart else [{}])]
    text = clients[0].communicate(timeout=120)[1]
    code = clients[0].returncode
    assert not text, text
    for client in clients[1:]:
        try:
            text = client.communicate(timeout=1 if code else 120)[1]
            assert not text or (code and "WorkerLostError" in text), text
        except subprocess.TimeoutExpired:  # it came when rank 0 was gone, and waits for another
            client.kill()
            client.communicate()
    return code


def received(folder: Path, rank: int) -> list[list[int]]:
    file = folder / f"rank{rank}"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def checkpoint(folder: Path, n: int) -> int:
    """The last step that all ranks have saved; ranks that came to their end count for the rest."""
    steps = [
        max((int(each.name.split("-")[1]) for each in folder.glob(f"state{rank}-*")), default=0)
        for rank in range(n)
    ]
    return min(steps)


@pytest.mark.sample(1)
@pytest.mark.parametrize("apart", [False, True])
def test_a_killed_client_goes_on_with_other_ranks(
    apart: bool, many: Callable[[int, int], int], tmp_path: Path, wanted: list[list[int]]
) -> None:
    cases = range(many(2, 25))
    kills = 0
    for case in cases:
        draw = random.Random(case)
        start, state = 0, ""
        left = len(wanted)
        for leg, n in enumerate(LEGS):
            folder, last = tmp_path / f"{case}-{leg}", leg == len(LEGS) - 1
            after = 0 if last else draw.randint(1, max(1, left * 2 // 3 // (n if apart else 1)))
            asked = {"n": n, "load": state, "after": after, "delay_s": draw.uniform(0, 0.005)}
            code = run(folder, asked, apart=apart)
            assert code == 0 or (code == -signal.SIGKILL and not last)
            kills += code != 0
            step = checkpoint(folder, n)
            told = f"case {case}, {asked}, from element {start}"
            for rank in range(n):
                mine = wanted[start + rank :: n]
                got = received(folder, rank)
                assert got == (mine if last else mine[: len(got)]), told
            if step:
                state = str(folder / f"state{draw.randrange(n)}-{step}")
                start += step * n
            left = len(wanted) - start
    assert kills > len(cases), "most are killed in the middle"
