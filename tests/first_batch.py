"""Print what a first batch costs in code: frames, functions, files and modules.

    python tests/first_batch.py

The pipeline reads a Parquet file, filters, computes and selects columns, and batches, with
``executor="sync"``. *Frames* are those of dml above the read of a row group, *functions* and
*files* those that run in a second pipeline of the process until its first batch, *modules* those
that are loaded then. Counts, not seconds: benchmarks/bench_import.py has the seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml import Dataset, col

HOME = str(Path(dml.__file__).resolve().parent)


def pipeline(path: Path) -> Dataset:
    ds = dml.read_parquet(path).filter(col("x") > 1).with_columns(y=col("x") * 2)
    return ds.select("y").batch(8).with_options(executor="sync", telemetry_dir="off")


def measured(path: Path) -> dict[str, int]:
    """The counts, by name, for a pipeline over the file at ``path``."""
    next(iter(pipeline(path)))
    codes: set[CodeType] = set()
    deepest = [0]

    def seen(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code.co_filename.startswith(HOME):
            codes.add(code)
        elif code is pq.ParquetFile.__init__.__code__:
            deepest[0] = max(deepest[0], _frames(frame))

    ds = pipeline(path)
    sys.setprofile(seen)
    try:
        next(iter(ds))
    finally:
        sys.setprofile(None)
    return {
        "frames above the read of a row group": deepest[0],
        "functions run until a first batch": len(codes),
        "files with such a function": len({code.co_filename for code in codes}),
        "modules loaded, without packages": len(_modules()),
    }


def _frames(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith(HOME)
        frame = frame.f_back
    return count


def _modules() -> list[str]:
    ours = [(name, each) for name, each in sys.modules.items() if name.startswith("dml.")]
    return [name for name, each in ours if not hasattr(each, "__path__")]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        pq.write_table(pa.table({"x": list(range(100))}), path)
        found = measured(path)
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps(found))
        return
    for name, count in found.items():
        sys.stdout.write(f"{name}: {count}\n")


if __name__ == "__main__":
    main()
