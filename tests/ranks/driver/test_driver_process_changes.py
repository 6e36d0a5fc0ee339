"""Test driver processes whose pipeline changes between epochs: each epoch runs the newest."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.api.dataset import Dataset
from dml.errors import PlanError
from dml.exec.process.channel import Channel
from tests.ranks.driver.driver_cases import afar, nothing_stays, numbers, table

pytestmark = pytest.mark.cluster

__all__ = ["nothing_stays", "numbers", "table"]

Row = dict[str, Any]


class Times:
    """A callable object with something to change."""

    def __init__(self) -> None:
        self.v = 1

    def __call__(self, given: Row) -> Row:
        return {"y": given["n"] * self.v}


class Holder:
    v = 1


def changing(kind: str) -> tuple[Callable[[Row], Row], Callable[[int], None]]:
    """A function, and what changes the number that it multiplies by."""
    scope: Row = {"factor": 1}
    if kind == "global":
        exec("def times(given):\n    return {'y': given['n'] * factor}", scope)
        return scope["times"], lambda v: scope.update(factor=v)
    if kind == "closure":
        return lambda given: {"y": given["n"] * scope["factor"]}, lambda v: scope.update(factor=v)
    holder: Any = Times() if kind == "object" else Holder()
    call = holder if kind == "object" else lambda given: {"y": given["n"] * holder.v}
    return call, lambda v: setattr(holder, "v", v)


@settings(max_examples=12)
@given(
    kind=st.sampled_from(["global", "closure", "attribute", "object"]),
    batched=st.booleans(),
    executor=st.sampled_from(["threads", "processes"]),
    values=st.lists(st.integers(1, 5), min_size=2, max_size=4),
)
def test_every_epoch_sees_what_a_function_refers_to_by_then(
    table: Path, kind: str, batched: bool, executor: str, values: list[int]
) -> None:
    fn, change = changing(kind)
    ds = dml.read_parquet(table).take(50).select("n")
    ds = (ds.map_batches(fn) if batched else ds.map(fn)).batch(50)
    found = list[int]()
    for value in values:
        change(value)
        options: Row = {"executor": executor, "num_workers": 1, "telemetry_dir": "off"}
        (batch,) = afar(ds, **options)
        found.append(int(batch["y"][1]))
    assert found == values


def test_arrays_in_memory_that_are_written_to_are_sent_again() -> None:
    array = np.arange(1 << 14)
    ds = dml.from_numpy({"a": array}).batch(1 << 14)
    ds = ds.map(lambda batch: {"a": batch["a"] + 1}).with_options(telemetry_dir="off")
    for add in (0, 5, 7):
        array += add
        (here,), (there,) = ds, afar(ds)
        assert (here["a"] == there["a"]).all()
        assert there["a"][0] == array[0] + 1


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pipelines that were sent."""
    found, send = list[str](), Channel.send

    def noted(self: Channel, value: Any, *more: Any) -> None:
        if isinstance(value, tuple) and value[0] == "pipeline":
            found.append(value[1])
        send(self, value, *more)

    monkeypatch.setattr(Channel, "send", noted)
    return found


def test_a_pipeline_that_is_as_it_was_is_sent_once(numbers: Dataset, sent: list[str]) -> None:
    fn, change = changing("closure")
    ds = afar(numbers.map_batches(fn).batch(100), executor="threads")
    for _ in range(3):
        list(ds)
    assert len(sent) == 1
    change(2)
    for _ in range(3):
        list(ds)
    assert sent == sent[:1] * 2


def test_a_cache_keeps_its_elements_unless_its_own_input_changes(
    numbers: Dataset, tmp_path: Path
) -> None:
    """What is called how often, and what comes out, is as it is in one process."""
    counts = {}
    for driver in ("here", "process"):
        calls, below, above = tmp_path / driver, Holder(), Holder()

        def counted(batch: Row, calls: Path = calls, below: Holder = below) -> Row:
            with calls.open("a") as file:
                file.write(".")
            return {"y": batch["n"] * below.v}

        def then(batch: Row, above: Holder = above) -> Row:
            return {"y": batch["y"] * above.v}

        ds = numbers.take(300).map_batches(counted).cache().batch(100).map(then)
        ds = ds.with_options(driver=driver, executor="threads")
        found = list[tuple[int, int]]()
        for below.v, above.v in ((1, 1), (1, 1), (1, 5), (1, 7), (3, 7), (3, 7)):
            total = sum(int(batch["y"].sum()) for batch in ds)
            found.append((total, len(calls.read_text())))
        counts[driver] = found
    assert counts["here"] == counts["process"]
    assert len({total for total, _ in counts["here"]}) == 4


def test_what_cannot_be_sent_ends_no_process(numbers: Dataset) -> None:
    pid = list(afar(numbers.map(lambda row: {"pid": row["n"] * 0 + os.getpid()})).take(1))
    lock = threading.Lock()
    with pytest.raises(PlanError, match="cannot be sent"):
        list(afar(numbers.map(lambda row: {"n": row["n"], "free": not lock.locked()})))
    assert list(afar(numbers.map(lambda row: {"pid": row["n"] * 0 + os.getpid()})).take(1)) == pid
