"""This file checks what is said about the machine, from control group files made up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dml.fleet import host


@pytest.mark.parametrize(
    ("text", "cores"),
    [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("1 0", None), ("x y", None)],
)
def test_cpu_quota(tmp_path: Path, text: str, cores: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert host.cpu_quota(tmp_path) == cores


def test_memory_limit_of_both_versions(tmp_path: Path) -> None:
    assert host.cgroup_bytes(tmp_path) is None
    (tmp_path / "memory").mkdir()
    old = tmp_path / "memory/memory.limit_in_bytes"
    old.write_text("9223372036854771712\n")
    assert host.cgroup_bytes(tmp_path) is None
    old.write_text("1048576\n")
    assert host.cgroup_bytes(tmp_path) == 1 << 20
    (tmp_path / "memory.max").write_text("2097152\n")
    assert host.cgroup_bytes(tmp_path) == 2 << 20


@pytest.mark.parametrize(("gib", "name"), [(1, "1g"), (23.4, "32g"), (32, "32g"), (0.2, "1g")])
def test_machines_of_like_memory_are_one_class(
    monkeypatch: pytest.MonkeyPatch, gib: float, name: str
) -> None:
    monkeypatch.setattr(host, "machine_bytes", lambda: int(gib * host.GIB))
    monkeypatch.setattr(host, "cgroup_bytes", lambda: None)
    assert host.host_class().endswith(f"-{name}")


def test_this_machine_has_cores_and_memory() -> None:
    assert host.cores() >= 1
    assert (host.machine_bytes() or 1) > 0
