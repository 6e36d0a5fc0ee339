"""Run dml as in containers: no home folder, no user name, narrow control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 1 << 30

# In a mount namespace of its own: a quota of one core and, in the group above that of the process,
# a limit of memory; what Python and dml are read from, readable for all; nothing writable but /tmp.
SETUP = """
set -eu
mount --make-rprivate /
cd "$FOLDER"
mkdir -p groups/cpu python tmp
own=groups/memory$(awk -F: '$2=="memory" || $2=="" {print $3; exit}' /proc/self/cgroup)/inner
mkdir -p "$own"
echo 100000 > groups/cpu/cpu.cfs_quota_us; echo 100000 > groups/cpu/cpu.cfs_period_us
for each in "$own" "$own/.."; do echo 1000000 > "$each/memory.usage_in_bytes"; done
echo 9223372036854771712 > "$own/memory.limit_in_bytes"
echo "$LIMIT" > "$own/../memory.limit_in_bytes"
mount --bind "$PYTHON" python
case "$PYTHON" in /root/*) mount -t tmpfs -o mode=755 tmpfs /root; mkdir -p "$PYTHON";; esac
mount --bind python "$PYTHON"
mount --bind "$CODE" /mnt; mount --rbind "$VENV" /media; mount --rbind groups /sys/fs/cgroup
mount -t tmpfs -o mode=1777 tmpfs tmp; cp program.py tmp 2>/dev/null || true
for each in /mnt /media /; do mount -o remount,bind,ro "$each"; done
mount --bind tmp /tmp
cd /mnt
exec setpriv --reuid 54321 --regid 54321 --clear-groups \\
  env -i PATH=/usr/bin:/bin PYTHONPATH=/mnt /media/bin/python "$@"
"""

PROGRAM = """
import os, resource
import numpy as np
import dml
from dml.base import control_groups

def image(row):
    return {"x": np.zeros((256, 1024), "f4") + row["id"]}

if __name__ == "__main__":
    assert "HOME" not in os.environ and not os.access("/mnt", os.W_OK)
    for executor in ("threads", "processes"):
        ds = dml.range(3000).map(image).batch(8).with_options(executor=executor)
        assert sum(len(batch["x"]) for batch in ds) == 3000
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = sum(resource.getrusage(kind).ru_maxrss for kind in kinds) << 10
    print(control_groups.cpu_quota(), control_groups.memory()[1], peak)
"""


def in_a_container(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """``command`` for Python, as a user that the system does not know."""
    settings = {"FOLDER": folder, "PYTHON": sys.base_prefix, "VENV": sys.prefix, "CODE": ROOT}
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", SETUP, "bash", *command],
        env={**os.environ, **{k: str(v) for k, v in settings.items()}, "LIMIT": str(LIMIT_BYTES)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def container(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    tried = in_a_container(tmp_path, "-c", "import numpy")
    if os.getuid() or tried.returncode:
        pytest.skip(f"no namespaces here: {tried.stderr[-200:]}")
    return tmp_path


@pytest.mark.slow
def test_a_container_without_home_or_user_keeps_to_its_groups(container: Path) -> None:
    (container / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = in_a_container(container, "/tmp/program.py")
    assert done.returncode == 0, done.stderr
    cores, limit, peak = done.stdout.split()[-3:]
    assert (float(cores), int(limit)) == (1, LIMIT_BYTES)
    assert int(peak) < LIMIT_BYTES
    warned = [line for line in done.stderr.splitlines() if "home folder" in line]
    assert len(warned) == 1


@pytest.mark.slow
def test_the_example_runs_in_a_container(container: Path) -> None:
    done = in_a_container(container, "examples/demo.py")
    assert done.returncode == 0, done.stderr
    assert "the same bytes" in done.stdout
    said = in_a_container(container, "-m", "dml", "doctor").stdout.splitlines()
    assert [line.split()[-1] for line in said if line.startswith("cores     usable")] == ["1"]
