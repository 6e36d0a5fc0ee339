"""A job is killed halfway, and goes on; a colleague has nearly the same. Rows are decoded once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml import col


def decoded(row: dict) -> dict:
    values = np.frombuffer(zlib.decompress(row["packed"]), np.uint8)
    return {"counts": np.bincount(values, minlength=256), "label": row["label"]}


def common(folder: Path) -> dml.Dataset:
    """What is below the cache is found by its name, row group by row group, whoever asks."""
    ds = dml.read_parquet(folder / "data.parquet").with_options(cache_dir=str(folder / "cache"))
    return ds.map(decoded).cache(tier="disk")


def told(name: str, ds: dml.Dataset) -> int:
    """Iterate, and say how many rows were decoded for that."""
    rows = sum(len(batch["label"]) for batch in ds)
    made = int(ds.stats().records[1]["rows_out"])
    print(f"{name}: {rows} rows came, {made} were decoded")
    return made


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        rng, path = np.random.default_rng(0), Path(scratch)
        packed = [zlib.compress(rng.bytes(4_000)) for _ in range(2000)]
        rows = pa.table({"packed": packed, "label": rng.integers(0, 3, 2000)})
        pq.write_table(rows, path / "data.parquet", row_group_size=100)
        subprocess.run([sys.executable, __file__, scratch], check=False)  # noqa: S603 - this file
        yours = common(path).shuffle(500, seed=1).batch(100)
        print("your first run was killed;", yours.cache_status())
        assert 0 < told("your second run", yours) < 2000
        assert told("your next epoch", yours) == 0
        assert told("a colleague's", common(path).filter(col("label") == 1).batch(32)) == 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        begun = common(Path(sys.argv[1])).with_options(executor="sync")  # no part ahead of a batch
        list(islice(begun.batch(100), 10))
        os.kill(os.getpid(), signal.SIGKILL)
    main()
