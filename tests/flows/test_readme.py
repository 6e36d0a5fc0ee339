"""Run the pipelines of README.md, on data made for them."""

from __future__ import annotations

import re
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.data.stream_hash import stream_hash

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
ROWS = 5000


def program(what: str) -> str:
    """The README's Python that does ``what``."""
    every = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [each for each in every if what in each]
    return str(found)


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
    exec(program('read_parquet("clicks/'), names)

    first, resumed = names["batch"], next(names["it"])
    assert first["price"].dtype == np.float32
    assert first["price"].shape == (1024,)
    assert first["user"].max() < 1 << 18
    assert set(first) == {"price", "user", "label"}

    every = list(names["ds"].epoch(0))
    assert all(np.array_equal(every[0][name], first[name]) for name in first)
    assert all(np.array_equal(every[1][name], resumed[name]) for name in first)
    assert "unused" not in capsys.readouterr().out


def test_what_the_readme_keeps_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    table = pa.table({"x": np.arange(600), "part": np.arange(600) % 7})
    pq.write_table(table, tmp_path / "photos/1.parquet", row_group_size=100)
    made = tmp_path / "made"

    def decode(row: dict[str, Any]) -> dict[str, Any]:
        with made.open("a") as lines:
            lines.write(f"{row['x']}\n")
        return {"x": row["x"] * 2}

    def augment(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"x": row["x"], "by": rng.random()}

    names: dict[str, Any] = {"dml": dml, "decode": decode, "augment": augment}
    exec(program("cache("), names)
    ds = names["ds"].with_options(cache_dir=str(tmp_path / "kept"), verify="off")
    epochs = [[batch["x"].tolist() for batch in ds.epoch(epoch)] for epoch in (0, 1)]
    assert sorted(map(int, made.read_text().split())) == list(range(600))
    assert epochs[0] != epochs[1]
    assert [sorted(chain(*each)) for each in epochs] == [list(range(0, 1200, 2))] * 2


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning")
def test_the_cluster_of_the_readme_gives_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client, LocalCluster

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    names: dict[str, Any] = {}
    exec(program("demo_corpus"), names)
    ds = names["ds"]

    wanted = stream_hash(islice(ds.with_options(executor="sync"), 4))
    options = {"n_workers": 2, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        iterator = iter(ds.with_options(scheduler=client))
        assert stream_hash(islice(iterator, 4)) == wanted
        iterator.close()
    assert len(ds.streaming_split(3)) == 3
    assert ds.to_dask()
