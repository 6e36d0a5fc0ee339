"""Test caches in memory: their size, their lifetime, and all executors."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from distributed import Client

import dml
from dml.api import session
from dml.cache.elements.element_cache import (
    STORE,
    CacheShare,
    ElementStore,
    Prefix,
    anchors,
    handed_on,
)
from dml.data.block import Block
from dml.data.block_copy import own
from dml.data.schema import Schema
from dml.exec.memory.memory_shares import OVERHEAD_BYTES, divided, kept_bytes
from dml.expr.flow import CachedBlock
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from dml.settings import Settings
from dml.udfs.identity.closure_walk import variables
from tests.cluster import dask_cases

MIB = 1 << 20
ROWS = 400


def block(first: int, n: int = 10) -> Block:
    schema = Schema([("x", pa.int64()), ("s", pa.string())])
    texts = pa.array([str(first + i) for i in range(1000)]).slice(5, n)
    whole = Vec(np.arange(first, first + 1000)[:n], np.ones(1000, bool)[:n])
    return Block(schema, (whole, texts), RowIds.run(1, first, n))


def share(most_bytes: int, store: ElementStore | None = None, name: bytes = b"a") -> CacheShare:
    found = store or ElementStore()
    return CacheShare(found.prefix(name), most_bytes, found, batched=False)


def test_a_pipeline_that_came_anew_has_what_was_kept_for_it() -> None:
    ds = dml.range(20).cache().batch(2).with_options(telemetry_dir="off")
    list(ds)
    old = anchors(ds._node)
    copy = pickle.loads(cloudpickle.dumps(ds._node))
    assert [each.kept for each in anchors(copy)] == [{}]
    handed_on(old, copy)
    (kept,) = [each.kept for each in anchors(copy)]
    assert [prefix.count for prefix in kept.values()] == [20]


def test_the_longest_prefix_stays() -> None:
    kept = share(10_000)
    for first in range(0, 100, 10):
        kept.offer(CachedBlock(first, {"at": first}, block(first), {"at": first + 10}), {})
    count = kept.held.count
    assert 0 < count < 100
    assert kept.held.nbytes <= 10_000
    found = kept.find_block(count - 1)
    assert found is not None
    assert (found.first, found.before, found.after) == (
        count - 10,
        {"at": count - 10},
        {"at": count},
    )
    assert kept.find_block(count) is None
    assert not kept.ends(count)


def test_only_the_next_block_is_added() -> None:
    kept = share(MIB)
    kept.offer(CachedBlock(10, None, block(10), {}), {})
    assert kept.held.count == 0
    for _ in range(2):
        kept.offer(CachedBlock(0, None, block(0), {}), {})
    assert kept.held.count == 10
    kept.end(9)
    assert not kept.ends(10)
    kept.end(10)
    assert kept.ends(10)
    kept.held.shorten(0)
    assert (kept.held.count, kept.held.nbytes, kept.ends(0)) == (0, 0, False)


def test_what_is_kept_is_a_copy_that_nobody_can_write_to() -> None:
    given = block(0)
    made = own(given)
    numbers, texts = made.columns
    assert isinstance(numbers, Vec)
    assert numbers.valid is not None
    assert not numbers.values.flags.writeable
    assert not numbers.valid.flags.writeable
    assert numbers.values.base is None
    assert sum(b.size for b in texts.buffers() if b) < 300  # type: ignore[union-attr]
    assert texts.to_pylist() == given.columns[1].to_pylist()  # type: ignore[union-attr]


@pytest.mark.law
def test_caches_of_a_process_share_the_memory() -> None:
    store = ElementStore()
    one, other = share(10_000, store), share(10_000, store, b"b")
    for first in range(0, 100, 10):
        for each in (one, other):
            each.offer(CachedBlock(first, None, block(first), {}), {})
    assert 0 < store.nbytes <= 10_000
    assert one.held.count == other.held.count
    assert share(MIB, store).held is one.held


def test_the_number_is_divided_among_caches_and_the_rest() -> None:
    settings = Settings(executor="sync", memory_limit="64MiB", telemetry_dir="off")
    for ds in (dml.range(10).cache(), dml.range(10).shuffle().cache().shuffle().batch(3)):
        plan = session.optimized(ds._node, settings).plan
        budget, kept = divided(plan, 64 * MIB, 2, None), kept_bytes(plan, 64 * MIB)
        holders = sum(node.rows.name == "PERMUTED" for node in plan.stream) + plan.batched
        held = budget.held_bytes * holders
        assert kept == 32 * MIB
        assert budget.stage_bytes + budget.ahead_bytes + held + kept <= 64 * MIB
    assert kept_bytes(session.optimized(dml.range(10)._node, settings).plan, 64 * MIB) == 0


def slow(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["id"], "t": str(row["id"])}


@pytest.mark.law
def test_it_is_freed_with_the_last_pipeline_that_mentions_it() -> None:
    gc.collect()
    before = STORE.nbytes
    cached = dml.range(ROWS, atom_rows=40).map(slow, fingerprint="freed").cache()
    above = cached.batch(16).with_options(telemetry_dir="off")
    assert len(list(above)) == ROWS // 16
    del cached
    gc.collect()
    assert STORE.nbytes > 0
    del above
    until = time.monotonic() + 60
    while STORE.nbytes > before and time.monotonic() < until:
        gc.collect()  # a thread of the run may be about to end
        time.sleep(0.01)
    assert STORE.nbytes <= before  # what earlier tests left may be freed by now, too


@pytest.mark.law
def test_garbage_makes_room_for_others() -> None:
    store = ElementStore()
    forgotten: list[Any] = [store.prefix(b"b")]
    forgotten.append(forgotten)
    CacheShare(forgotten[0], 10_000, store, batched=False).offer(
        CachedBlock(0, None, block(0, 200), {}), {}
    )
    assert store.nbytes > 5000
    kept = share(10_000, store)
    del forgotten
    kept.offer(CachedBlock(0, None, block(0, 200), {}), {})
    assert kept.held.count == 200


@pytest.mark.law
def test_a_smaller_number_lets_go() -> None:
    cached = dml.range(200_000, atom_rows=10_000).cache().batch(1000)
    small = cached.with_options(memory_limit="2MiB", telemetry_dir="off")
    large = cached.with_options(memory_limit="64MiB", telemetry_dir="off")
    kept = []
    for ds in (large, small, large):
        assert sum(int(batch["id"].sum()) for batch in ds) == sum(range(200_000))
        kept.append(ds.stats().records[-2]["kept_bytes"])
    assert kept[0] == kept[2] > 1_600_000 > MIB >= kept[1] > MIB // 2


def logged(path: Path) -> Any:
    def fn(row: dict[str, Any]) -> dict[str, Any]:
        with path.open("a") as file:
            file.write("x")
        return {"x": row["id"], "t": str(row["id"])}

    return fn


@pytest.mark.cluster
def test_processes_call_nothing_in_later_epochs(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    ds = dml.range(ROWS, atom_rows=40).map(logged(log), num_cpus=1).cache().shuffle(50).batch(10)
    ds = ds.with_options(executor="processes", num_workers=2, telemetry_dir="off")
    epochs = [np.concatenate([b["x"] for b in ds]) for _ in range(3)]
    assert len(log.read_text()) == ROWS
    assert all(sorted(each) == list(range(ROWS)) for each in epochs)


@pytest.mark.cluster
@dask_cases.UNCLOSED
def test_dask_calls_nothing_in_later_epochs(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    with dask_cases.cluster() as cluster, Client(cluster) as client:
        ds = dml.range(ROWS, atom_rows=40).map(logged(log)).cache().batch(10)
        ds = ds.with_options(scheduler=client, telemetry_dir="off")
        epochs = [np.concatenate([b["x"] for b in ds]).tolist() for _ in range(3)]
    assert len(log.read_text()) == ROWS
    assert epochs == [list(range(ROWS))] * 3


PROGRAM = """
import numpy as np, dml
from dml.exec.memory.memory_meter import counted_bytes

