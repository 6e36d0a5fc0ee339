"""This file gives tests of runs their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dml.dataset import Dataset
from dml.exec.gauge import Begun, Gauge
from tests.exec.planting import Sure


@pytest.fixture
def sure(tmp_path: Path) -> Sure:
    """Options of a run that checks itself, in the caller's thread."""

    def made(ds: Dataset, **options: Any) -> Dataset:
        where = {"verify_dir": str(tmp_path / "bundles"), "telemetry_dir": "off"}
        return ds.with_options(**{"verify": "sample", "executor": "sync", **where, **options})

    return made


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stored rows are computed again: calls of functions are counted."""
    monkeypatch.setattr("dml.keeping.checked", lambda _: False)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices in this process take nothing beside what is accounted for.

    What is measured is the process's, which other tests' libraries and threads share: a law of what
    the accounts say in bytes cannot rest on it. `test_gauge.py` is about the measure itself.
    """
    end = Gauge.end

    def uncounted(gauge: Gauge, begun: Begun) -> int:
        end(gauge, begun)
        return 0

    monkeypatch.setattr(Gauge, "end", uncounted)
