"""This file checks what is said about the machine, from control group files made up for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dml
from dml.base import host


def test_cores_are_bound_by_the_quota_and_by_the_affinity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(4)), raising=False)
    for quota, cores in (("150000", 2), ("1000", 1), ("max", 4), ("900000", 4)):
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
        assert host.cores(tmp_path / "nowhere", tmp_path) == cores


def test_workers_and_memory_of_a_run_are_what_the_groups_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "cpu_quota", lambda *_roots: 0.5)
    monkeypatch.setattr(host, "memory", lambda *_roots: (1, 400 << 20))
    report = dml.range(10).memory_report()
    assert (report.workers, report.limit_bytes) == (1, 100 << 20)


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
