"""Test Zarr arrays: rows along the first axis, chunks as atoms, groups as columns."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.errors import PlanError, SourceError
from dml.io.tables.zarr import Zarr
from dml.io.user.user_source import GivenRows, read_datasource
from dml.testing.source_laws import check_same_data, check_source

zarr = pytest.importorskip("zarr")


def arrays(rows: int) -> dict[str, np.ndarray]:
    return {
        "image": np.arange(rows * 6, dtype="f4").reshape(rows, 2, 3),
        "label": np.arange(rows) % 5,
        "ok": np.arange(rows) % 2 == 0,
    }


def written(folder: Path, data: dict[str, np.ndarray], chunk: int) -> str:
    group = zarr.open_group(str(folder), mode="w")
    for name, values in data.items():
        stored = group.create_array(
            name, shape=values.shape, dtype=values.dtype, chunks=(chunk, *values.shape[1:])
        )
        stored[:] = values
    return str(folder)


def source_of(path: str, names: Any = None) -> GivenRows:
    source = read_datasource(Zarr(path, names), b"n")
    assert isinstance(source, GivenRows)
    return source


@pytest.mark.law
@given(st.integers(1, 17), st.integers(1, 6))
@settings(max_examples=12)
def test_groups_keep_all_laws(
    tmp_path_factory: pytest.TempPathFactory, rows: int, chunk: int
) -> None:
    path = written(tmp_path_factory.mktemp("zarr") / "g", arrays(rows), chunk)
    source = source_of(path)
    check_source(source, dml.from_numpy(arrays(rows)).to_arrow())
    assert source.unit_count == -(-rows // chunk)


@pytest.mark.law
def test_an_array_is_one_column(tmp_path: Path) -> None:
    path = written(tmp_path / "g", arrays(7), 3)
    ds = dml.read_zarr(f"{path}/label")
    assert [row["item"] for row in ds] == [0, 1, 2, 3, 4, 0, 1]
    assert dml.read_zarr(path, ["label", "ok"]).columns == ["label", "ok"]


@pytest.mark.law
def test_a_shuffle_reads_in_its_order(tmp_path: Path) -> None:
    ds = dml.read_zarr(written(tmp_path / "g", arrays(20), 3)).shuffle(seed=2)
    assert "in the order of ShuffleAll" in ds.explain("physical")
    rows = {int(row["image"][0, 0]) // 6: row["label"] for row in ds}
    assert rows == {i: i % 5 for i in range(20)}


@pytest.mark.law
def test_content_is_the_name(tmp_path: Path) -> None:
    path = written(tmp_path / "one", arrays(7), 3)
    shutil.copytree(path, tmp_path / "two")
    check_same_data(source_of(path), source_of(str(tmp_path / "two")))
    check_same_data(source_of(path), pickle.loads(pickle.dumps(source_of(path))))
    before = dml.read_zarr(path).fingerprint()
    zarr.open(path, mode="r+")["label"][3] = 9
    assert dml.read_zarr(path).fingerprint() != before


@pytest.mark.law
def test_what_makes_no_rows_is_refused(tmp_path: Path) -> None:
    data = {"a": np.arange(3), "b": np.arange(4)}
    path = written(tmp_path / "g", data, 2)
    with pytest.raises(SourceError, match="'a' and 'b' have 3 and 4 rows"):
        dml.read_zarr(path)
    assert dml.read_zarr(path, ["b"]).count() == 4
    with pytest.raises(SourceError, match="has no array 'c'"):
        dml.read_zarr(path, ["c"])
    with pytest.raises(SourceError, match="has no arrays"):
        dml.read_zarr(written(tmp_path / "none", {}, 2))
    with pytest.raises(SourceError, match="cannot be read as Zarr"):
        dml.read_zarr(tmp_path / "nowhere")
    (Path(path) / "a" / "zarr.json").write_text("damaged")
    with pytest.raises(SourceError, match="cannot be read as Zarr"):
        dml.read_zarr(path)
    with pytest.raises(SourceError, match="complex128"):
        dml.read_zarr(written(tmp_path / "odd", {"z": np.zeros(3, "c16")}, 2))


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(PlanError, match="read_zarr needs the library zarr") as caught:
        dml.read_zarr(tmp_path)
    assert "dml[zarr]" in caught.value.try_
