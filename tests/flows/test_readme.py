"""This file runs the pipelines that README.md shows, on data made for them."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dml.testing.stream_hash import stream_hash

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
ROWS = 5000


def program(number: int) -> str:
    """The README's Python, by its place on the page."""
    every = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return str(every[number])


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
    names: dict[str, Any] = {}
    exec(program(0), names)

    first, resumed = names["batch"], next(names["it"])
    assert first["price"].dtype == np.float32
    assert first["price"].shape == (1024,)
    assert first["user"].max() < 1 << 18
    assert set(first) == {"price", "user", "label"}

    every = list(names["ds"].epoch(0))
    assert all(np.array_equal(every[0][name], first[name]) for name in first)
    assert all(np.array_equal(every[1][name], resumed[name]) for name in first)
    assert "unused" not in capsys.readouterr().out


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning")
def test_the_cluster_of_the_readme_gives_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client, LocalCluster

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    names: dict[str, Any] = {}
    exec(program(1), names)
    ds = names["ds"]

    wanted = stream_hash(islice(ds.with_options(executor="sync"), 4))
    options = {"n_workers": 2, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        iterator = iter(ds.with_options(scheduler=client))
        assert stream_hash(islice(iterator, 4)) == wanted
        iterator.close()
    assert len(ds.streaming_split(3)) == 3
    assert ds.to_dask()
