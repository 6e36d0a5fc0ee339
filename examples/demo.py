"""The main job: text in Parquet becomes shuffled batches, stopped and resumed elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import demo_corpus
import demo_pipeline

from dml.data.stream_hash import stream_hash

FIRST = 40  # batches before the checkpoint


def shown(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches, with a line of progress now and then."""
    rows, begin, said_s = 0, time.perf_counter(), 0.0
    for number, batch in enumerate(batches, 1):
        rows += len(batch["tokens"])
        seconds = time.perf_counter() - begin
        if seconds - said_s > 0.5:
            said_s = seconds
            print(f"   {number:4} batches, {rows:,} sequences, {rows / seconds:,.0f} a second")
        yield batch


def main(folder: str) -> bool:
    rows, size = demo_corpus.write(Path(folder))
    print(f"## {rows:,} modules of Python's own library, {size / 1e6:.0f} MB in 4 Parquet files\n")
    ds = demo_pipeline.pipeline(folder)
    for name, station in (("written", "written"), ("chosen", "physical")):
        print(f"## The plan as {name}\n{ds.explain(station)}\n")

    print(f"## One epoch, with a checkpoint after {FIRST} batches")
    it = iter(ds)
    print(f"   the first {FIRST}: {stream_hash(islice(shown(it), FIRST))[:32]}")
    state = json.dumps(it.state_dict())
    rest = stream_hash(shown(it))
    print(f"   the rest:     {rest[:32]}\n\n## What each operator did\n{ds.stats()}\n")

    print(f"## The rest again, in a new process, from {len(state)} bytes of JSON")
    resume = [sys.executable, demo_pipeline.__file__, folder]
    done = subprocess.run(resume, input=state, stdout=-1, text=True, check=True)  # noqa: S603
    same = done.stdout.strip() == rest
    print(f"   the rest:     {done.stdout[:32]}  {'the same bytes' if same else 'DIFFERENT'}")
    return not same


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dml-demo-") as scratch:
        sys.exit(main(scratch))
