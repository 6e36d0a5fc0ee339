"""Test atoms against committed vectors: saved positions of earlier versions stay valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dml.io.memory.memory import from_arrow
from dml.io.memory.range import Range
from dml.io.parquet.parquet import read_parquet
from dml.io.source import Source, balanced

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "atoms.json").read_text(encoding="utf-8")
)


def shape(source: Source, index: int) -> list[int | None]:
    unit = source.unit(index)
    return [unit.atom, unit.atoms, unit.rows, unit.atom_rows]


def table(columns: dict[str, str], rows: int) -> pa.Table:
    return pa.table({name: zeros(kind, rows) for name, kind in columns.items()})


def zeros(word: str, rows: int) -> pa.Array:
    if word.startswith("fixed_size_binary"):
        size = int(word.partition("[")[2][:-1])
        return pa.array([bytes(size)] * rows, pa.binary(size))
    if word == "string":
        return pa.array(["abc"] * rows)
    kind = pa.timestamp("us") if word == "timestamp[us]" else pa.type_for_alias(word)
    return pa.array(np.zeros(rows, np.int64)).cast(kind)


@pytest.mark.parametrize("vector", VECTORS["balanced"])
def test_balanced(vector: dict[str, int]) -> None:
    assert balanced(vector["rows"], vector["nbytes"]) == vector["atom_rows"]


@pytest.mark.law
@pytest.mark.parametrize("vector", VECTORS["parquet"])
def test_parquet(tmp_path: Path, vector: dict[str, Any]) -> None:
    tables = [table(vector["columns"], rows) for rows in vector["row_groups"]]
    with pq.ParquetWriter(tmp_path / "x.parquet", tables[0].schema) as writer:
        for part in tables:
            writer.write_table(part, row_group_size=max(1, part.num_rows))
    source = read_parquet(tmp_path, atom_rows=vector["atom_rows"])
    assert [shape(source, i) for i in range(source.unit_count)] == vector["units"]


@pytest.mark.parametrize("vector", VECTORS["memory"])
def test_memory(vector: dict[str, Any]) -> None:
    assert from_arrow(table(vector["columns"], vector["rows"])).atom_rows == vector["atom_rows"]


@pytest.mark.parametrize("vector", VECTORS["range"])
def test_range(vector: dict[str, Any]) -> None:
    source = Range(vector["start"], vector["stop"], vector["step"])
    assert source.unit_count == vector["units"]
    assert shape(source, source.unit_count - 1) == vector["last"]
