"""Test when a stage moves from threads to processes, and that results do not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.data.stream_hash import stream_hash
from dml.exec.drivers import promotion
from dml.exec.drivers.promotion import Promoting
from dml.exec.slicing.slice_sizes import Spent, Width
from dml.exec.tasks.slices import Outcome


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        table = pa.table({"k": list(range(4000)), "s": [f"text {i % 77}" for i in range(4000)]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=100)
    return tmp_path


def takes_turns(width: Width, _: Spent) -> int | None:
    """The verdict after the first slice. Quick ones may never run at once, and are not measured."""
    if width.decided:
        return None
    width.decided = width.alone = True
    return 1


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage that may move does so at the first look."""
    monkeypatch.setattr(promotion, "SLICES", 1)
    monkeypatch.setattr(promotion, "SLICE_S", 0.0)
    monkeypatch.setattr(promotion, "TAKING_TURNS", (-1.0, 1e9))
    monkeypatch.setattr(Promoting, "moved", type(Promoting.moved)())
    monkeypatch.setattr(Promoting, "lanes", set())
    monkeypatch.setattr(Width, "measured", takes_turns)


def pure(row: dict[str, Any]) -> dict[str, Any]:
    """Not lifted: texts that are put together by a format are not among the expressions."""
    return {"k": row["k"], "s": f"{row['s']} {row['k']}"}


SEEN: list[int] = []


def impure(row: dict[str, Any]) -> dict[str, Any]:
    SEEN.append(row["k"])
    return {"k": row["k"]}


def run(folder: Path, fn: Any, executor: str = "auto") -> dml.Dataset:
    ds = dml.read_parquet(folder, atom_rows=50).map(fn).shuffle(500).batch(64)
    ds = ds.with_options(executor=executor, num_workers=2, target_partition_bytes=2000)
    return ds.epoch(0)


@pytest.mark.law
@pytest.mark.usefixtures("eager")
def test_a_stage_moves_in_the_middle_and_stays_there(folder: Path) -> None:
    wanted = stream_hash(run(folder, pure, "sync"))
    ds = run(folder, pure)
    assert stream_hash(ds) == wanted
    assert len(Promoting.lanes) == 1
    assert stream_hash(ds) == wanted
    assert len(Promoting.lanes) == 1
    stats = str(ds.stats())
    assert "12,000" in stats or "12000" in stats


@pytest.mark.law
@pytest.mark.usefixtures("eager")
def test_a_moved_stage_is_resumed_like_any_other(folder: Path) -> None:
    ds = run(folder, pure)
    batches = list(ds)
    it = iter(ds)
    for _ in range(101):
        next(it)
    state = it.state_dict()
    it.close()
    again = iter(run(folder, pure))
    again.load_state_dict(state)
    assert stream_hash(again) == stream_hash(batches[101:])


@pytest.mark.law
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "make",
    [
        lambda folder: run(folder, impure),
        lambda folder: dml.read_parquet(folder).with_columns(y=dml.col("k") + 1).batch(64),
        lambda _: dml.from_dict({"s": ["a"] * 5000}).map(lambda r: {"s": r["s"].title()}),
        lambda folder: run(folder, pure, "sync"),
        lambda folder: run(folder, pure, "threads"),
    ],
    ids=["impure", "expressions", "memory", "sync", "threads"],
)
def test_what_stays_where_it_is(folder: Path, make: Any) -> None:
    for _ in make(folder):
        pass
    assert not Promoting.moved
    assert not Promoting.lanes


@pytest.mark.law
def test_undeclared_functions_are_called_once_a_row(folder: Path) -> None:
    SEEN.clear()
    assert sum(len(batch["k"]) for batch in run(folder, impure)) == 12000
    assert len(SEEN) == 12000


@pytest.mark.parametrize(
    ("slices", "seconds", "cpu_s", "share_s", "moves"),
    [
        (4, 1.0, 0.5, 0.5, True),  # two threads take turns
        (4, 1.0, 0.25, 0.25, True),  # four threads do
        (4, 1.0, 0.95, 0.5, False),  # they run side by side
        (4, 1.0, 0.02, 0.5, False),  # they wait for something else
        (3, 1.0, 0.5, 0.5, False),  # too few to tell
        (400, 0.01, 0.005, 0.005, False),  # slices too short to be worth a process
    ],
)
@pytest.mark.parametrize(("at", "beside"), [(6, 2), (98, 2), (6, 1)])
def test_what_is_looked_at(
    slices: int, seconds: float, cpu_s: float, share_s: float, *, moves: bool, at: int, beside: int
) -> None:
    went: list[int] = []
    times: dict[str, Any] = {
        "seconds": seconds / slices,
        "cpu_s": cpu_s / slices,
        "share_s": share_s / slices,
    }

    class Feed:
        def __init__(self) -> None:
            self.at = (at,)

        def next(self) -> Outcome:
            return Outcome(None, 1, 1, done=True, beside=beside, **times)

        def close(self) -> None:
            pass

    def onwards(first: int, unsettled: bool) -> Any:
        went.append(first)
        assert unsettled
        return Feed()

    feed = promotion.PromotingFeed(Feed(), 100, onwards)  # type: ignore[arg-type]
    for _ in range(slices):
        feed.next()
    # else hardly anything is left, or one slice ran at a time
    assert went == [7] * (moves and at == 6 and beside == 2)


def test_explain_says_what_may_move(folder: Path) -> None:
    assert "moves to processes if threads take turns" in run(folder, pure).explain("physical")
    assert "moves to processes" not in run(folder, impure).explain("physical")
