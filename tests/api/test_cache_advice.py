"""Test the advice on which outputs of several pipelines to cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api import autocache
from dml.api.dataset import Dataset
from dml.base.read_times import ReadTimes
from dml.errors import PlanError
from dml.exec.delivery.observed_costs import SEEN

QUICK = ReadTimes(((1.0, 1e-12),))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store that takes no time."""
    SEEN.clear()
    monkeypatch.setattr(autocache, "times_of", lambda _root: (QUICK, QUICK))
    yield
    SEEN.clear()


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    if not row["x"] % 20:
        time.sleep(0.005)
    return {"y": row["x"] * 2}


def lengthened(row: dict[str, Any]) -> dict[str, Any]:
    if not row["y"] % 40:
        time.sleep(0.002)
    return {"y": row["y"], "t": "x" * 50}


def squared(row: dict[str, Any]) -> dict[str, Any]:
    if not row["y"] % 40:
        time.sleep(0.002)
    return {"y": row["y"] ** 2}


@pytest.fixture
def jobs(tmp_path: Path) -> list[Dataset]:
    """Three pipelines, two of which decode the same."""
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": np.arange(200)}), path, row_group_size=50)
    first = dml.read_parquet(path).map(decoded, fingerprint="decoded-1").autocache()
    other = dml.read_parquet(path).map(decoded, fingerprint="decoded-2").autocache()
    made = [
        first.map(lengthened, fingerprint="lengthened-1").autocache(),
        first.map(squared, fingerprint="squared-1").autocache(),
        other,
    ]
    usual = {"telemetry_dir": "off", "cache_dir": str(tmp_path / "kept"), "epochs": 5}
    return [each.with_options(**usual) for each in made]


def test_what_nobody_has_measured_is_said(jobs: list[Dataset]) -> None:
    found = dml.worth_keeping(*jobs)
    assert not found.places
    assert len(found.unknown) == 5
    assert "not measured yet" in str(found)


def test_rooms_are_kept_and_more_room_saves_more(jobs: list[Dataset], tmp_path: Path) -> None:
    for each in jobs:
        list(each.with_options(cache_dir=str(tmp_path / "elsewhere")))
    whole = dml.worth_keeping(*jobs)
    assert len(whole.places) == 4
    assert sorted(each.pipelines for each in whole.places) == [1, 1, 1, 2]
    assert not whole.unknown
    assert whole.seconds < whole.uncached_s
    took, found = [whole.uncached_s], whole
    for share in (0.0, 0.1, 0.4, 0.7, 1.0):
        room = max(1, int(share * whole.nbytes))
        found = dml.worth_keeping(*jobs, room=room)
        assert found.nbytes <= room
        took.append(found.seconds)
        assert found.uncached_s == pytest.approx(whole.uncached_s)
    assert took == sorted(took, reverse=True)
    assert took[-1] == pytest.approx(whole.seconds)
    assert len(str(found).splitlines()) == 5
    assert "2 pipelines" in found._repr_html_()
    assert not [*(tmp_path / "kept").rglob("*.arrow")], "nothing is kept by asking"


def test_what_is_there_needs_no_room(jobs: list[Dataset]) -> None:
    for each in jobs:
        for _ in range(2):
            list(each)
    found = dml.worth_keeping(*jobs, room=1)
    there = [each for each in found.places if each.there]
    assert len(there) >= 3, "the end of each"
    assert found.nbytes <= 1
    assert all(str(each).startswith("is there") for each in there)


def test_others_are_refused() -> None:
    with pytest.raises(PlanError, match="worth_keeping needs a pipeline"):
        dml.worth_keeping(3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="room="):
        dml.worth_keeping(dml.range(3), room="much")
    assert not dml.worth_keeping(dml.range(3)).places


def test_rows_are_those_of_the_epoch_that_comes(tmp_path: Path) -> None:
    """With ``reuse=3``, rows of the epochs 0 to 2 are others than those of the epochs 3 to 5."""
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": np.arange(200)}), path, row_group_size=50)
    drawn = dml.read_parquet(path).with_columns(z=dml.random(seed=2)).map(raised, fingerprint="r")
    kept = {"cache_dir": str(tmp_path / "kept"), "telemetry_dir": "off", "epochs": 9}
    ds = drawn.autocache(reuse=3).with_options(**kept)
    names = []
    for epoch in range(5):
        list(ds)
        (found,) = dml.worth_keeping(ds).places
        (there,) = dml.worth_keeping(ds.epoch(epoch + 1)).places
        assert there.fingerprint == found.fingerprint
        names.append(found.fingerprint)
        (told,) = ds.cache_status()
        assert told.name == found.fingerprint
        lines = str(ds.explain("physical")).splitlines()
        (cache_line,) = (each for each in lines if each.startswith("cache "))
        assert f"as {found.fingerprint[:16]}" in cache_line
    assert len(set(names[:2])) == len(set(names[2:])) == 1
    assert len(set(names)) == 2


def raised(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": row["z"] + 1, "k": str(print)}
