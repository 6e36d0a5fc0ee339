"""Test runs that check themselves: wrong rows are detected, reported, and not delivered."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.data.stream_hash import stream_hash
from dml.errors import VerificationError, VerificationWarning
from dml.events import Verified, Warned
from dml.exec.tasks import task
from dml.exec.tasks.unit_reader import Reading
from dml.expr.node import Node
from dml.kernels.compiled import tier_choice
from dml.ops.row.segment import Segment
from dml.verify.isolated_run import AtomSpan
from tests.cluster.dask_cases import UNCLOSED
from tests.cluster.dask_cases import cluster as dask_cluster
from tests.verify.planting import (
    PLANTED,
    WRONG,
    Sure,
    as_written,
    filtered,
    forgotten_predicate,
    planted,
    rows,
)


@pytest.mark.law
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_rule_is_found_and_nothing_of_it_is_handed_out(
    name: str, sure: Sure, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, rule = PLANTED[name]
    wanted = as_written(make())
    planted(monkeypatch, rule)
    assert stream_hash(make().with_options(executor="sync", telemetry_dir="off")) != wanted
    ds = sure(make())
    with pytest.warns(VerificationWarning, match="as written"):
        got = stream_hash(ds)
    assert got == wanted
    assert ds.stats().summary["differing"] == 1
    assert any("PlansDiffer" in warning for warning in ds.stats().warnings)


def wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the compiled tier makes of floats is one unit too large."""
    right = tier_choice._run_compiled

    def wrong(*given: Any, **options: Any) -> Any:
        result = right(*given, **options)
        outputs = [
            each._replace(values=each.values + 1) if each.values.dtype.kind == "f" else each
            for each in result.outputs
        ]
        return result._replace(outputs=outputs)

    monkeypatch.setattr(tier_choice, "_run_compiled", wrong)


