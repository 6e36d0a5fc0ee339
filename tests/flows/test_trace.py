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
from dml.data.stream_hash import stream_hash
from dml.optimize.explain.stations import explained
from dml.optimize.phases import optimize

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trace.md"

HEAD = """\
# One pipeline, station by station

This page prints one pipeline at each station of the road that [architecture.md](architecture.md)
describes. `tests/flows/test_trace.py` generates the page, and checks that it is still true.

The data is one Parquet file with 1,000 flights in ten row groups of 100 rows. `day` increases.

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
    "written": "The pipeline as the user wrote it: immutable nodes, with the last verb first. The "
    "schema is known immediately.",
    "normalized": "The meaning of the pipeline: columns and filters form one segment, and slices "
    "count rows and stand together.\nPipelines with equal meanings have the same normal form, and "
    "fingerprints are computed from it.",
    "chosen": "The rewrites that depend on the data. Here there are none, because the data has "
    "more than 13 rows.",
    "physical": "The plan that runs: some operators run on blocks, many at a time, and the others "
    "on the stream, in order.\nThree of the four columns are decoded. Row groups of early days are "
    "never read.",
    "graph": "The division into tasks: a unit is the data that one reader must decode in order, "
    "and a task is a run of units.",
    "rules": "The derivation of the plan: every rewrite, and every near miss with its reason.",
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
            "## batches\n\nThe output that the training loop receives: dicts of arrays, in an "
            f"order that depends only on (seed, epoch, row).\n\n```text\n{shown}\n"
            f"stream hash {stream_hash(batches)[:16]}\n```\n"
        ),
        "## position\n\nThe position of the caller after the first batch: it consists of cuts "
        "of the source and small remainders, and never contains rows.\n\n```json\n"
        + f"{it.state_dict()['position']!r}\n```\n".replace("'", '"'),
    ]
    return "\n".join(parts)


def test_the_trace_is_what_happens(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = page(tmp_path)
    if request.config.getoption("--update-plans"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == PAGE.read_text(encoding="utf-8")
