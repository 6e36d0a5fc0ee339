"""This file tests that a proven map and a proven filter in one pass are the two of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import DmlError
from dml.ops.row.lifted_pair import LiftedPair

Row = dict[str, Any]
VALUES = st.none() | st.integers(-9, 9) | st.sampled_from([2**62, 2**63 - 1, -(2**63)])


def mapped(row: Row) -> Row:
    return {"x": row["v"] * 2 + 1, "half": row["v"] / 2, "v": row["v"]}


def kept(row: Row) -> bool:
    return bool(row["x"] % 3 == 0 or row["half"] > 2)


def made(values: list[int | None], *, at_once: bool, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Batches, ids (by a shuffle) and the end of a run over small atoms."""
    with monkeypatch.context() as patch:
        if not at_once:
            patch.setattr(LiftedPair, "fits", staticmethod(lambda *_: False))
        # rows that a run begins with are compared: 64 that are like any others come first
        ds = dml.from_dict({"v": [*range(70), *values]}, atom_rows=7).map(mapped).filter(kept)
        found: list[Any] = []
        try:
            found += [list(b["x"]) for b in ds.batch(5).with_options(executor="sync")]
            found += [row["x"] for row in ds.shuffle(seed=3).iter_rows()]
        except DmlError as error:
            found.append((type(error), error.what))
        return found


@pytest.mark.law
@given(st.lists(VALUES, max_size=40))
def test_together_and_apart_are_the_same(values: list[int | None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        together = made(values, at_once=True, monkeypatch=patch)
        assert together == made(values, at_once=False, monkeypatch=patch)


def test_the_two_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run = LiftedPair.run

    def counted(self: LiftedPair, block: Any, at: Any) -> Any:
        out = run(self, block, at)
        runs.append(-1 if out is None else out.n)
        return out

    monkeypatch.setattr(LiftedPair, "run", counted)
    ds = dml.range(500, atom_rows=100).map(lambda row: {"x": row["id"] * 2 + 1})
    ds = ds.filter(lambda row: row["x"] % 3 == 0)
    ds = ds.with_options(executor="sync", telemetry_dir="off")
    rows = [row["x"] for row in ds]
    assert rows == [x for x in range(1, 1001, 2) if x % 3 == 0]
    assert runs[-1] == len([x for x in range(801, 1001, 2) if x % 3 == 0])
    assert sum(found > 0 for found in runs) >= 3
    _, first, second = ds.stats().records[:3]
    assert (first["rows_in"], first["rows_out"]) == (500, 500)
    assert (second["rows_in"], second["rows_out"]) == (500, len(rows))


STEP = 1


def test_a_global_that_changes_during_a_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dml.range(40, atom_rows=10).map(lambda row: {"x": row["id"] + STEP})
    ds = rows.filter(lambda row: row["x"] % 2 < 2).with_options(executor="sync", prefetch=0)
    found = []
    for row in ds.iter_rows():
        found.append(row["x"])
        monkeypatch.setitem(globals(), "STEP", 1000)
    assert found[:2] == [1, 2]
    assert found[-1] == 1039


def test_a_function_of_a_module_that_changes_between_epochs_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ds = dml.range(3).map(lambda row: {"x": math.floor(row["id"] + 0.5)})
    assert [row["x"] for row in ds] == [0, 1, 2]
    monkeypatch.setattr(math, "floor", math.ceil)
    assert [row["x"] for row in ds] == [1, 2, 3]