def wide(row):
    return {"v": np.full(25_000, row["id"], dtype="f4")}

ds = dml.range(2000, atom_rows=8).map(wide).cache().shuffle(16).batch(8)
ds = ds.with_options(memory_limit="64MiB", num_workers=2, telemetry_dir="off")
peak = total = 0
for _ in range(2):
    for number, batch in enumerate(ds):
        total += int(batch["v"][:, 0].sum())
        if number % 10 == 0:
            peak = max(peak, counted_bytes() or 0)
print(peak, total, ds.stats().records[2]["kept_bytes"])
"""


@pytest.mark.cluster
def test_a_run_that_keeps_stays_within_its_number(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(Path(dml.__file__).parents[1]), "PATH": "/usr/bin:/bin",
             "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    peak, total, kept = map(int, done.stdout.split())
    assert total == 2 * sum(range(2000))
    assert 24 * MIB < kept <= 32 * MIB
    assert peak <= 64 * MIB + OVERHEAD_BYTES


def test_a_prefix_knows_its_elements() -> None:
    assert Prefix(b"a", ElementStore().lock).find_entry(0) is None


CALLED: list[int] = []


def noted(row: dict[str, int]) -> dict[str, int]:
    CALLED.append(row["id"])
    return row


def test_what_keeps_nothing_since_a_function_changes_what_it_reads_is_said_once() -> None:
    ds = dml.range(4).map(noted).cache().batch(2).with_options(telemetry_dir="off")
    list(ds)
    said = "noted reads the variable 'CALLED', which has changed meanwhile"
    assert said in str(ds.cache_status())
    assert said in ds.explain()
    with pytest.warns(UserWarning, match=said):
        list(ds)
    list(ds)  # and not again
    assert len(CALLED) == 12


def test_of_what_stays_as_it_is_nothing_is_said() -> None:
    limit = 3
    ds = dml.range(4).map(lambda row: {"x": row["id"] % limit}).cache()
    ds = ds.with_options(telemetry_dir="off")
    list(ds)
    with patch("dml.udfs.identity.closure_walk.variables") as looked:
        list(ds)
    assert not looked.called  # no function was, and variables may be large
    assert "nothing of earlier runs" not in str(ds.cache_status())


def test_a_variable_that_another_thread_changes_meanwhile_is_not_looked_at() -> None:
    limit = 3
    changing = RuntimeError("dictionary changed size during iteration")
    with patch("dml.udfs.identity.closure_walk._put_reference", side_effect=changing):
        assert variables(lambda row: row["id"] % limit) == {}
