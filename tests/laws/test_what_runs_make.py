"""Law: a run creates only the listed files, folders and listeners.

The table states the owner, the lifetime and the purpose of each. Any other one is a failure, and so
is one that other users can open, or that exists for longer than stated.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.laws.made import KINDS
from tests.sampling import is_whole

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="listeners are looked for below /proc"),
]

ROOT = Path(__file__).parents[2]
# What is left after the run, after the process, for runs to come; what is no business of dml's.
RUN, PROCESS, KEPT, THEIRS = "run", "process", "kept", "theirs"
MODES = {"d": "0o700", "-": "0o600", "s": "0o600", "listener": ""}
SAMPLE = ("split", "iterator")


class Made(NamedTuple):
    """What may be made: by its name, how long it stays, and what for."""

    name: str
    stays: str
    why: str


TABLE = (
    Made(r"cache/dml", KEPT, "the user's folder"),
    Made(r"cache/dml/store(/.+)?", KEPT, "rows of cache(tier='disk')"),
    Made(r"cache/dml/kernels-\d+(/.+)?", KEPT, "compiled kernels, which are executed"),
    Made(r"cache/dml/telemetry(/.+)?", KEPT, "what runs did, and what was learned of it"),
    Made(
        r"tmp/dml-spill-[^/]+(/(\d+\.arrow|owned(\.new)?))?", RUN, "rows beyond the memory number"
    ),
    Made(
        r"tmp/dml-spool-[^/]+(/(rows|ask))?", RUN, "rows of an iterator, and who is asked for more"
    ),
    Made(r"tmp/dml-\d+", KEPT, "where ranks meet"),
    Made(r"tmp/dml-\d+/made-[^/]+", PROCESS, "where rank 0 listens, and the secret of the job"),
    Made(r"tcp 127\.0\.0\.1:\d+", PROCESS, "rank 0 of a split over processes"),
    Made(r"tmp/[a-z0-9_]{8}", RUN, "empty, for a moment: Python tries whether it can write there"),
    Made(r"tmp/(dask-scratch-space.*|[0-9a-f-]{36})", THEIRS, "of Dask and of who started it"),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that other users can come to; those of pytest are closed to them."""
    found = Path(tempfile.mkdtemp(prefix="law-made-", dir="/tmp"))
    found.chmod(0o755)
    for name, mode in (("tmp", 0o1777), ("cache", 0o755), ("state", 0o755)):
        (found / name).mkdir()
        (found / name).chmod(mode)
    yield found
    shutil.rmtree(found, ignore_errors=True)


def ran(kind: str, folder: Path) -> dict[str, Any]:
    """What such a run has made."""
    own = {"XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state", "TMPDIR": "tmp", "DML_MADE": ""}
    environment = {**os.environ, **{name: str(folder / each) for name, each in own.items()}}
    environment.pop("XDG_RUNTIME_DIR", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.laws.made", kind],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def wrong(name: str, found: dict[str, Any], folder: Path) -> str:
    """What is not as the table says; empty if all is well."""
    row = next((each for each in TABLE if re.fullmatch(each.name, name)), None)
    if row is None:
        return "it is not in the table"
    if row.stays == THEIRS:
        return ""
    kind, mode, owner = found["seen"][name]
    if mode != MODES.get(kind) or owner != os.getuid():
        return f"it has mode {mode} and is of {owner}"
    if found["able"].get(name):
        return f"another user can {found['able'][name]}"
    if row.stays == RUN and name in found["after"]:
        return "it is left of a run"
    return "it is left of a process" if row.stays == PROCESS and (folder / name).exists() else ""


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_makes_is_in_the_table(kind: str, folder: Path) -> None:
    if kind not in SAMPLE and not is_whole():
        pytest.skip("a sample: the others run with --whole")
    found = ran(kind, folder)
    assert not {name: bad for name in found["seen"] if (bad := wrong(name, found, folder))}
    expected = {"split": "tcp", "sorted": "tmp/dml-spill", "iterator": "tmp/dml-spool"}
    assert any(name.startswith(expected.get(kind, "")) for name in found["seen"] or [""])


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    own = os.getuid()
    seen = {"cache/dml": ["d", "0o700", own], "tmp/dml-spill-1": ["d", "0o700", own]}
    right = {"seen": seen, "after": ["cache/dml"], "able": {}}
    assert not any(wrong(name, right, tmp_path) for name in seen)
    assert "left of a run" in wrong("tmp/dml-spill-1", {**right, "after": [*seen]}, tmp_path)
    open_to_all = {**right, "seen": {"cache/dml": ["d", "0o755", own]}}
    assert "mode 0o755" in wrong("cache/dml", open_to_all, tmp_path)
    assert "can" in wrong("cache/dml", {**right, "able": {"cache/dml": ["read"]}}, tmp_path)
    assert wrong("tmp/dml", {**right, "seen": {"tmp/dml": ["d", "0o700", own]}}, tmp_path)
