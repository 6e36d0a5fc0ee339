"""This file measures whether a slow function keeps all workers busy, wherever it stands.

    python benchmarks/bench_shapes.py [--executor threads] [--workers 8] [--turns 5] [shape...]

Of ordinary pipelines with one function that waits 20 ms a row (as for an object store), or computes
that long: seconds to the first batch and to the last, and how many times the time that the workers
would take if they did nothing else. The median of all turns; pools are warm. Where the function
computes, no more workers count than there are processors.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

import dml
from dml.api.dataset import Dataset

ROWS, WORK_S = 320, 0.02
DRAWN = np.random.default_rng(0).lognormal(sigma=1.0, size=ROWS)
TIMES = (DRAWN * (WORK_S / DRAWN.mean())).tolist()
Row = dict[str, Any]
Batch = dict[str, np.ndarray]


def waiting(seconds: float = WORK_S) -> None:
    """Work that leaves the processor to others."""
    time.sleep(seconds)


def computing(seconds: float = WORK_S) -> None:
    """Work in Python, which holds its lock: so much processor time of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Functions:
    """The slow functions of the shapes, all of which do the same ``work`` for a row."""

    def __init__(self, work: Callable[..., None]) -> None:
        self.work = work

    def load(self, row: Row) -> Row:
        """One row for one."""
        self.work()
        return {"id": row["id"], "y": float(len(str(row)))}

    def draw(self, row: Row, rng: Any) -> Row:
        """One row for one, with a random number."""
        self.work()
        return {"id": row["id"], "y": float(rng.random())}

    def keep(self, _row: Row) -> bool:
        """All rows."""
        self.work()
        return True

    def expand(self, row: Row) -> Iterator[Row]:
        """Three rows of each."""
        self.work()
        for part in range(3):
            yield {"id": row["id"], "part": part}

    def columns(self, batch: Batch) -> Batch:
        """Some rows at once."""
        self.work(WORK_S * len(batch["id"]))
        return {"id": batch["id"], "y": np.ones(len(batch["id"]))}

    def failing(self, row: Row) -> Row:
        """One row for one, but for every tenth."""
        self.work()
        if row["id"] % 10 == 9:
            raise ValueError("every tenth row")
        return {"id": row["id"]}

    def uneven(self, row: Row) -> Row:
        """One row for one; one in a hundred takes fifty times as long."""
        self.work(WORK_S * (50 if row["id"] % 100 == 50 else 1) / 1.5)
        return {"id": row["id"]}

    def some(self, row: Row) -> Dataset:
        """A pipeline of ten rows, of which each takes as long."""
        return dml.range(10 * row["id"], 10 * row["id"] + 10).map(self.load)

    def drawn(self, row: Row) -> Row:
        """One row for one, in a time that is log-normal (sigma 1)."""
        self.work(TIMES[row["id"]])
        return {"id": row["id"]}

    def drawn_large(self, row: Row) -> Row:
        """The same, of 4 MiB."""
        self.work(TIMES[row["id"]])
        return {"id": row["id"], "x": np.full(1 << 20, row["id"], "f4")}

    def large(self, row: Row) -> Row:
        """A row of 4 MiB."""
        self.work()
        return {"id": row["id"], "x": np.full(1 << 20, row["id"], "f4")}


class Loader:
    """The same as a class with a state."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    def __call__(self, row: Row) -> Row:
        """One row for one."""
        return self.functions.load(row)


class Samples:
    """A map-style dataset of PyTorch's kind, whose samples each take as long."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Row:
        return self.functions.load({"id": index})


class Shape(NamedTuple):
    """A pipeline, how many times ``ROWS`` calls it makes, and whether its elements are batches."""

    ds: Dataset
    times: float = 1
    batched: bool = False


def sources(folder: Path) -> dict[str, Dataset]:
    """The same rows of every kind of source, by name."""
    table = pa.table({"path": [f"{folder}/{n:04d}.bin" for n in range(ROWS)], "id": range(ROWS)})
    for path in table["path"].to_pylist():
        Path(path).write_bytes(b"x" * 2000)
    pq.write_table(table, folder / "one.parquet")
    pq.write_table(table, folder / "many.parquet", row_group_size=10)
    pc.write_csv(table, folder / "one.csv")
    rows = table.to_pylist()
    lines = "".join(f'{{"path": "{row["path"]}", "id": {row["id"]}}}\n' for row in rows)
    (folder / "one.jsonl").write_text(lines)
    files = dml.read_binary_files(f"{folder}/*.bin").with_row_index("id").select("id")
    return {
        "items": dml.from_items(rows),
        "dict": dml.from_dict(table.to_pydict()),
        "arrow": dml.from_arrow(table),
        "one row group": dml.read_parquet(folder / "one.parquet"),
        "row groups": dml.read_parquet(folder / "many.parquet"),
        "csv": dml.read_csv(folder / "one.csv"),
        "jsonl": dml.read_json(folder / "one.jsonl"),
        "files": files,
        "generator": dml.from_generator(lambda: iter(rows)),
        "range": dml.range(ROWS),
    }


