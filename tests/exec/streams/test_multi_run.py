"""Test pipelines that run together: shared work, spilled blocks, and pipelines that end early."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.api.dataset import Dataset
from dml.data.block import Block
from dml.errors import DmlError, PlanError, UDFError
from dml.exec.memory.spill import DiskSpill
from dml.exec.streams.tee import Queue, TeeEntry, unwritable
from dml.kernels.rows.ids import RowIds
from tests.sampling import amount

ROWS = 40_000
EXECUTORS = ("sync", "threads")


class Counted:
    """A function of a row that is not proven pure, and how often each row was given to it."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: collections.Counter[int] = collections.Counter()
        self.fails_at = fails_at

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.calls[row["id"]] += 1
        if row["id"] == self.fails_at:
            raise ValueError(row["id"])
        return {"id": row["id"], "x": row["id"] % 97, "y": row["id"] / 4}


def numbers(fn: Counted, executor: str = "threads", **options: Any) -> Dataset:
    def counted(row: dict[str, Any]) -> dict[str, Any]:
        return fn(row)

    kinds = {"id": pa.int64(), "x": pa.int64(), "y": pa.float64()}
    made = dml.range(ROWS).map(counted, schema=kinds)
    return made.with_options(executor=executor, telemetry_dir="off", **options)


def several(base: Dataset) -> list[Dataset]:
    return [
        base.filter(dml.col("x") < 5),
        base.sort("x", descending=True).select("x", "id"),
        base.group_by("x").agg(n=dml.col("y").sum()),
        base.take(10),
        base.batch(7).map(lambda batch: {"most": np.array([batch["y"].max()])}),
    ]


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_shared_function_is_called_once_for_each_row(executor: str) -> None:
    fn = Counted()
    found = dml.collect_all(several(numbers(fn, executor)))
    assert set(fn.calls.values()) == {1}
    assert len(fn.calls) == ROWS
    wanted = [each.to_arrow() for each in several(numbers(Counted(), executor))]
    assert all(map(pa.Table.equals, found, wanted))


@pytest.mark.law
def test_two_places_are_shared_one_above_the_other() -> None:
    fn, second = Counted(), collections.Counter[int]()

    def again(row: dict[str, Any]) -> dict[str, Any]:
        second[row["id"]] += 1
        return row

    base = numbers(fn)
    deep = base.map(again)
    ends = [deep.filter(dml.col("x") == 1), base.take(20), deep.select("y")]
    text = dml.explain_all(ends)
    assert "shared 1: by pipelines 1, 3; calls" in text
    assert "shared 2: by pipelines 1, 2, 3; calls" in text
    found = dml.collect_all(ends)
    assert set(fn.calls.values()) == set(second.values()) == {1}
    assert all(map(pa.Table.equals, found, [each.to_arrow() for each in ends]))


@pytest.mark.law
@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_sees_atoms_of_the_source_shares_nothing_below(executor: str) -> None:
    fn, groups = Counted(), []

    def sized(batch: dict[str, Any]) -> dict[str, Any]:
        groups.append(len(batch["id"]))
        return {"n": np.array([len(batch["id"])])}

    def grouped(base: Dataset) -> Dataset:
        return base.map_batches(sized, schema={"n": pa.int64()})

    base = numbers(fn, executor)
    ends = [grouped(base), base.filter(dml.col("x") < 5), base.select("y"), grouped(base).skip(1)]
    text = dml.explain_all(ends)
    assert "by pipelines 2, 3; calls" in text
    assert "by pipelines 1, 4; calls" in text
    found = dml.collect_all(ends)
    assert set(fn.calls.values()) == {2}
    assert sum(groups) == ROWS
    assert all(map(pa.Table.equals, found, [each.to_arrow() for each in ends]))


@pytest.mark.law
def test_one_that_must_see_the_source_does_not_keep_others_from_sharing() -> None:
    fn = Counted()
    base = numbers(fn)
    ends = [base.take(9), base.shuffle(window="atoms", size=2, seed=1), base.select("y")]
    found = dml.collect_all(ends)
    assert set(fn.calls.values()) == {2}
    assert all(map(pa.Table.equals, found, [each.to_arrow() for each in ends]))


def test_the_same_pipeline_twice_runs_once() -> None:
    fn = Counted()
    base = numbers(fn)
    one, two = dml.collect_all([base, base])
    assert one.equals(two)
    assert set(fn.calls.values()) == {1}


@pytest.mark.law
def test_nothing_is_made_beyond_what_is_asked_for() -> None:
    fn = Counted()
    base = numbers(fn, "sync", target_partition_bytes=1 << 14)
    dml.collect_all([base.take(3), base.take(9)])
    assert set(fn.calls.values()) == {1}
    assert len(fn.calls) < ROWS


