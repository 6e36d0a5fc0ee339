"""Test the description of the machine, partly with made-up control group files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import dml
from dml.base import host
from dml.errors import PlanError


def test_cores_are_bound_by_the_quota_and_by_the_affinity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(4)), raising=False)
    for quota, cores in (("150000", 2), ("1000", 1), ("max", 4), ("900000", 4)):
        (tmp_path / quota).mkdir()
        (tmp_path / quota / "cpu.max").write_text(f"{quota} 100000\n")
        assert host.cores(tmp_path / "nowhere", tmp_path / quota) == cores


def test_workers_and_memory_of_a_run_are_what_the_groups_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "cpu_quota", lambda *_roots: 0.5)
    monkeypatch.setattr(host, "memory", lambda *_roots: (1, 400 << 20))
    report = dml.range(10).memory_report()
    assert (report.workers, report.limit_bytes) == (1, 100 << 20)


def host_with_gpus(folder: Path, count: int) -> Path:
    """A folder of device files, as the driver makes them."""
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(count))):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        *(
            (None, 3),
            ("", 0),
            ("-1", 0),
            ("0,2", 2),
            ("1,-1,2", 1),
            ("GPU-4d7b", 1),
            ("0,1,2,3", 3),
        ),
        *(
            ("5", 0),
            ("7,0", 0),
            ("0,5,1", 1),
            ("none", 0),
            ("-2", 0),
            ("0, 1", 2),
            ("NoDevFiles", 0),
        ),
        *((" 1 ", 1), ("00", 1), ("+2,1", 2), ("1gpu2,2ampere", 2), (",0", 0), ("0,,1", 1)),
        # a device named twice
        *(("0,0", 0), ("0,1,00", 0), ("GPU-4d7b,GPU-4d7b", 0), ("0,-1,0", 1), ("MIG-1,MIG-1", 0)),
        # names of another kind end the list
        *(("GPU-4d7b,GPU-5", 2), ("GPU-1,GPU-2,GPU-3,GPU-4", 3), ("GPU-4d7b,0", 1)),
        *(("0,GPU-4d7b", 1), ("GPU-4d7b,MIG-5,GPU-6", 1), ("gpu-4d7b", 0)),
        # of MIG devices, a process sees one
        *(("MIG-4d7b", 1), ("MIG-4d7b,MIG-5", 1), ("MIG-GPU-4d7b/7/0,MIG-GPU-4d7b/8/0", 1)),
    ],
)
def test_gpus_are_those_that_cuda_may_see(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str | None, count: int
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert host.gpus(tmp_path) == 0  # no driver
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert host.gpus(host_with_gpus(tmp_path, 3)) == count


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_a_step_uses_the_gpus_of_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, executor: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(host.gpus, "__defaults__", (host_with_gpus(tmp_path, 1),))
    ds = dml.range(10).map_batches(lambda batch: batch, num_gpus=1)
    ds = ds.with_options(executor=executor, telemetry_dir="off")
    assert [row["id"] for row in ds] == [*range(10)]
    assert "needs gpu" not in str(ds.what_if())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(PlanError, match="needs gpu=1"):
        iter(ds)
    assert len([*ds.with_options(resources={"GPU": 1})]) == 10


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


def test_a_processor_without_further_instructions_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(np, "show_config", lambda **_: {"SIMD Extensions": {"baseline": ["A"]}})
    assert host.vector_instructions() == "A"
    monkeypatch.setattr(np, "show_config", lambda **_: {})
    assert host.vector_instructions() == ""
