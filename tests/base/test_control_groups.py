"""Test limits on processors and memory that are read from made-up control group files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dml.base import control_groups

NONE = "9223372036854771712"  # what version 1 says where nothing is set
OLD = "memory.limit_in_bytes"


def tree(root: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Roots of processes and of groups, with these files; this process is in ``own``."""
    for name, text in {"proc/self/cgroup": own, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root / "proc", root / "groups"


def v1(folder: str, quota: str, period: str = "100000") -> dict[str, str]:
    names = (f"groups/{folder}/cpu.cfs_quota_us", f"groups/{folder}/cpu.cfs_period_us")
    return dict(zip(names, (quota, period), strict=True))


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/", {"groups/cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"groups/cpu.max": "max 100000"}, None),
        ("0::/", {"groups/cpu.max": ""}, None),
        ("0::/", {"groups/cpu.max": "1 0"}, None),
        ("0::/", {"groups/cpu.max": "x y"}, None),
        ("0::/", {}, None),
        ("0::/a/b", {"groups/a/b/cpu.max": "max 100000", "groups/a/cpu.max": "50000 50000"}, 1),
        ("0::/a/b", {"groups/a/b/cpu.max": "1 2", "groups/a/cpu.max": "1 1"}, 0.5),
        ("0::/a/b", {"groups/b/cpu.max": "1 2"}, None),  # of another group
        ("3:cpu,cpuacct:/a/b", v1("cpu/a/b", "-1") | v1("cpu/a", "300000"), 3),
        ("3:cpu,cpuacct:/a", v1("cpu,cpuacct/a", "200000"), 2),
        ("3:cpuset:/a\n4:cpu:/", v1("cpuset/a", "200000"), None),
        ("3:cpu:/docker/of/the/host", v1("cpu", "250000"), 2.5),  # mounted as the root
        ("3:cpu:/a\n0::/a", v1("cpu/a", "400000") | {"groups/a/cpu.max": "2 1"}, 2),
        ("0::/x", {"groups/unified/x/cpu.max": "7 2"}, 3.5),
        ("0::/../x", {"groups/cpu.max": "1 1", "x/cpu.max": "1 2"}, 1),
    ],
)
def test_cores_are_those_of_the_narrowest_level(
    tmp_path: Path, own: str, files: dict[str, str], cores: float | None
) -> None:
    assert control_groups.cpu_quota(*tree(tmp_path, own, files)) == cores


@pytest.mark.parametrize(
    ("own", "files", "memory"),
    [
        ("0::/a", {"groups/a/memory.current": "5", "groups/a/memory.max": "7"}, (5, 7)),
        ("0::/a", {"groups/a/memory.current": "5", "groups/a/memory.max": "max"}, (5, None)),
        ("0::/a/b", {"groups/a/b/memory.max": "9", "groups/a/memory.max": "7"}, (None, 7)),
        ("0::/a/b", {"groups/a/b/memory.max": "max", "groups/memory.max": "7"}, (None, 7)),
        ("4:memory:/x", {f"groups/memory/x/{OLD}": NONE}, (None, None)),
        (
            "9:cpu:/\n4:memory:/x/y",
            {
                f"groups/memory/x/y/{OLD}": NONE,
                "groups/memory/x/y/memory.usage_in_bytes": "3",
                f"groups/memory/x/{OLD}": "8",
                "groups/memory/x/memory.usage_in_bytes": "4",
            },
            (4, 8),
        ),
        ("4:memory:/of/the/host", {f"groups/memory/{OLD}": "8"}, (None, 8)),
        (
            "4:memory:/x\n0::/x",
            {f"groups/memory/x/{OLD}": "8", "groups/x/memory.max": "6"},
            (None, 6),
        ),
        ("4:memory:/x\n0::/x", {"groups/memory/x/memory.usage_in_bytes": "2"}, (2, None)),
    ],
)
def test_memory_is_that_of_the_narrowest_level(
    tmp_path: Path, own: str, files: dict[str, str], memory: tuple[int | None, int | None]
) -> None:
    assert control_groups.memory(*tree(tmp_path, own, files)) == memory


def test_where_nothing_is_mounted_nothing_is_said(tmp_path: Path) -> None:
    assert control_groups.cpu_quota(tmp_path, tmp_path) is None
    assert control_groups.memory(tmp_path, tmp_path) == (None, None)


def test_where_the_process_is_unknown_the_root_counts(tmp_path: Path) -> None:
    _, groups = tree(tmp_path, "0::/", {"groups/cpu.max": "1 2", f"groups/memory/{OLD}": "8"})
    assert control_groups.cpu_quota(tmp_path / "nowhere", groups) == 0.5
    assert control_groups.memory(tmp_path / "nowhere", groups) == (None, 8)


def test_a_line_is_read_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now_s = [10.0]
    monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
    file = tmp_path / "cpu.max"
    file.write_text("100000 100000\n")
    assert control_groups.cpu_quota(tmp_path / "nowhere", tmp_path) == 1.0
    file.write_text("300000 100000\n")
    assert control_groups.cpu_quota(tmp_path / "nowhere", tmp_path) == 1.0
    now_s[0] += 2 * control_groups.FRESH_S
    assert control_groups.cpu_quota(tmp_path / "nowhere", tmp_path) == 3.0