@pytest.mark.law
def test_a_repeat_makes_its_later_passes_by_itself() -> None:
    base = numbers(Counted()).filter(dml.col("x") < 3)
    ends = [base.repeat(2), base.select("y")]
    assert all(map(pa.Table.equals, dml.collect_all(ends), [each.to_arrow() for each in ends]))


def test_other_options_are_not_shared_and_rules_can_be_switched_off() -> None:
    base = numbers(Counted())
    other = base.take(5).with_options(seed=1)
    assert "shared" not in dml.explain_all([base, other])
    off = {"disable_rules": ["run_shared_once"]}
    assert "shared" not in dml.explain_all([base.with_options(**off)] * 2)
    assert "shared" not in dml.explain_all([base.with_options(optimize=False)] * 2)
    assert "shared" not in dml.explain_all([base.with_options(verify="sample")] * 2)
    assert "shared 1" in dml.explain_all([base] * 2)


def wide(folder: Path) -> Dataset:
    columns = {f"c{i}": np.arange(20_000.0) for i in range(12)}
    pq.write_table(pa.table({"k": np.arange(20_000), **columns}), folder / "wide.parquet")
    return dml.read_parquet(folder).with_options(telemetry_dir="off")


@pytest.mark.law
def test_only_columns_that_somebody_wants_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dml.optimize.search.shared_prefixes.GAIN", 1e9)
    base = wide(tmp_path)
    ends = [base.select("c1").take(7), base.select(z=dml.col("c2") + 1).batch(3)]
    text = dml.explain_all(ends)
    assert text.count("2 of 13 columns (c1, c2)") == 2
    assert all(map(pa.Table.equals, dml.collect_all(ends), [each.to_arrow() for each in ends]))


def test_what_statistics_would_skip_is_not_shared(tmp_path: Path) -> None:
    base = wide(tmp_path)
    ends = [base.filter(dml.col("k") < 0).select("c1"), base.filter(dml.col("k") > 1 << 20)]
    assert "shared" not in dml.explain_all(ends)


def test_a_function_that_fails_ends_all_and_is_not_called_again(tmp_path: Path) -> None:
    fn = Counted(fails_at=30_000)
    base = numbers(fn, "sync")
    writes = [base.write_parquet(tmp_path / "a", lazy=True), base.take(5)]
    with pytest.raises(UDFError, match="30000"):
        dml.collect_all(writes)
    assert set(fn.calls.values()) == {1}
    assert not list(tmp_path.iterdir())


