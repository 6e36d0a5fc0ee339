"""Run a pipeline in many ways, and compare with the oracle and with resumed runs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import dml
from dml.expr.node import Node
from dml.testing.equality import difference, element_difference
from dml.testing.executions import PLAIN, WRITTEN, RunWay, elements, ids, outcome
from dml.testing.oracle import Oracle
from tests.sampling import is_whole

QUIET: dict[str, Any] = {"executor": "sync", "telemetry_dir": "off", "prefetch": 0}
UNUSED = Path("no-kernels-are-compiled")
TINY = RunWay(target_bytes=1, budget=1)
WAYS = (WRITTEN, PLAIN, TINY, RunWay(threads=2, target_bytes=1, fuzz=7, prefetch=1))
# Where not all are asked for, a run is resumed in so many places, beside its begin and its end.
PLACES = 4


def table(columns: Mapping[str, Any], atom_rows: int = 3) -> dml.Dataset:
    """A pipeline over these Arrow arrays, in small atoms."""
    return dml.from_arrow(pa.table(dict(columns)), atom_rows=atom_rows).with_options(**QUIET)


def numbers(n: int = 10) -> dml.Dataset:
    """Rows x = 0 .. n - 1."""
    return table({"x": pa.array(range(n), pa.int64())})


def node_of(ds: dml.Dataset) -> Node:
    """The pipeline as written."""
    return ds._node


def computed(columns: Mapping[str, Any], value: Any) -> list[Any]:
    """An expression over ``columns``, as Python values; rewritten or not, they are the same."""
    ds = table(columns).with_columns(r=value).select("r")
    found = ds.to_arrow()["r"].to_pylist()
    assert repr(ds.with_options(optimize=False).to_arrow()["r"].to_pylist()) == repr(found)
    return list(found)


def agrees(ds: dml.Dataset, *, epochs: tuple[int, ...] = (0, 1)) -> None:
    """Every way of running gives what the oracle says, in elements and ids of rows.

    In a sample: epochs behind the first in every other way.
    """
    for turn, epoch in enumerate(epochs):
        oracle = Oracle(node_of(ds), epoch=epoch, seed=5)
        wanted = outcome(oracle.elements())
        names = [] if wanted.error else list(Oracle(node_of(ds), epoch=epoch, seed=5).ids())
        for way in WAYS[1::2] if turn and not is_whole() else WAYS:
            got = outcome(elements(node_of(ds), way, UNUSED, epoch=epoch, seed=5))
            assert difference(got, wanted, optimized=way.rewriting) == "", way
            if not wanted.error:
                assert ids(node_of(ds), way, UNUSED, epoch=epoch, seed=5) == names, way


def resumes(ds: dml.Dataset, *ways: RunWay) -> int:
    """From the state after each element (and before any) exactly the rest comes; how many.

    In a sample: from some of them, other ones of each way and of each number of elements.
    """
    count = 0
    for turn, way in enumerate(ways or (WRITTEN, PLAIN)):
        whole = elements(node_of(ds), way, UNUSED)
        states, given = [whole.state_dict()], []
        for element in whole:
            given.append(element)
            states.append(json.loads(json.dumps(whole.state_dict())))
        states.append(whole.state_dict())
        for at in resumed_at(len(states), turn):
            rest = list(elements(node_of(ds), way, UNUSED, state=states[at]))
            wanted = given[at:]
            assert len(rest) == len(wanted), (way, at)
            pairs = zip(rest, wanted, strict=True)
            assert not any(element_difference(a, b) for a, b in pairs), (way, at)
        count = len(given)
    return count


def resumed_at(count: int, turn: int) -> list[int]:
    """Which of ``count`` states a run is resumed from: the first, the last two, and some others."""
    inner = range(1, count - 2)
    if is_whole() or len(inner) <= PLACES:
        return [*range(count)]
    drawn = random.Random(f"{count} {turn}").sample(inner, PLACES)
    return [0, *sorted(drawn), count - 2, count - 1]


def holds(ds: dml.Dataset) -> int:
    """``agrees`` and ``resumes``."""
    agrees(ds)
    return resumes(ds)


def until_error(run: Iterator[Any]) -> Iterator[Any]:
    """The elements before an error of the pipeline, if there is one."""
    try:
        yield from run
    except dml.DmlError:
        return
