"""Test the warning for files with far fewer rows than the requested groups."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml


def same(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch as it is."""
    return {"id": batch["id"]}


def files(folder: Path, count: int, rows: int) -> dml.Dataset:
    """So many Parquet files of so many rows."""
    for number in range(count):
        pq.write_table(pa.table({"id": range(rows)}), folder / f"{number:02d}.parquet")
    return dml.read_parquet(folder).with_options(telemetry_dir="off")


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_one_warning_names_what_groups_across_files(tmp_path: Path, executor: str) -> None:
    ds = files(tmp_path, 20, 10).map_batches(same).with_options(executor=executor)
    with pytest.warns(UserWarning, match=r"about 10 rows, not 1024.*\.batch\(1024\)\.map") as seen:
        assert sum(1 for _ in ds) == 200
    assert len(seen) == 1
    assert seen[0].filename == __file__


@pytest.mark.parametrize(("count", "rows", "size"), [(15, 10, None), (20, 600, None), (20, 10, 20)])
def test_few_files_and_groups_of_half_the_size_are_no_reason(
    tmp_path: Path, count: int, rows: int, size: int | None
) -> None:
    ds = files(tmp_path, count, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(ds.map_batches(same, batch_size=size))
        list(ds.batch(1024).map(same))
