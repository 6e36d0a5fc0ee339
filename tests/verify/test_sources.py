"""Test that runs which check themselves can read samples again, for every kind of source."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv

import dml
from dml import col
from dml.data.stream_hash import stream_hash
from tests.verify.planting import Sure, as_written


@pytest.mark.law
@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt", "arrow"])
def test_files_of_any_kind_are_read_again(kind: str, sure: Sure, tmp_path: Path) -> None:
    folder = tmp_path / kind
    folder.mkdir()
    table = pa.table({"x": list(range(3000)), "s": [f"row {n}" for n in range(3000)]})
    for part in range(3):
        path = str(folder / f"{part}.{kind}")
        if kind == "csv":
            csv.write_csv(table, path)
        elif kind == "arrow":
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=500)
        else:
            Path(path).write_text(
                "".join(f'{{"x": {n}, "s": "row"}}\n' for n in range(3000)), encoding="utf-8"
            )
    read = {"csv": dml.read_csv, "jsonl": dml.read_json, "txt": dml.read_text}
    ds = read.get(kind, dml.read_arrow)(str(folder))
    column = "text" if kind == "txt" else "s"
    ds = ds.filter(col(column) != "row 7").batch(64)
    checked = sure(ds)
    assert stream_hash(checked) == as_written(ds)
    assert checked.stats().summary["verified"] >= 1
    assert checked.stats().summary["unverified"] == ""
