"""Test ``dml doctor`` on a healthy machine and on machines with problems."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dml.base import host
from dml.cli import doctor as doctor_file


@pytest.fixture(autouse=True)
def small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_file, "PROBE_BYTES", 1 << 16)
    monkeypatch.setattr(doctor_file, "SLOW_BYTES_PER_S", 0.0)


def test_a_machine_that_is_well(dml: Callable[..., Any], tmp_path: Path) -> None:
    told = dml("doctor", "--cache-dir", tmp_path / "c", "--telemetry-dir", tmp_path / "t", "--json")
    assert told.code == 0
    found = {each["name"]: each for each in told.json["checks"]}
    assert found["numpy"]["value"]
    assert found["usable"]["value"] >= 1
    assert found["write bytes/s"]["value"] > 0
    assert found["writable"]["value"] is True
    assert not list((tmp_path / "c").iterdir())


def test_folders_that_cannot_be_written_are_bad(dml: Callable[..., Any], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    told = dml("doctor", "--cache-dir", blocked / "c", "--telemetry-dir", blocked / "t")
    assert told.code == 1
    assert told.out.count("[bad]") == 2


def test_telemetry_may_be_off(dml: Callable[..., Any], tmp_path: Path) -> None:
    told = dml("doctor", "--cache-dir", tmp_path, "--telemetry-dir", "off")
    assert told.code == 0
    assert "telemetry folder                off" in told.out


def test_a_missing_package_is_bad(
    dml: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_file, "PACKAGES", ("dml", "no-such-package-at-all"))
    told = dml("doctor", "--cache-dir", tmp_path, "--telemetry-dir", "off")
    assert told.code == 1
    assert "[bad] pip install no-such-package-at-all" in told.out


def test_compiled_kernels_are_counted(tmp_path: Path) -> None:
    own = tmp_path / f"kernels-{os.geteuid()}" / "deep"
    own.mkdir(parents=True)
    (own / "kernel.nbc").write_bytes(b"12345")
    assert [each.value for each in doctor_file.compiled(tmp_path)] == [1, 5]


def test_a_quota_is_shown_beside_the_cores_that_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cores", lambda: 2)
    monkeypatch.setattr(doctor_file, "cpu_quota", lambda: 1.5)
    found = {each.name: each.value for each in doctor_file.cores()}
    assert (found["usable"], found["cgroup quota"]) == (2, 1.5)