@pytest.mark.law
def test_the_error_is_that_of_the_first_that_fails() -> None:
    def early(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("early")

    def late(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == ROWS - 1:
            raise ValueError("late")
        return row

    base = numbers(Counted())
    with pytest.raises(UDFError, match="late"):
        dml.collect_all([base.map(late), base.map(early)])


def test_an_error_in_a_column_that_only_one_wants_is_only_its_own() -> None:
    base = dml.range(1000).with_columns(t=dml.col("id").cast(pa.int8()), k=dml.col("id") % 3)
    base = base.with_options(telemetry_dir="off")
    kept, few = dml.collect_all([base.select("k"), base.select("t").take(100)])
    assert (kept.num_rows, few.num_rows) == (1000, 100)
    with pytest.raises(DmlError, match="128"):
        dml.collect_all([base.select("k"), base.select("t")])


@pytest.mark.law
def test_rows_lost_to_errors_count_for_each() -> None:
    def some(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] % 20_000 == 7:
            raise ValueError(row["id"])
        return row

    base = dml.range(200_000).map(some, on_error="skip", schema={"id": pa.int64()})
    base = base.with_options(telemetry_dir="off")
    one, two = dml.collect_all([base, base.take(80_000)])
    assert (one.num_rows, two.num_rows) == (199_990, 80_000)
    strict = base.with_options(max_errors=6)
    with pytest.raises(UDFError, match="7 errors"):
        dml.collect_all([strict.take(5), strict])
    assert dml.collect_all([strict.take(5), strict.take(6)])[1].num_rows == 6


@pytest.mark.law
@pytest.mark.parametrize("executor", EXECUTORS)
def test_folders_appear_together(executor: str, tmp_path: Path) -> None:
    base = numbers(Counted(), executor)
    writes = [
        base.write_parquet(tmp_path / "a", rows_per_file=15_000, lazy=True),
        base.sort("y", descending=True).write_csv(tmp_path / "b", lazy=True),
        base.count,
    ]
    with pytest.raises(PlanError, match="count"):
        dml.collect_all(writes)
    assert not list(tmp_path.iterdir())
    one, two = dml.collect_all(writes[:2])
    assert (one.files, one.rows, two.rows) == (3, ROWS, ROWS)
    assert "nothing in" in repr(writes[0])
    assert dml.read_parquet(tmp_path / "a").to_arrow().equals(base.to_arrow())
    with pytest.raises(PlanError, match="not the name of a folder"):
        base.write_parquet(None, lazy=True)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="twice"):
        dml.collect_all([writes[0], writes[0]])


@pytest.mark.parametrize("other", ["./a", "b/../a", "a/", "link", "a/in", "url"])
def test_one_folder_by_two_names_is_refused_before_anything_runs(
    other: str, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    fn = Counted()
    base = numbers(fn)
    one = base.write_parquet(tmp_path / "a", overwrite=True, lazy=True)
    place = f"file://{tmp_path}/a" if other == "url" else f"{tmp_path}/{other}"
    two = base.take(5).write_csv(place, overwrite=True, lazy=True)
    for asked in ([one, two], [two, one]):
        with pytest.raises(PlanError, match=r"twice|inside"):
            dml.collect_all(asked)
    assert not fn.calls
    assert not (tmp_path / "a").exists()


def test_what_is_no_list_is_shown_as_it_is() -> None:
    base = numbers(Counted())
    for wrong in (base, iter([base, base]), None, {"a": base}):
        with pytest.raises(PlanError, match=type(wrong).__name__) as caught:
            dml.collect_all(wrong)
        assert "None in it" not in str(caught.value)


def blocks(sizes: list[int]) -> Iterator[Block]:
    for number, size in enumerate(sizes):
        batch = pa.record_batch({"v": np.full(size, number)})
        yield Block.from_arrow(batch, RowIds.run(number, 0, size))


@pytest.mark.law
@settings(max_examples=amount(30, 60), deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_queue_gives_back_what_it_took_in_any_pattern(draw: random.Random) -> None:
    sizes = [draw.choice([1, 10, 1000]) for _ in range(draw.randint(1, 40))]
    queue = Queue(draw.choice([0, 9_000, 40_000, 1 << 30]), DiskSpill)
    given, taken = [], []
    for block in blocks(sizes):
        queue.put(TeeEntry(block))
        given.append(block)
        while queue.waiting and draw.random() < 0.4:
            taken.append(queue.take().block)
    while queue.waiting:
        taken.append(queue.take().block)
    assert len(given) == len(taken)
    for one, other in zip(given, taken, strict=True):
        assert other is not None
        assert one.to_arrow().equals(other.to_arrow())
        assert all(map(np.array_equal, one.ids.arrays(), other.ids.arrays()))
    assert queue.first_bytes == queue.late_bytes == 0
    queue.close()


@pytest.mark.law
def test_what_waits_goes_to_disk_within_the_memory_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored: list[int] = []
    store = Queue._store

    def counted(queue: Queue) -> None:
        stored.append(len(queue.late))
        store(queue)

    monkeypatch.setattr(Queue, "_store", counted)
    base = dml.range(600_000).map(partial(dict, x=1), schema={"x": pa.int64(), "id": pa.int64()})
    base = base.with_options(telemetry_dir="off", memory_limit=24 << 20)
    # the first takes all rows before it gives one, so all of them wait for the second
    one, two = dml.collect_all([base.sort("id", descending=True), base])
    assert sum(stored) > 0
    assert one["id"].to_pylist()[:2] == [599_999, 599_998]
    assert two.num_rows == 600_000


@pytest.mark.law
def test_takers_cannot_write_into_each_others_rows() -> None:
    block = next(blocks([3]))
    shared = unwritable(block)
    assert not any(column.values.flags.writeable for column in shared.columns)
    base = numbers(Counted())

    def spoil(batch: dict[str, Any]) -> dict[str, Any]:
        batch["y"] *= 0
        return batch

    spoiled, kept = dml.collect_all([base.map_batches(spoil, writable=True), base])
    assert set(spoiled["y"].to_pylist()) == {0.0}
    assert kept["y"].to_pylist()[5] == 1.25


@pytest.mark.cluster
def test_worker_processes_make_what_is_shared() -> None:
    def halved(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "x": row["id"] % 97, "y": row["id"] / 2}

    kinds = {"id": pa.int64(), "x": pa.int64(), "y": pa.float64()}
    base = dml.range(ROWS).map(halved, schema=kinds).filter(dml.col("id") % 3 > 0)
    wanted = [each.to_arrow() for each in several(base)]
    apart = base.with_options(executor="processes", num_workers=2, telemetry_dir="off")
    assert all(map(pa.Table.equals, dml.collect_all(several(apart)), wanted))
