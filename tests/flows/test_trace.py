"""This file prints one pipeline at every station of the road, and holds docs/trace.md to it.

After a change of texts: ``pytest tests/flows/test_trace.py --update-plans``, then read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.optimize.explain import explained
from dml.optimize.phases import optimize
from dml.testing.stream_hash import stream_hash

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trace.md"

HEAD = """\
# One pipeline, station by station

The road is in [architecture.md](architecture.md). Here one pipeline is printed at each station of
it. The page is made by `tests/flows/test_trace.py`, which also checks that it is still true.

The data are 1,000 flights in one Parquet file: ten row groups of a hundred, `day` rising.

```python
ds = (
    dml.read_parquet("flights.parquet", atom_rows=50)
    .with_columns(speed=col("miles") / (col("minutes") / 60))
    .filter((col("day") >= 70) & (col("speed") < 600))
    .shuffle(32, seed=7)
    .rename({"speed": "mph"})
    .select("day", "mph")
    .skip(1)
    .batch(4)
    .take(3)
)
```
"""

WHY = {
    "written": "What the user wrote: immutable nodes, last verb first, the schema known at once.",
    "normalized": "What it means: columns and filters are one segment, slices count rows and stand "
    "together. Equal meanings have one normal form, and names are made from it.",
    "chosen": "What knowing the data adds: nothing here, since there are more than 13 rows.",
    "physical": "What runs: on blocks, many at a time, and on the stream, in order. Three of the "
    "four columns are decoded; row groups of early days are never read.",
    "graph": "How it is cut: units are what one reader decodes in order, tasks are runs of them.",
    "rules": "How it came about: every rewriting, and every near miss with its reason.",
}


def flights(folder: Path) -> dml.Dataset:
    rows = range(1000)
    table = pa.table(
        {
            "day": [i // 10 for i in rows],
            "miles": [float(100 + i * 37 % 900) for i in rows],
            "minutes": [float(20 + i * 11 % 130) for i in rows],
            "gate": [f"g{i % 9}" for i in rows],
        }
    )
    pq.write_table(table, folder / "flights.parquet", row_group_size=100)
    return (
        dml.read_parquet(str(folder / "flights.parquet"), atom_rows=50)
        .with_columns(speed=col("miles") / (col("minutes") / 60))
        .filter((col("day") >= 70) & (col("speed") < 600))
        .shuffle(32, seed=7)
        .rename({"speed": "mph"})
        .select("day", "mph")
        .skip(1)
        .batch(4)
        .take(3)
    )


def page(folder: Path) -> str:
    ds = flights(folder)
    stations = optimize(ds._node, 0)
    parts = [HEAD]
    for stage, why in WHY.items():
        text = explained(stations, stage, micros=False).replace(str(folder) + "/", "")
        parts.append(f"## {stage}\n\n{why}\n\n```text\n{text}\n```\n")
    run = ds.with_options(executor="sync")
    batches = list(run)
    shown = "\n".join(
        f"day {b['day'].tolist()}, mph {[round(v, 1) for v in b['mph'].tolist()]}" for b in batches
    )
    it = iter(run)
    next(it)
    parts += [
        (
            "## batches\n\nWhat training sees: dicts of arrays, in an order that (seed, epoch, "
            f"row) decide.\n\n```text\n{shown}\nstream hash {stream_hash(batches)[:16]}\n```\n"
        ),
        "## position\n\nWhere the caller is after the first batch: cuts of the source and small "
        f"remainders, never rows.\n\n```json\n{it.state_dict()['position']!r}\n```\n".replace(
            "'", '"'
        ),
    ]
    return "\n".join(parts)


def test_the_trace_is_what_happens(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = page(tmp_path)
    if request.config.getoption("--update-plans"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == PAGE.read_text(encoding="utf-8")
