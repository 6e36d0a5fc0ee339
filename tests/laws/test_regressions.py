"""Regression tests: short pipelines for defects that random pipelines have found."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.errors import SchemaError
from dml.testing.equality import difference
from dml.testing.executions import PLAIN, WRITTEN, RunWay, elements, outcome
from dml.testing.oracle import Oracle

WAYS = [WRITTEN, PLAIN, RunWay(threads=2, target_bytes=1), RunWay(budget=1, target_bytes=100)]


def agree(dataset: Dataset, cache: Path) -> list[dict[str, Any]]:
    """What the oracle and every way deliver."""
    wanted = outcome(Oracle(dataset._node).elements())
    for way in WAYS:
        got = outcome(elements(dataset._node, way, cache))
        assert not difference(got, wanted, optimized=False), way
    return wanted.elements


def changing(row: dict[str, Any]) -> dict[str, Any]:
    """A float where the number is even, told apart by a loop that nobody lifts."""
    number = sum(row["id"] for _ in range(1))
    return {"z": number if number % 2 else float(number)}


def test_lists_of_numbers_keep_their_type_where_they_are_empty(cache: Path) -> None:
    lists = pa.array([[], [1, 2]], pa.list_(pa.int32()))
    (batch,) = agree(dml.from_dict({"x": lists}).batch(2), cache)
    assert [part.dtype for part in batch["x"]] == [np.int32, np.int32]


def test_types_settle_by_the_first_rows_after_a_shuffle_whatever_the_plan(cache: Path) -> None:
    for order in (
        dml.range(40, atom_rows=3).shuffle(),
        dml.range(40, atom_rows=3).shuffle(4),
        dml.range(40, atom_rows=3).shuffle(1),
        dml.range(40, atom_rows=3).shuffle(window="atoms", size=2),
        dml.range(40, atom_rows=1).repeat(2).shuffle(2),
    ):
        (batch,) = agree(order.map(changing).batch(100), cache)
        assert batch["z"].dtype == np.float64


def test_a_function_below_two_shuffles_settles_by_what_is_read_first(cache: Path) -> None:
    for seed in range(4):
        made = dml.range(9, atom_rows=1).map(changing)
        agree(made.shuffle(window="atoms", size=1, seed=seed).shuffle().batch(20), cache)


def test_a_lifted_function_has_types_even_where_its_first_rows_are_null(cache: Path) -> None:
    source = dml.from_dict({"x": [None, None, 1.5]}, atom_rows=1)
    made = source.map(lambda row: {**row, "y": 1})
    assert dict(made.schema) == {"x": pa.float64(), "y": pa.int64()}
    assert agree(made.batch(1), cache)[0]["x"].dtype == np.float64


def test_fills_that_draw_are_random_operators(cache: Path) -> None:
    source = dml.from_dict({"x": [None, 1.0, None], "y": [None, None, 2.0]})
    made = source.fill_null(x=dml.random()).fill_null(y=dml.random()).batch(3)
    (batch,) = agree(made, cache)
    assert batch["x"][0] != batch["y"][0]


def test_integers_are_rounded_to_tens(cache: Path) -> None:
    (batch,) = agree(dml.from_dict({"i": [15, 24, 25]}).select("i").batch(3), cache)
    made = dml.from_dict({"i": [15, 24, 25, 35]}).with_columns(i=col("i").round(-1)).batch(4)
    (batch,) = agree(made, cache)
    assert batch["i"].tolist() == [20, 20, 20, 40]


TENSORS = dml.from_numpy({"t": np.arange(4).reshape(2, 2), "b": np.ones((2, 2), bool)})


@pytest.mark.parametrize(
    "value",
    [
        col("t").hash(),
        col("t").bucketize([1]),
        col("t").is_in([1]),
        col("t").cast("f8").is_nan(),
    ],
)
def test_operations_of_one_value_a_row_refuse_tensors(value: Any) -> None:
    with pytest.raises(SchemaError):
        TENSORS.with_columns(x=value)


def test_tensors_that_meet_literals_stay_tensors(cache: Path) -> None:
    made = TENSORS.with_columns(half=col("t") * 0.5, flag=col("b").fill_null(lit_true()))
    (batch,) = agree(made.batch(2), cache)
    assert batch["half"].shape == (2, 2)
    assert batch["flag"].all()


def lit_true() -> Any:
    return dml.lit(True)


def test_a_column_settled_as_null_gives_nulls(cache: Path) -> None:
    def fn(row: dict[str, Any]) -> dict[str, Any]:
        for _ in range(1):
            pass
        return {"id": row["id"], "nothing": None}

    none = col("nothing")
    values = {"h": none.hash(), "e": none == none, "i": none.is_in([1])}  # noqa: PLR0124
    made = dml.range(3).map(fn).with_columns(**values).fill_null(h=7, e=True, i=False).batch(3)
    (batch,) = agree(made, cache)
    assert [batch[name].tolist() for name in values] == [[7] * 3, [True] * 3, [False] * 3]


def test_a_batch_without_any_value_takes_the_type_of_the_first(cache: Path) -> None:
    source = dml.from_dict({"s": ["a", "b", None, None]})
    batches = agree(source.batch(2).map(lambda batch: {"s": batch["s"]}), cache)
    assert batches[1]["s"].tolist() == [None, None]


def test_an_error_of_types_waits_for_the_first_row_that_meets_it(cache: Path) -> None:
    def fn(row: dict[str, Any]) -> dict[str, Any]:
        found = [repr(row["id"]) for _ in range(1)]
        return {"id": row["id"], "x": "text" if "2" in found else None}

    made = dml.range(4, atom_rows=1).map(fn).filter(col("id") > 2).filter(col("x").is_in([1]))
    found = [outcome(elements(made._node, way, cache)).error for way in WAYS]
    assert found == ["SchemaError"] * len(WAYS)  # a text among the first 64 rows settles the type


def test_an_endless_repeat_goes_on_after_a_pass_that_was_finished(cache: Path) -> None:
    made = dml.range(3).batch(2).repeat().take(9)
    whole = list(elements(made._node, PLAIN, cache))
    for place in range(10):
        first = elements(made._node, PLAIN, cache)
        before = list(islice(first, place))
        rest = list(elements(made._node, PLAIN, cache, state=first.state_dict()))
        assert [b["id"].tolist() for b in (*before, *rest)] == [b["id"].tolist() for b in whole]


def test_an_error_inside_a_batch_stands_in_its_place(cache: Path) -> None:
    source = dml.from_dict({"x": [1.0, 2.0, 3.0, 4.0, float("nan"), 6.0, 7.0]})
    made = source.batch(3).cast(x="i8")
    for way in WAYS:
        found = outcome(elements(made._node, way, cache))
        assert [batch["x"].tolist() for batch in found.elements] == [[1, 2, 3]]
        assert found.error == "CastError"


def test_large_unsigned_numbers_with_nulls_pass_through_a_batch_function(cache: Path) -> None:
    numbers = pa.array([2**64 - 1, None, 3], pa.uint64())
    source = dml.from_dict({"u": numbers}).batch(3).map(lambda batch: {"u": batch["u"]})
    (batch,) = agree(source.fill_null(u=0), cache)
    assert batch["u"].dtype == np.uint64
    signed = dml.range(1).batch(1).map(lambda _: {"u": np.array([2**63, -1], object)})
    assert outcome(elements(signed._node, PLAIN, cache)).error == "UDFError"


@pytest.mark.parametrize("atom_rows", [1, 2, 3])
@pytest.mark.parametrize("size", [None, 2])
def test_an_error_in_the_first_row_of_an_atom_is_behind_the_groups_of_the_one_before(
    cache: Path, atom_rows: int, size: int | None
) -> None:
    source = dml.range(20, atom_rows=atom_rows)

    def failing(row: dict[str, Any]) -> bool:
        return bool(1 // (row["id"] - 6) or row["id"] == 4)

    def spelled(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "t": str(row["id"])}

    kept = source.filter(failing)
    for made in (kept, kept.map(spelled), kept.map(spelled, num_cpus=0.5)):
        assert agree(made.map_batches(dict, batch_size=size), cache)


def test_a_run_by_slices_of_several_atoms_goes_on_by_whole_units(cache: Path) -> None:
    source, stored = dml.range(40, atom_rows=2), RunWay(stores="by-units")
    whole = list(range(11, 40))
    assert len(outcome(elements(source.cache("disk")._node, stored, cache)).elements) == 40

    def kept(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [row] * (row["id"] > 10)

    node = source.flat_map(kept, schema={"id": "int64"})._node
    for place in range(len(whole) + 1):
        for seed in range(3):
            first = elements(node, RunWay(slices=seed), cache)
            before = [row["id"] for row in islice(first, place)]
            state = first.state_dict()
            first.close()
            rest = elements(node, stored, cache, state=state)
            assert before + [row["id"] for row in rest] == whole
