"""This file gives tests of runs their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dml.dataset import Dataset
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