def shapes(folder: Path, f: Functions) -> dict[str, Shape]:
    """All of them, by name; those that are named after a source have ``load`` right above it."""
    found = sources(folder) | {"slow generator": dml.from_generator(_slowly)}
    many, items = found["row groups"], found["items"]
    one = {name: Shape(ds.map(f.load)) for name, ds in found.items()}
    typed = many.map(f.load, schema={"id": "int64", "y": "float64"})
    return {
        **one,
        "random_map": Shape(items.random_map(f.draw)),
        "filter": Shape(items.filter(f.keep)),
        "flat_map": Shape(items.flat_map(f.expand)),
        "map_batches": Shape(items.map_batches(f.columns, batch_size=4)),
        "class": Shape(items.map(Loader, fn_constructor_args=(f,))),
        "shuffle(100).map": Shape(items.shuffle(100).map(f.load)),
        "shuffle().map": Shape(many.shuffle().map(f.load)),
        "take.map": Shape(many.take(ROWS - 1).map(f.load)),
        "batch.map": Shape(many.batch(8).map(f.columns), batched=True),
        "unbatch.map": Shape(many.batch(8).unbatch().map(f.load)),
        "repeat.map": Shape(many.repeat(2).map(f.load), 2),
        "concat.map": Shape(many.concat(many).map(f.load), 2),
        "zip.map": Shape(dml.zip(many.select("path"), many.select("id")).map(f.load)),
        "mix.map": Shape(many.mix(many).map(f.load), 2),
        "interleave(map)": Shape(dml.range(ROWS // 10).interleave(f.some, cycle_length=8)),
        "join.map": Shape(many.join(many.rename({"path": "other"}), on="id").map(f.load)),
        "sort.map": Shape(many.sort("path").map(f.load)),
        "scan.map": Shape(many.scan(0, _running).map(f.load)),
        "shuffle.map.cache": Shape(items.shuffle(100).map(f.load).cache()),
        "map.shuffle(100).map": Shape(items.map(f.load).shuffle(100).map(f.load), 2),
        "map.shuffle()": Shape(typed.shuffle()),
        "filter.map.flat_map": Shape(items.filter(f.keep).map(f.load).flat_map(f.expand), 3),
        # both are of the same rows, which are made once
        "zip(map, map).map": Shape(dml.zip(typed.select("id"), typed.select("y")).map(f.load), 2),
        "map.batch.map": Shape(items.map(f.load).batch(8).map(f.columns), 2, batched=True),
        "on_error=skip": Shape(items.map(f.failing, on_error="skip")),
        "random_map.cache.map": Shape(items.random_map(f.draw).cache().map(f.load)),  # once kept
        "uneven": Shape(items.map(f.uneven)),
        "rows of 4 MiB": Shape(items.map(f.large)),
        **_more(items, f),
    }


def _more(items: Dataset, f: Functions) -> dict[str, Shape]:
    """Samples of a dataset; functions whose times differ, with and without the order of rows."""
    return {
        "from_torch": Shape(dml.from_torch(Samples(f), {"id": "int64", "y": "float64"})),
        "log-normal": Shape(items.map(f.drawn)),
        "log-normal, any order": Shape(items.map(f.drawn, deterministic=False)),
        "log-normal 4 MiB": Shape(items.map(f.drawn_large)),
        "log-normal 4 MiB, any order": Shape(items.map(f.drawn_large, deterministic=False)),
    }


def _slowly() -> Iterator[Row]:
    """Rows that come one by one, in the time that eight workers take for each."""
    for number in range(ROWS):
        time.sleep(WORK_S / 8)
        yield {"id": number}


def _running(state: int, row: Row) -> tuple[int, Row]:
    return state + 1, {"id": row["id"], "state": state}


def timed(shape: Shape, options: dict[str, Any]) -> tuple[float, float]:
    """Seconds to the first batch, and to the end of an epoch."""
    ds = shape.ds if shape.batched else shape.ds.batch(16)
    started = time.perf_counter()
    batches = iter(ds.with_options(telemetry_dir="off", **options))
    next(batches)
    first_s = time.perf_counter() - started
    for _ in batches:
        pass
    return first_s, time.perf_counter() - started


@contextmanager
def way(executor: str, workers: int) -> Iterator[dict[str, Any]]:
    """The options of a run; a cluster has processes of four threads."""
    if executor != "distributed":
        yield {"executor": executor, "num_workers": workers}
        return
    from distributed import Client, LocalCluster  # noqa: PLC0415 - where one is asked for

    processes = {"n_workers": max(1, workers // 4), "threads_per_worker": min(4, workers)}
    with LocalCluster(**processes, dashboard_address=None) as cluster, Client(cluster) as client:
        yield {"scheduler": client}


def line(name: str, shape: Shape, options: dict[str, Any], width: int, turns: int) -> str:
    """What was measured of a shape, the first turn aside."""
    found = [timed(shape, options) for _ in range(turns + 1)][1:]
    first_s, all_s = (statistics.median(each) for each in zip(*found, strict=True))
    ideal_s = ROWS * shape.times * WORK_S / width
    times = f"first {first_s:5.2f} s   all {all_s:6.2f} s   {all_s / ideal_s:5.2f} of ideal"
    return f"{name:28} {times}   {all_s - 1.15 * ideal_s:+.2f} s beyond 1.15"


def test_what_is_measured_runs(tmp_path: Path) -> None:
    calls: list[int] = []
    found = shapes(tmp_path, Functions(lambda *_: calls.append(1)))
    for name in ("items", "batch.map", "scan.map", "zip(map, map).map"):
        calls.clear()
        timed(found[name], {"executor": "threads", "num_workers": 2})
        wanted = ROWS * found[name].times / (8 if name == "batch.map" else 1)
        assert len(calls) == wanted, name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", nargs="*")
    parser.add_argument("--executor", default="threads")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--compute", action="store_true", help="the function holds Python's lock")
    given = parser.parse_args()
    width = min(given.workers, os.cpu_count() or 1) if given.compute else given.workers
    work = Functions(computing if given.compute else waiting)
    with tempfile.TemporaryDirectory() as folder, way(given.executor, given.workers) as options:
        for name, shape in shapes(Path(folder), work).items():
            if not given.shape or name in given.shape:
                try:
                    print(line(name, shape, options, width, given.turns), flush=True)
                except Exception as error:  # noqa: BLE001 - the others are measured all the same
                    print(f"{name:28} {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
