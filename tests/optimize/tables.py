"""Create the small tables over which the optimizer's tests write pipelines."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml

ROWS = 23


def flights() -> dml.Dataset:
    """Twenty-three rows in atoms of four: nulls, NaN, -0.0, small integers that overflow."""
    late = [None if i % 7 == 3 else float(i % 5) - 2 for i in range(ROWS)]
    late[5], late[6] = math.nan, -0.0
    return dml.from_dict(
        {
            "id": list(range(ROWS)),
            "late": late,
            "miles": np.array([(i * 37) % 120 for i in range(ROWS)], dtype=np.int8),
            "gate": [f"g{i % 3}" if i % 4 else None for i in range(ROWS)],
        },
        atom_rows=4,
    )


def parquet(folder: Path, rows: int = 40, group: int = 8) -> dml.Dataset:
    """Rows in order of ``id``, in row groups of ``group``, atoms of three."""
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "x": pa.array([i / 4 for i in range(rows)]),
            "name": pa.array([f"n{i}" for i in range(rows)]),
        }
    )
    path = folder / "rows.parquet"
    pq.write_table(table, path, row_group_size=group)
    return dml.read_parquet(str(path), atom_rows=3)
