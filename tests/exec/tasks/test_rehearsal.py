"""Test functions called for the first rows of a unit to settle types: one call for each row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset

pytestmark = pytest.mark.usefixtures("unchecked")

ROWS = 200
Row = dict[str, Any]
WAYS: list[dict[str, Any]] = [
    {"executor": "sync"},
    {"executor": "threads", "num_workers": 3},
    {"executor": "threads", "num_workers": 2, "scheduler_policy": "fused"},
]


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {**request.param, "telemetry_dir": "off", "cache_dir": str(tmp_path / "kept")}


def small_atoms(tmp_path: Path, rows: int = ROWS, each: int = 10) -> Dataset:
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"x": range(rows)}), path, row_group_size=each)
    return dml.read_parquet(path)


class Counted:
    """A function that counts its calls by row."""

    def __init__(self, fn: Callable[[Row], Any]) -> None:
        self.fn, self.rows = fn, list[int]()

    def __call__(self, row: Row) -> Any:
        self.rows.append(row["x"])
        return self.fn(row)


@pytest.mark.law
def test_types_settle_beyond_an_atom_and_each_row_is_called_once(
    tmp_path: Path, way: dict[str, Any]
) -> None:
    kept = Counted(lambda row: row["x"] % 3 > 0)
    made = Counted(lambda row: {"x": row["x"], "v": None if row["x"] < 25 else row["x"] / 2})
    parts = Counted(lambda row: [{"x": row["x"], "v": row["v"], "part": n} for n in range(2)])
    ds = small_atoms(tmp_path).filter(kept, fingerprint="kept").map(made, fingerprint="made")
    ds = ds.flat_map(parts, fingerprint="parts").cache("disk").with_options(**way)
    rows = [x for x in range(ROWS) if x % 3]
    wanted = [(x, None if x < 25 else x / 2, n) for x in rows for n in range(2)]
    for _ in range(2):
        assert [tuple(row.values()) for row in ds] == wanted
        assert sorted(kept.rows) == list(range(ROWS))
        assert sorted(made.rows) == sorted(parts.rows) == rows


@pytest.mark.law
def test_an_array_that_is_filled_again_is_handed_out_as_it_was(
    tmp_path: Path, way: dict[str, Any]
) -> None:
    own = threading.local()  # two threads that fill one array would see each other's

    def filled(row: Row) -> Row:
        if not hasattr(own, "large"):
            own.large = np.zeros(10_000)
        own.large[:] = row["x"]
        return {"x": row["x"], "large": own.large}

    ds = small_atoms(tmp_path).map(filled, fingerprint="filled").cache("disk").with_options(**way)
    for _ in range(2):
        for row in ds:
            assert (row["large"] == row["x"]).all()


@pytest.mark.law
def test_groups_behind_a_function_of_unknown_types_are_whole(
    tmp_path: Path, way: dict[str, Any]
) -> None:
    def sized(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": batch["x"], "n": np.full(len(batch["x"]), len(batch["x"]))}

    ds = small_atoms(tmp_path, 100, 100)
    ds = ds.map(lambda row: {"x": row["x"], "t": "abcd" * 25_000}, fingerprint="text")
    ds = ds.map_batches(sized, batch_size=50, fingerprint="sized")
    ds = ds.map(lambda row: {**row, "half": row["x"] / 2}, fingerprint="half").cache("disk")
    rows = list(ds.with_options(**way))
    assert [row["x"] for row in rows] == list(range(100))
    assert {row["n"] for row in rows} == {50}


LISTS = [[], [1.0], [float("nan"), 2.0], None, [3.0, None, float("nan")]]


@pytest.mark.law
@pytest.mark.parametrize("size", [0, 1, 3])
def test_what_a_function_made_of_lists_is_known_again(
    tmp_path: Path, way: dict[str, Any], size: int
) -> None:
    path, calls = tmp_path / "lists.parquet", list[int]()
    lists = [LISTS[x % len(LISTS)] for x in range(ROWS)]
    pq.write_table(pa.table({"x": range(ROWS), "lists": lists}), path, row_group_size=4)

    def noting(given: dict[str, Any]) -> dict[str, Any]:
        calls.extend(np.atleast_1d(given["x"]).tolist())
        return {"x": given["x"]}

    ds = dml.read_parquet(path)
    if size:
        ds = ds.map_batches(noting, batch_size=size, fingerprint="noting")
    else:
        ds = ds.map(noting, fingerprint="noting")
    ds = ds.flat_map(lambda row: [row] * 2, fingerprint="twice").cache("disk").with_options(**way)
    assert [row["x"] for row in ds] == [x for x in range(ROWS) for _ in range(2)]
    assert sorted(calls) == list(range(ROWS))


@pytest.mark.law
def test_what_can_be_read_once_is_read_once(way: dict[str, Any]) -> None:
    begun = 0

    def feed() -> Iterator[Row]:
        nonlocal begun
        begun += 1
        yield from ({"x": x} for x in range(300))

    ds = dml.from_generator(feed, schema={"x": "int64"}).filter(lambda row: row["x"] % 9 == 0)
    ds = ds.map(lambda row: {"x": row["x"], "t": str(row["x"])}).with_options(**way)
    assert [row["x"] for row in ds] == list(range(0, 300, 9))
    assert begun == 1


@pytest.mark.law
def test_where_no_row_comes_through_rows_are_looked_at_twice_at_most(
    tmp_path: Path, way: dict[str, Any]
) -> None:
    kept = Counted(lambda _: False)
    ds = small_atoms(tmp_path).filter(kept, fingerprint="none").map(dict, fingerprint="same")
    ds = ds.map(lambda row: {"t": str(row)}, fingerprint="text").cache("disk")
    assert list(ds.with_options(**way)) == []
    assert len(kept.rows) <= 2 * ROWS