@pytest.mark.law
def test_a_wrong_kernel_is_found(sure: Sure, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = rows().with_columns(x=(col("id") * 0.5).log1p()).batch(32)
    wanted = as_written(ds)
    wrong_kernel(monkeypatch)
    found = sure(ds, kernels="compiled")
    with pytest.warns(VerificationWarning, match="column 'x'"):
        assert stream_hash(found) == wanted


@pytest.mark.law
def test_rows_that_are_gone_make_it_an_error(sure: Sure, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is wrong for late rows alone: they are not handed out, nor is anything begun."""

    @WRONG
    def forgets_late_rows(node: Node) -> Node | None:
        """Rows beyond 10,000 are none."""
        match node:
            case Segment(predicate=parts, env=env) if len(parts) == 1:
                return Segment(node.input, (*parts, (col("id") < 10_000).value), env)
        return None

    planted(monkeypatch, forgets_late_rows)
    many = rows(20_000, atom_rows=5000)
    ds = sure(many.filter(col("id") % 2 == 0).batch(10), verify_samples=30)
    got: list[dict[str, Any]] = []
    with pytest.raises(VerificationError) as caught, pytest.warns(VerificationWarning):
        got.extend(ds)
    assert [n for batch in got for n in batch["id"].tolist()] == list(range(0, 10_000, 2))
    assert "reproduce" in caught.value.why or "bundles" in caught.value.why
    assert "optimize=False" in caught.value.try_
    assert ds.stats().summary["status"] == "failed"


@pytest.mark.law
@pytest.mark.parametrize("target", [1, 1 << 20])
def test_rows_that_a_worker_alone_makes_wrong_are_found(
    target: int, sure: Sure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the sample lies in one partition, or in several of which the first is looked at."""
    ds = rows(20_000, atom_rows=1000).with_columns(x=col("id") * 2).batch(32)
    wanted = as_written(ds)
    read = Reading.atoms

    def last_row_lost(*given: Any) -> Iterator[Any]:
        for block, _ in read(*given):
            assert block is not None
            cut = block.slice(0, block.n - 1)
            yield cut, (cut,)

    monkeypatch.setattr(Reading, "atoms", last_row_lost)
    with pytest.warns(VerificationWarning), pytest.raises(AssertionError):
        assert stream_hash(sure(ds, target_partition_bytes=target)) == wanted  # read wrong again
    monkeypatch.undo()
    assert stream_hash(sure(ds, target_partition_bytes=target)) == wanted


@pytest.mark.law
@pytest.mark.parametrize("block", [0, 2])
def test_an_atom_that_comes_in_several_partitions_is_compared_as_it_comes(
    block: int, sure: Sure, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = dml.range(60_000).map(lambda row: {"s": f"row {row['id']}"}).batch(1000)
    right = task.Parked.fitting

    def last_row_lost(self: Any, blocks: Any) -> Iterator[Any]:
        for number, each in enumerate(right(self, blocks)):
            yield each.slice(0, each.n - (number == block))

    checked = sure(ds, target_partition_bytes=1)
    assert stream_hash(checked) == as_written(ds)
    monkeypatch.setattr(task.Parked, "fitting", last_row_lost)
    got: list[Any] = []
    with pytest.raises(VerificationError), pytest.warns(VerificationWarning):
        got.extend(checked.epoch(0))
    found = [text for batch in got for text in batch["s"]]
    assert found == [f"row {n}" for n in range(len(found))]
    assert len(found) < 60_000


@pytest.mark.law
def test_nothing_is_warned_of_where_nothing_is_wrong(sure: Sure, tmp_path: Path) -> None:
    for make, _ in PLANTED.values():
        ds = sure(make())
        assert stream_hash(ds) == as_written(make())
        assert ds.stats().summary["verified"] > 0
        assert ds.stats().summary["differing"] == 0
    assert not (tmp_path / "bundles").exists()


@pytest.mark.law
def test_at_most_so_many_atoms_and_the_same_in_a_rerun(
    sure: Sure, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    read = AtomSpan.read

    def noted(self: Any, epoch: int) -> Any:
        seen.append(self.atoms[0][0])
        return read(self, epoch)

    monkeypatch.setattr("dml.verify.isolated_run.AtomSpan.read", noted)
    ds = sure(rows(100_000, atom_rows=5000).filter(col("id") > 0).batch(32))
    places = []
    for pinned in (0, 0, 1):
        seen.clear()
        list(ds.epoch(pinned))
        places.append(sorted(set(seen)))
    assert len(places[0]) <= 3
    assert places[0][0] == 0
    assert places[0] == places[1] != places[2]


def test_an_undeclared_function_is_called_once_a_row(sure: Sure) -> None:
    calls: list[int] = []

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["id"])
        return {"id": row["id"]}

    ds = sure(rows().filter(col("id") % 2 == 0).map(counted, schema={"id": "int64"}).batch(16))
    list(ds)
    assert sorted(calls) == list(range(0, 1000, 2))
    found = ds.stats()
    assert found.summary["verified"] == 1
    assert "counted" in found.summary["scope"]
    assert "not proven pure" in found.summary["scope"]
    assert "not proven pure" in str(found)
    text = ds.explain()
    assert "note      the check covers 2 operators, up to what calls" in text
    assert text.count("  check     3 samples of a pass are compared") == 1


def test_what_lies_below_such_a_function_is_compared(
    sure: Sure, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def noting(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row["id"])
        return {"id": row["id"]}

    ds = rows().filter(col("id") % 2 == 0).map(noting).batch(16)
    planted(monkeypatch, forgotten_predicate)
    with pytest.warns(VerificationWarning):
        got = [n for batch in sure(ds) for n in batch["id"].tolist()]
    assert got == list(range(0, 1000, 2))


def test_nothing_is_compared_over_a_users_source_or_beside_a_function(sure: Sure) -> None:
    def generated() -> Iterator[dict[str, int]]:
        yield from ({"id": n} for n in range(50))

    ds = sure(dml.from_generator(generated, schema={"id": "int64"}).filter(col("id") > 3).batch(8))
    list(ds)
    assert ds.stats().summary["verified"] == 0
    assert "reads" in ds.stats().summary["scope"]
    lock = threading.Lock()

    def locked(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return {"id": row["id"], "y": 1}

    beside = rows(50).map(locked, schema={"id": "int64", "y": "int64"})
    ds = sure(rows(50).join(beside, on="id").batch(8))
    list(ds)
    assert ds.stats().summary["verified"] == 0
    assert ds.stats().summary["scope"].startswith("nothing: calls")


@pytest.mark.law
def test_every_consumer_gets_the_rows_as_written(
    sure: Sure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ds = rows().filter(col("id") % 3 == 0)
    wanted = ds.to_arrow()
    planted(monkeypatch, forgotten_predicate)
    fresh = rows().filter(col("id") % 3 == 0)
    with pytest.warns(VerificationWarning):
        assert sure(fresh).to_arrow() == wanted
    with pytest.warns(VerificationWarning):
        assert sure(fresh).count() == wanted.num_rows
    with pytest.warns(VerificationWarning):
        sure(fresh).write_parquet(str(tmp_path / "out"))
    assert pq.read_table(tmp_path / "out").num_rows == wanted.num_rows
    with pytest.warns(VerificationWarning):
        assert [row["id"] for row in sure(fresh)] == wanted["id"].to_pylist()


def test_a_state_after_the_restart_is_one_of_the_plan_as_written(
    sure: Sure, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, forgotten_predicate)
    for ds in (rows().filter(col("id") % 3 == 0).batch(16), rows().filter(col("id") % 3 == 0)):
        it = iter(sure(ds))
        with pytest.warns(VerificationWarning):
            first = [next(it) for _ in range(3)]
        state = it.state_dict()
        rest = iter(ds.with_options(optimize=False, executor="sync", telemetry_dir="off"))
        rest.load_state_dict(state)
        assert stream_hash([*first, *rest]) == as_written(ds)
        assert stream_hash([*first, *it]) == as_written(ds)


def test_a_resumed_run_that_differs_is_an_error(
    sure: Sure, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = rows().filter(col("id") % 3 == 0).batch(16)
    it = iter(sure(ds))
    next(it)
    state = it.state_dict()
    monkeypatch.setattr("dml.verify.guard.difference", lambda *_, **__: "row 0")
    again = iter(sure(ds))
    again.load_state_dict(state)
    with pytest.raises(VerificationError), pytest.warns(VerificationWarning):
        next(again)


@pytest.mark.law
def test_passes_and_kept_elements_are_compared(sure: Sure) -> None:
    for ds in (
        rows(300).shuffle(buffer_size=50).repeat(3).with_columns(r=dml.random()).batch(7),
        rows(300).map(lambda row: {"id": row["id"] + 1}).cache().repeat(3).shuffle(100).batch(7),
        rows(300).shuffle(window="atoms", size=2).repeat().take(500).batch(7),
        rows(300).skip(150).filter(col("id") % 2 == 0).repeat(2).repeat(2).batch(7),
    ):
        checked = sure(ds)
        for epoch in (0, 2):
            assert stream_hash(checked.epoch(epoch)) == as_written(ds.epoch(epoch))
        found = checked.epoch(1)
        list(found)
        assert found.stats().summary["differing"] == 0


def test_what_does_not_fit_is_passed_over(sure: Sure) -> None:
    ds = sure(dml.range(200_000).filter(col("id") > 3).batch(1000), memory_limit="8MiB")
    list(ds)
    assert ds.stats().summary["verified"] == 0
    assert "does not fit" in ds.stats().summary["unverified"]


def test_what_was_done_is_an_event(sure: Sure, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, forgotten_predicate)
    it = iter(sure(rows().filter(col("id") % 3 == 0).batch(16)))
    with pytest.warns(VerificationWarning):
        list(it)
    (found,) = [each for each in it.events() if isinstance(each, Verified)]
    assert (found.verified, found.differing, found.scope) == (0, 1, "all operators")
    (told,) = [each for each in it.events() if isinstance(each, Warned)]
    assert told.name == "PlansDiffer"


@pytest.mark.law
def test_off_means_that_nothing_is_loaded() -> None:
    program = (
        "import sys, dml; list(dml.range(9).batch(3).with_options(telemetry_dir='off'));"
        "print(any('verify' in name for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.cluster
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_workers_rows_are_compared(
    executor: str, sure: Sure, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = as_written(filtered())
    assert stream_hash(sure(filtered(), executor=executor, num_workers=2)) == wanted
    planted(monkeypatch, forgotten_predicate)
    with pytest.warns(VerificationWarning):
        assert stream_hash(sure(filtered(), executor=executor, num_workers=2)) == wanted


@pytest.mark.law
def test_statistics_that_rule_out_what_they_must_not_are_found(
    sure: Sure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = pa.table({"x": np.arange(1000), "y": np.arange(1000) % 7})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=100)
    ds = dml.read_parquet(str(tmp_path / "t.parquet")).filter(col("y") == 3).batch(10)
    wanted = as_written(ds)
    assert stream_hash(sure(ds)) == wanted
    monkeypatch.setattr(
        "dml.io.parquet.parquet.ParquetSource.may_match", lambda *_: False, raising=True
    )
    with pytest.warns(VerificationWarning):
        assert stream_hash(sure(ds)) == wanted


@pytest.mark.law
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_made_ahead_are_compared(
    prefetch: int, sure: Sure, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = as_written(filtered())
    planted(monkeypatch, forgotten_predicate)
    ds = sure(filtered(), executor="threads", prefetch=prefetch)
    with pytest.warns(VerificationWarning):
        assert stream_hash(ds) == wanted


def test_ranks_share_a_run_that_is_compared(sure: Sure, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, forgotten_predicate)
    (rank,) = sure(filtered()).streaming_split(1)
    with pytest.warns(VerificationWarning):
        assert stream_hash(rank) == as_written(filtered())


@UNCLOSED
@pytest.mark.cluster
def test_rows_of_a_cluster_are_compared(sure: Sure, monkeypatch: pytest.MonkeyPatch) -> None:
    with dask_cluster() as made:
        options = {"executor": "distributed", "scheduler": made}
        assert stream_hash(sure(filtered(), **options)) == as_written(filtered())
        wanted = as_written(filtered())
        planted(monkeypatch, forgotten_predicate)
        with pytest.warns(VerificationWarning):
            assert stream_hash(sure(filtered(), **options)) == wanted


def stamped(row: dict[str, Any]) -> dict[str, Any]:
    threading.get_ident()  # not proven pure
    return {"x": row["id"] * 2}


@pytest.mark.parametrize("schema", [None, {"x": "int64"}])
@pytest.mark.parametrize("verb", ["take", "skip", "shard"])
def test_a_slice_that_was_moved_below_a_function_is_no_difference(verb: str, schema: Any) -> None:
    ds = dml.range(3000).filter(col("id") % 2 == 0).map(stamped, schema=schema)
    some = {"take": ds.take(300), "skip": ds.skip(300), "shard": ds.shard(3, 1)}[verb]
    checked = some.with_options(telemetry_dir="off", verify="sample")
    plainly = checked.with_options(optimize=False)
    assert stream_hash(checked) == stream_hash(plainly)
    assert "nothing: a take, skip or shard was moved" in checked.explain()
