"""Test which rows settle the types of a function: engine and oracle agree."""

from __future__ import annotations

import datetime as dt
import traceback
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.testing.equality import difference
from dml.testing.executions import PLAIN, RunWay, elements, outcome
from dml.testing.oracle import Oracle
from tests.expr.checks import node_of, table
from tests.sampling import amount

CASES = st.fixed_dictionaries(
    {
        "late": st.integers(0, 80),
        "every": st.sampled_from([1, 2, 3, 7, 50]),
        "size": st.sampled_from([0, 1000, 1 << 18, 1 << 20]),
        "verb": st.sampled_from(["map", "random_map", "flat_map", "skipping"]),
        "atom_rows": st.sampled_from([9, 60, 100]),
        "first": st.sampled_from([None, 1]),
    }
)


def pipeline(case: dict[str, Any]) -> dml.Dataset:
    """Rows of unlike size; numbers are whole until a late one."""

    def value(x: int) -> dict[str, Any]:
        heavy = case["size"] * (x % case["every"] == 0)
        return {"x": x, "v": case["first"] if x < case["late"] else x + 0.5, "s": "x" * heavy}

    def called(row: dict[str, Any]) -> dict[str, Any]:
        if case["verb"] == "skipping" and row["x"] % 4 == 1:
            raise LookupError(row["x"])
        return value(row["x"])

    def several(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return (value(row["x"]) for _ in range(row["x"] % 3))

    ds = table({"x": list(range(80))}, atom_rows=case["atom_rows"])
    if case["verb"] == "flat_map":
        return ds.flat_map(several)
    if case["verb"] == "random_map":
        return ds.random_map(lambda row, _rng: called(row))
    return ds.map(called, on_error="skip" if case["verb"] == "skipping" else "raise")


@pytest.mark.law
@settings(max_examples=amount(25, 60))
@given(CASES)
def test_large_rows_settle_types_sooner(case: dict[str, Any]) -> None:
    ds = pipeline(case)
    wanted = outcome(Oracle(node_of(ds)).elements())
    for way in (PLAIN, RunWay(rewriting=False, threads=2, target_bytes=1)):
        got = outcome(elements(node_of(ds), way, Path("no-kernels-are-compiled")))
        assert difference(got, wanted, optimized=way.rewriting) == ""


@pytest.mark.law
@pytest.mark.parametrize(("late", "error"), [(63, False), (64, True), (4500, True)])
@pytest.mark.parametrize("verb", ["map", "random_map"])
def test_many_small_rows_settle_types(verb: str, late: int, error: bool) -> None:
    def called(row: dict[str, Any], *_: Any) -> dict[str, Any]:
        return {"v": row["x"] if row["x"] < late else 0.5}

    ds = table({"x": list(range(17000))}, atom_rows=1 << 16)
    made = ds.map(called) if verb == "map" else ds.random_map(called)
    wanted = outcome(Oracle(node_of(made)).elements())
    got = outcome(elements(node_of(made), PLAIN, Path("no-kernels-are-compiled")))
    assert difference(got, wanted, optimized=True) == ""
    assert bool(got.error) == error


def test_declared_types_are_settled_by_no_row() -> None:
    """Else the first row group that is made would count as the one whose rows settled them."""
    ds = dml.range(100).map(lambda row: {"y": len(str(row))}, schema={"y": "int64"})
    run = iter(ds.with_options(telemetry_dir="off"))
    next(run)
    assert run.state_dict()["schemas"] == {}


ROWS = 200
SPANS = {
    "amount": pa.array([Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(12, 2)),
    "amounts": pa.array([[Decimal(i) / 100] for i in range(ROWS)], pa.list_(pa.decimal128(12, 2))),
    "clock": pa.array([dt.time(i % 24, i % 60) for i in range(ROWS)], pa.time64("us")),
    "span": pa.array([dt.timedelta(seconds=i) for i in range(ROWS)], pa.duration("us")),
}
HANDED_ON: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "map": lambda ds: ds.map(lambda row: {**row, "more": 1}),
    "flat_map": lambda ds: ds.flat_map(lambda row: [{**row, "more": 1}]),
    "random_map": lambda ds: ds.random_map(lambda row, _: {**row, "more": 1}),
    "scan": lambda ds: ds.scan(0, lambda state, row: (state, {**row, "more": 1})),
    "map_batches": lambda ds: ds.map_batches(
        lambda batch: {**batch, "more": np.ones(len(batch["span"]))}, batch_size=16
    ),
    "map of batches": lambda ds: (
        ds.batch(16).map(lambda batch: {**batch, "more": np.ones(len(batch["span"]))}).unbatch()
    ),
}


@pytest.mark.parametrize("verb", HANDED_ON)
def test_functions_hand_on_decimals_times_of_day_and_durations(verb: str) -> None:
    ds = HANDED_ON[verb](dml.from_arrow(pa.table(SPANS)))
    wanted = outcome(Oracle(node_of(ds)).elements())
    got = outcome(elements(node_of(ds), PLAIN, Path("no-kernels-are-compiled")))
    assert difference(got, wanted, optimized=True) == ""
    assert [row.pop("more") for row in ds.to_list()] == [1] * ROWS
    assert [{name: row[name] for name in SPANS} for row in ds.to_list()] == pa.table(
        SPANS
    ).to_pylist()
    assert ds.to_arrow().schema.field("amount").type == pa.decimal128(38, 2)


@pytest.mark.parametrize("value", [Path("here"), {1}, 1j, object()])
def test_a_type_that_no_column_has_is_named(value: object) -> None:
    ds = table({"x": [1, 2]}).map(lambda _: {"v": value})
    with pytest.raises(dml.errors.UDFError, match="which no column has"):
        ds.to_list()


@pytest.mark.parametrize("verb", ["map", "flat_map", "random_map"])
def test_the_traceback_of_a_result_that_does_not_fit_is_short(verb: str) -> None:
    """Slices of later rows meet the same error; each must not add its frames to it."""
    ds = table({"x": list(range(1000))})
    bad: dict[str, Callable[..., Any]] = {
        "map": lambda _: None,
        "flat_map": lambda _: [None],
        "random_map": lambda _, __: None,
    }
    with pytest.raises(dml.errors.UDFError, match="returned None") as caught:
        getattr(ds, verb)(bad[verb]).with_options(executor="threads", num_workers=2).to_list()
    assert len(traceback.extract_tb(caught.value.__traceback__)) < 40
