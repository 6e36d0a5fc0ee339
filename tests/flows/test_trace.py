"""Print one pipeline after every step, and compare with docs/trace.md.

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
# One pipeline, step by step

This page prints one pipeline after each step between the code as written and the batches; the
steps are those of [architecture.md](architecture.md). `ds.explain("physical")`, for example,
prints any pipeline after the step "physical". `tests/flows/test_trace.py` generates
the page, and fails if the page differs from what dml prints.

The data is one Parquet file with 1,000 flights in ten row groups of 100 rows, in ascending order
of `day`. With `atom_rows=50`, each row group consists of two atoms. An atom is a fixed sequence of
rows, in which saved positions are counted.

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
    "written": "The pipeline as the user wrote it: a chain of immutable nodes, printed with the "
    "last verb first. Its schema is\nknown before any row is read.",
    "normalized": "The normal form, in which pipelines with the same meaning are equal. "
    "Fingerprints are computed from the normal form.\nColumns and filters are merged into one "
    "segment, that is, a node that computes and filters columns. `Take(3)` batches\nhas become "
    "`Take(12)` rows, so that it lies beside `Skip(1)`.",
    "chosen": "The pipeline after the rewrites that depend on the data. None applies here. "
    "If the file had at most 13 rows,\nfor example, `Take(12)` would be dropped: after `Skip(1)`, "
    "at most 12 rows are left.",
    "physical": "The plan that runs. Operators marked `block` run on blocks of rows, in parallel "
    "tasks. Operators marked `stream` run on the\nstream of rows, in order. `state` is the size "
    "that an operator adds to a saved position, and `resume` the work that is repeated\nwhen a "
    "run resumes. Three of the four columns are decoded. Row groups of early days are never read.",
    "graph": "The division of the source into tasks. A unit is the data that one reader must "
    "decode in order, here a row group.\nA task reads consecutive units.",
    "rules": "Every rewrite that was applied, in order, with the node before and after it and the "
    "origin of the rule. After these,\nevery rewrite that almost applied, marked `refused`, with "
    "the reason.",
}


POSITION = (
    "The position in the `state_dict()` of the iterator after the first batch. It contains no "
    "rows. The innermost part is a cut of the source:\na unit, an atom in the unit, and the number "
    "of rows to drop after the start of the atom. The parts around it belong\nto the shuffle ("
    "the number of its window, and how many rows of the window were delivered), to `Skip(1)` and "
    "to `Take(12)`\n(the numbers of rows left to skip and to take)."
)


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
            "## batches\n\nThe batches that the training loop receives, which are dicts of "
            "arrays. Their order depends only on the pipeline, its data,\nthe seed and the epoch. "
            "The stream hash is a digest of all values, in order.\n\n```text\n"
            f"{shown}\n"
            f"stream hash {stream_hash(batches)[:16]}\n```\n"
        ),
        "## position\n\n"
        + POSITION
        + f"\n\n```json\n{it.state_dict()['position']!r}\n```\n".replace("'", '"'),
    ]
    return "\n".join(parts)


def test_the_trace_is_what_happens(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = page(tmp_path)
    if request.config.getoption("--update-plans"):
        PAGE.write_text(text, encoding="utf-8")
    assert text == PAGE.read_text(encoding="utf-8")
