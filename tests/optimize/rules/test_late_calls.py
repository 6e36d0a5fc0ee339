"""Test the rule that calls functions only for requested rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.api.dataset import Dataset
from dml.data.row_slicing import SETTLING_ROWS
from dml.errors import UDFError
from dml.optimize.rules.late_calls import slice_before_function
from dml.testing.plans import keeps_rows, leaves, rewrites
from tests.expr.checks import agrees

ROWS = 300
KINDS = {"id": "int64", "t": "string"}
BY = [slice_before_function]
Slice = Callable[[Dataset], Dataset]


def spelled(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "t": str(row["id"]), "f": [row["id"]] * (row["id"] % 3)}


def typed(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "t": str(row["id"])}


def drawn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {**row, "r": rng.random()}


SLICES: dict[str, Slice] = {
    "shard": lambda ds: ds.shard(8, 3),
    "first shard": lambda ds: ds.shard(7, 0),
    "skip": lambda ds: ds.skip(200),
    "skip few": lambda ds: ds.skip(10),
    "take": lambda ds: ds.take(100),
    "take few": lambda ds: ds.take(5),
    "all": lambda ds: ds.skip(30).take(150).shard(3, 2),
}


def test_slices_move_below_functions_of_known_types() -> None:
    def f(ds: Dataset) -> Dataset:
        return ds.map(typed, schema=KINDS)

    for name in ("shard", "skip", "take", "take few"):
        rewrites(SLICES[name](f(dml.range(ROWS))), to=f(SLICES[name](dml.range(ROWS))), by=BY)


def test_what_changes_the_number_of_rows_stays_below() -> None:
    for ds in (
        dml.range(ROWS).filter(lambda row: len(str(row["id"])) > 1),
        dml.range(ROWS).flat_map(lambda row: [row]),
        dml.range(ROWS).map(spelled, on_error="skip"),
        dml.range(ROWS).batch(4).map(lambda batch: batch),
    ):
        leaves(ds.shard(8, 3), by=BY)
        leaves(ds.skip(100), by=BY)
        leaves(ds.take(100), by=BY)


@pytest.mark.sample(3)
@pytest.mark.law
@pytest.mark.parametrize("name", SLICES)
def test_rows_are_the_same(name: str) -> None:
    source = dml.range(ROWS, atom_rows=50)
    keeps_rows(SLICES[name](source.map(spelled)).batch(7))
    agrees(SLICES[name](source.random_map(drawn).map(spelled).map(spelled)), epochs=(1,))


@given(st.integers(2, 9), st.integers(0, 8), st.integers(0, 90), st.integers(1, 130))
def test_any_slices_keep_rows(step: int, index: int, skip: int, take: int) -> None:
    ds = dml.range(120, atom_rows=17).map(spelled).skip(skip).map(spelled)
    ds = ds.shard(step, index % step).take(take).with_options(executor="sync", telemetry_dir="off")
    assert list(ds) == list(ds.with_options(optimize=False))


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_calls_are_those_of_the_rows_and_those_that_settle_types(executor: str) -> None:
    for name, rows in {"shard": -(-ROWS // 8), "skip": 100, "take": 100}.items():
        for schema in (None, {"id": "int64", "t": "string"}):
            seen: list[int] = []

            def noting(row: dict[str, Any]) -> dict[str, Any]:
                seen.append(row["id"])  # noqa: B023 (called in this turn)
                return typed(row)

            ds = SLICES[name](dml.range(ROWS).map(noting, schema=schema))
            ds = ds.with_options(executor=executor, num_workers=4, telemetry_dir="off")
            assert len(list(ds)) in {rows, rows - 1}
            assert len(seen) == len(set(seen)) <= rows + (SETTLING_ROWS if schema is None else 0)


def test_a_row_that_nobody_asked_for_fails_in_vain() -> None:
    seen: list[int] = []

    def failing(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row["id"])
        if row["id"] == 201:
            raise ValueError("not asked for")
        return typed(row)

    ds = dml.range(ROWS).map(failing).with_options(executor="sync", telemetry_dir="off")
    assert len(list(ds.shard(2, 0))) == ROWS // 2
    with pytest.raises(UDFError, match="not asked for"):
        list(ds.shard(2, 1))


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_runs_go_on_anywhere(name: str, executor: str) -> None:
    ds = SLICES[name](dml.range(ROWS, atom_rows=50).map(spelled).map(spelled))
    ds = ds.with_options(executor=executor, num_workers=2, telemetry_dir="off", prefetch=0)
    whole = list(ds.epoch(0))
    for given_rows in {0, 1, len(whole) // 2, len(whole) - 1}:
        with iter(ds.epoch(0)) as it:
            before = list(islice(it, given_rows))
            state = json.loads(json.dumps(it.state_dict()))
        again = iter(ds.epoch(0))
        again.load_state_dict(state)
        assert before + list(again) == whole
