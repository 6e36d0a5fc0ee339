"""Test the costs that a process remembers of its runs."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np

import dml
from dml.exec.delivery.observed_costs import SEEN


def test_runs_are_remembered_without_their_functions_and_data(tmp_path: Path) -> None:
    class Table:
        rows = (1.0, 2.0)

    kept: list[weakref.ref[Any]] = []
    for number in range(3):
        data, table = np.full(1000, number, np.float64), Table()
        kept += [weakref.ref(data), weakref.ref(table)]

        def called(row: dict[str, float], table: Table = table) -> dict[str, float]:
            return {"y": row["x"] + table.rows[0]}

        ds = dml.from_numpy({"x": data}).map(called, fingerprint="called").autocache()
        ds = ds.with_options(cache_dir=str(tmp_path), executor="sync", telemetry_dir="off")
        assert len(list(ds)) == 1000
        del ds, data, table, called
    gc.collect()
    assert [each() for each in kept] == [None] * 6
    SEEN.clear()
