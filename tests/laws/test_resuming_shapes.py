"""Law: every pipeline shape of the resume benchmark resumes with equal bytes and little work."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench_shapes import ROWS, Functions, Shape, shapes
from dml.data.stream_hash import stream_hash
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.tables import Unaccounted
from dml.exec.streams.stream import Streaming
from dml.expr.node import Node
from dml.testing.executions import RunWay, streaming

SLICE = 3  # rows, or batches
BATCH = 4  # rows of what is handed on, where it is no batch by itself
PLACES = (10, 50, 90)  # per cent
# Calls that a row or batch of a slice costs, where it is not one.
CALLS = {
    "map.shuffle(100).map": 2,
    "filter.map.flat_map": 3,
    "zip(map, map).map": 2,
    "random_map.cache.map": 2,
    "map.batch.map": 8 + 1,
}
# Calls for rows that operators over a function gather again: a window, all of them.
GATHERED = {"map.shuffle(100).map": 100, "map.shuffle()": ROWS}
# the others are run with --whole; in processes, these are all
SAMPLE = {
    "sync": (*GATHERED, "filter", "on_error=skip", "zip(map, map).map", "random_map.cache.map"),
    "threads": (*GATHERED, "arrow", "batch.map", "map.batch.map", "scan.map"),
    "processes": ("csv", "filter.map.flat_map", "map.shuffle(100).map"),
}
# nothing is kept by caches: what they have need not be made again
WAYS = {
    "sync": RunWay(kept_bytes=0),
    "threads": RunWay(threads=4, kept_bytes=0),
    "processes": RunWay(workers=2, kept_bytes=0),
}


class Counting:
    """Work that is done by any process, and leaves a byte in a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, *_: float) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, b".")
        finally:
            os.close(file)

    def taken(self) -> int:
        """Calls since it was last asked."""
        path = Path(self.path)
        count = path.stat().st_size if path.exists() else 0
        path.unlink(missing_ok=True)
        return count


def cut(run: Streaming, rows: int) -> Streaming:
    """The run, in slices of so many rows."""
    assert run.cutting is not None
    cutting = dataclasses.replace(run.cutting, draw=lambda: rows)
    beside = tuple(tuple(cut(each, rows) for each in runs) for runs in run.beside)
    return dataclasses.replace(run, cutting=cutting, beside=beside)


def opened(node: Node, way: RunWay, cache: Path, state: dict[str, Any] | None = None) -> Elements:
    made = Elements(cut(streaming(node, way, cache), SLICE), 0, Unaccounted(), ahead=0)
    if state is not None:
        made.load_state_dict(state)
    return made


def state_bytes(node: Node) -> int:
    """What a state may take: more for each input that operators merge, and what a scan carries."""
    merged = sum(len(each.inputs) for each in node.walk() if len(each.inputs) > 1)
    carried = sum(hasattr(each, "initial") for each in node.walk())
    return 4096 + 512 * merged + 16 * carried


def violations(
    name: str, shape: Shape, way: RunWay, folder: Path, calls: Counting
) -> Iterator[str]:
    """What is wrong with resuming a shape, at each of the places."""
    node = (shape.ds if shape.batched else shape.ds.batch(BATCH))._node
    whole = list(opened(node, way, folder))
    all_calls, rows = calls.taken(), [len(each["id"]) for each in whole]
    slices = 2 * max(1, way.threads, way.workers)
    most = slices * SLICE * CALLS.get(name, 1) + GATHERED.get(name, 0)
    for place in PLACES:
        given = len(whole) * place // 100
        with opened(node, way, folder) as it:
            assert len(list(islice(it, given))) == given
            text = json.dumps(it.state_dict())
        calls.taken()
        rest = opened(node, way, folder, json.loads(text))
        if stream_hash(rest) != stream_hash(whole[given:]):
            yield f"{name} at {place} %: other bytes"
        made, wanted = calls.taken(), all_calls * sum(rows[given:]) / sum(rows)
        if made > wanted + most:
            yield f"{name} at {place} %: {made} calls for {wanted:.0f}, {most} may be made again"
        if len(text) > state_bytes(node):
            yield f"{name} at {place} %: a state of {len(text)} bytes"


@pytest.mark.law
@pytest.mark.parametrize(
    "way", ["sync", "threads", pytest.param("processes", marks=pytest.mark.cluster)]
)
def test_every_shape_gives_the_rest_and_makes_little_again(
    tmp_path: Path, way: str, whole: bool
) -> None:
    calls = Counting(str(tmp_path / "calls"))
    found = shapes(tmp_path, Functions(calls))
    names = list(found) if whole and way != "processes" else SAMPLE[way]
    wrong = [
        each for name in names for each in violations(name, found[name], WAYS[way], tmp_path, calls)
    ]
    assert not wrong
