"""This file runs the pipeline that README.md shows, on data made for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
ROWS = 5000


def write_clicks(folder: Path) -> None:
    folder.mkdir()
    for part in range(2):
        rng = np.random.Generator(np.random.Philox(part))
        table = pa.table(
            {
                "price": rng.normal(1.0, 2.0, ROWS),
                "user": rng.integers(0, 1 << 40, ROWS),
                "label": rng.integers(0, 2, ROWS).astype(np.int8),
                "unused": [f"row {i}" for i in range(ROWS)],
            }
        )
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=1000)


def test_the_pipeline_of_the_readme_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_clicks(tmp_path / "clicks")
    monkeypatch.chdir(tmp_path)
    program = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    names: dict[str, Any] = {}
    exec(program.group(1), names)

    first, resumed = names["batch"], next(names["it"])
    assert first["price"].dtype == np.float32
    assert first["price"].shape == (1024,)
    assert first["user"].max() < 1 << 18
    assert set(first) == {"price", "user", "label"}

    every = list(names["ds"].epoch(0))
    assert all(np.array_equal(every[0][name], first[name]) for name in first)
    assert all(np.array_equal(every[1][name], resumed[name]) for name in first)
    assert "unused" not in capsys.readouterr().out
