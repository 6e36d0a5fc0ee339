"""Test functions whose output grows inside one task: it is cut into parts, and none is lost.

A function of batches that returns an iterator yields one batch at a time. The operators after it,
in a later stage, see the groups that they would see of the whole atom.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.errors import UDFError
from dml.events import Tally
from dml.exec.tasks.partition import ReadTask
from tests.exec.tasks.test_task import job_of
from tests.expr.checks import agrees, holds, numbers, resumes
from tests.sampling import amount

Batch = dict[str, Any]


def parts(size: int, made: list[int] | None = None) -> Any:
    """Each row as often as it says, in batches of ``size`` rows; ``made`` counts them."""

    def growing(batch: Batch) -> Iterator[Batch]:
        rows = np.repeat(batch["x"], batch["x"] % 5)
        for start in range(0, len(rows), size):
            if made is not None:
                made.append(start)
            yield {"x": rows[start : start + size]}

    return growing


def sized(batch: Batch) -> Batch:
    """Each row with how many are in its group."""
    return {"x": batch["x"], "n": np.full(len(batch["x"]), len(batch["x"]))}


@pytest.mark.law
@settings(max_examples=amount(15, 25))
@given(
    rows=st.integers(0, 12), size=st.integers(1, 7), group=st.integers(1, 6), staged=st.booleans()
)
def test_groups_of_parts_equal_the_oracle(rows: int, size: int, group: int, staged: bool) -> None:
    needs: Batch = {"num_cpus": 0.5} if staged else {}
    ds = numbers(rows).map_batches(parts(size)).map_batches(sized, batch_size=group, **needs)
    agrees(ds, epochs=(0,))
    assert resumes(ds) == int(sum(x % 5 for x in range(rows)))


@pytest.mark.law
def test_all_rows_of_an_iterator_are_new_ones() -> None:
    same = numbers(5).map_batches(lambda batch: iter([batch]))
    assert holds(same.with_columns(u=dml.col("x") + 0)) == 5
    plain = numbers(5).map_batches(lambda batch: {"x": batch["x"]})
    ids = [list(each.with_columns(i=dml.row_id()).to_numpy()["i"]) for each in (same, plain)]
    assert not set(ids[0]) & set(ids[1])


def test_what_came_before_an_error_stays() -> None:
    def broken(batch: Batch) -> Iterator[Batch]:
        yield {"x": batch["x"][:1]}
        raise LookupError("no more")

    run = iter(numbers(4).map_batches(broken))
    assert next(run)["x"] == 0
    with pytest.raises(UDFError, match="LookupError: no more"):
        next(run)
    skipped = numbers(4).map_batches(broken, on_error="skip")
    assert [row["x"] for row in skipped] == [0, 3]
    agrees(skipped)


def test_a_class_makes_all_before_another_call() -> None:
    class Parts:
        inside = 0

        def __call__(self, batch: Batch) -> Iterator[Batch]:
            for x in batch["x"]:
                self.inside += 1
                yield {"x": np.array([x]), "seen": np.array([self.inside])}
            self.inside = 0

    seen = [(row["x"], row["seen"]) for row in numbers(4).map_batches(Parts)]
    assert seen == [(0, 1), (1, 2), (2, 3), (3, 1)]


@pytest.mark.parametrize("grain", [1, 2, 3, 10])
def test_the_next_stage_begins_before_the_task_ends(tmp_path: Path, grain: int) -> None:
    begun: list[int] = []
    ds = dml.range(1).map_batches(lambda _: parts(2, begun)({"x": np.full(15, 4)}))
    ds = ds.map_batches(sized, batch_size=grain, num_cpus=0.5)
    job = job_of(ds, tmp_path, target=16)
    first, later = job.starts(Tally)
    rows = 0
    for outcome in first(ReadTask(0, 1)):
        rows += outcome.rows
        whole = rows % grain == 0 or outcome.done
        assert whole, "a partition ends with a group"
        assert len(begun) * 2 - rows <= 2, "no more is made than is given"
        blocks = [piece.block for made in later(outcome.value) for piece in made.value]
        groups = [block["n"].values.tolist() for block in blocks if block is not None]
        assert {n for group in groups for n in group} <= {grain, 60 % grain}
    assert rows == 60
    assert len(begun) == 30


def test_groups_that_others_look_at_again_stay_in_whole_atoms(tmp_path: Path) -> None:
    ds = dml.range(1).map_batches(lambda _: parts(2)({"x": np.full(15, 4)}))
    ds = ds.map_batches(sized, batch_size=2, num_cpus=0.5).map_batches(sized, num_cpus=0.25)
    first, *_ = job_of(ds, tmp_path, target=1).starts(Tally)
    assert [outcome.rows for outcome in first(ReadTask(0, 1))] == [60]


@pytest.mark.parametrize("declared", [None, {"x": "int64", "s": "string"}])
def test_large_children_go_on_by_few(tmp_path: Path, declared: Any) -> None:
    begun: list[int] = []

    def growing(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for x in range(20):
            begun.append(x)
            yield {"x": x, "s": "abcd" * (1 << 16) * (1 + x % 3)}

    ds = dml.range(1).flat_map(growing, schema=declared)
    (start,) = job_of(ds, tmp_path, target=1).starts(Tally)
    rows, ahead = [], []
    for outcome in start(ReadTask(0, 1)):
        rows.append(outcome.rows)
        ahead.append(len(begun) - sum(rows))
    assert rows == [5, 6, 6, 3, 0]  # of 2 MiB and a row
    assert ahead == [6, 0, 0, 0, 0]  # made when they are asked for, but what types settle by


@pytest.mark.law
def test_large_children_are_what_the_oracle_says() -> None:
    def mixed(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"x": row["x"], "v": np.zeros(1 << 17)}
        yield {"x": row["x"] + 0.5, "v": np.zeros(1 << 17)}

    agrees(numbers(2).flat_map(mixed), epochs=(0,))
    lists = numbers(3).flat_map(_four)
    agrees(lists.map(lambda row: {"n": len(row["t"]) + row["x"]}).map(dict), epochs=(0,))


def _four(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"t": b"1" * (1 << 19), "x": row["x"]} for _ in range(4)]
