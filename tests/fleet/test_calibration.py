"""Test that a machine is measured once, and that invalid measurements are rejected."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from dml.fleet.calibration import MOST_APART, REFERENCE, Measured, calibrated, measured, speed_of
from dml.profile import Speed


def test_a_machine_is_measured_once(tmp_path: Path) -> None:
    asked = itertools.count()

    def measure() -> Measured:
        next(asked)
        return Measured(REFERENCE.step_s * 2, REFERENCE.byte_s * 3)

    speeds = [calibrated(tmp_path, "here", measure) for _ in range(3)]
    assert speeds[0] == speeds[1] == speeds[2]
    assert (speeds[0].work, speeds[0].copying) == pytest.approx((2.0, 3.0))
    assert next(asked) == 1
    calibrated(tmp_path, "there", measure)
    calibrated(None, "here", measure)
    assert next(asked) == 4


DAMAGE = [
    *("", "[]", "{}", "[" * 100_000, '{"step_s": 0, "byte_s": 1}', '{"step_s": "x"}'),
    f'{{"step_s": {10**400}, "byte_s": 1}}',
]


@pytest.mark.parametrize("text", DAMAGE)
def test_damage_is_measured_anew(tmp_path: Path, text: str) -> None:
    calibrated(tmp_path, "here", lambda: REFERENCE)
    (path,) = tmp_path.rglob("*.json")
    path.write_text(text)
    assert calibrated(tmp_path, "here", lambda: REFERENCE) == Speed()


def test_a_store_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("a file")
    assert calibrated(tmp_path, "here", lambda: REFERENCE) == Speed()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path, __: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "replace", full)
    assert calibrated(tmp_path, "here", lambda: REFERENCE) == Speed()
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_a_clock_that_stands_still_says_nothing() -> None:
    assert speed_of(measured(lambda: 0.0)) == Speed()


def test_each_step_is_timed_by_the_clock() -> None:
    ticks = itertools.count()
    found = measured(lambda: next(ticks) * 1.0)
    assert found.step_s > 0
    assert found.byte_s > 0
    assert speed_of(found) == Speed(MOST_APART, MOST_APART)
