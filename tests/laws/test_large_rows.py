"""This file runs pipelines over rows of 4 MiB under 64 MiB."""

from __future__ import annotations

import numpy as np
import pytest

import dml


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_the_first_row_may_be_as_large_as_any(executor: str) -> None:
    ids = dml.range(2).concat(dml.range(2)).take(3)
    ds = ids.map(lambda row: {"x": np.full(1 << 20, row["id"], "f4")}).batch(1)
    ds = ds.with_options(executor=executor, num_workers=2, memory_limit="64MiB")
    assert sum(len(batch["x"]) for batch in ds.with_options(telemetry_dir="off")) == 3
