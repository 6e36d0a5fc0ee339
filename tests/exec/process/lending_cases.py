"""A pipeline whose partitions are large enough for shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

import dml

WIDTH = 600_000  # 4.8 MB of each unit: what is smaller is not lent


def widened(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"x": batch["id"][:, None] * 3 + np.arange(WIDTH)}


def turned(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": batch["x"][:, ::-1] + 1}


def pipeline(units: int, **options: Any) -> dml.Dataset:
    """Two stages: workers open what others lend, and the client what all lend; a batch a unit."""
    ds = dml.range(units, atom_rows=1).map_batches(widened)
    ds = ds.map_batches(turned, num_cpus=0.5).batch(1)
    return ds.with_options(telemetry_dir="off", target_partition_bytes=1, **options).epoch(0)
