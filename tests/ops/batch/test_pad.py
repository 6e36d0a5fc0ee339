"""Test ``padded_batch`` and ``ragged_batch``: lists as padded arrays, or concatenated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import CastError, NullValueError, PlanError, SchemaError
from tests.expr.checks import holds, numbers, table

TOKENS: list[Any] = [[1], [2, 3, 4], [], [5, 6], [7, 8, 9, 10]]


def tokens(kind: pa.DataType | None = None, rows: list[Any] | None = None) -> dml.Dataset:
    given = TOKENS if rows is None else rows
    lists = pa.array(given, kind or pa.list_(pa.int32()))
    return table({"k": pa.array(range(len(given))), "x": lists})


@pytest.mark.law
def test_each_batch_is_as_wide_as_its_longest() -> None:
    ds = tokens().padded_batch(2)
    batches = list(ds)
    assert [b["x"].tolist() for b in batches] == [
        [[1, 0, 0], [2, 3, 4]],
        [[0, 0], [5, 6]],
        [[7, 8, 9, 10]],
    ]
    assert {b["x"].dtype for b in batches} == {np.dtype("int32")}
    assert all(b["x"].flags.writeable and b["x"].base is None for b in batches)
    assert holds(ds) == 3


def test_lists_of_nothing() -> None:
    ds = tokens(rows=[[], []]).padded_batch(2)
    assert [b["x"].shape for b in ds] == [(2, 0)]
    assert holds(ds) == 1
    assert holds(tokens(rows=[]).padded_batch(2)) == 0


def test_values_and_widths_by_column() -> None:
    columns = {"a": pa.array([[1], []]), "b": pa.array([[1.5], [2.5, 3.5]])}
    columns = {**columns, "s": pa.array(["p", "q"])}
    ds = table(columns).padded_batch(2, padding_values={"b": -1}, pad_to={"a": 2})
    (batch,) = ds
    assert batch["a"].tolist() == [[1, 0], [0, 0]]
    assert batch["b"].tolist() == [[1.5, -1.0], [2.5, 3.5]]
    assert batch["s"].tolist() == ["p", "q"]
    assert holds(ds) == 1


@pytest.mark.law
@pytest.mark.parametrize(
    "kind", [pa.large_list(pa.int64()), pa.list_(pa.float32()), pa.list_(pa.bool_())]
)
def test_kinds_of_lists(kind: pa.DataType) -> None:
    rows = [[1, 0], [1], [0, 1, 1]]
    ds = tokens(kind, [[bool(v) for v in r] if "bool" in str(kind) else r for r in rows])
    ds = ds.padded_batch(2, padding_values=1, drop_last=True)
    assert next(iter(ds))["x"].tolist() == [[1, 0], [1, 1]]
    assert holds(ds) == 1


@pytest.mark.law
def test_lists_of_fixed_size() -> None:
    ds = tokens(pa.list_(pa.int16(), 2), [[1, 2], [3, 4], [5, 6]]).padded_batch(2, pad_to=3)
    assert [b["x"].tolist() for b in ds] == [[[1, 2, 0], [3, 4, 0]], [[5, 6, 0]]]
    assert holds(ds) == 2


@pytest.mark.law
def test_nulls_are_those_of_tensors() -> None:
    floats = tokens(pa.list_(pa.float64()), [[1.0, None], None, [2.0]]).padded_batch(3)
    (batch,) = floats
    assert str(batch["x"].tolist()) == "[[1.0, nan], [nan, nan], [2.0, 0.0]]"
    assert holds(floats) == 1
    for rows in ([[1], None], [[1], [2, None]]):
        ds = tokens(rows=[[0], *rows]).padded_batch(1)
        it = iter(ds)
        assert [next(it)["x"].tolist() for _ in range(2)] == [[[0]], [[1]]]
        with pytest.raises(NullValueError, match="column 'x' has a null"):
            next(it)
        holds(ds.take(2))


@pytest.mark.law
def test_a_list_that_is_too_long_stands_in_the_place_of_its_batch() -> None:
    ds = tokens().padded_batch(1, pad_to=3)
    it = iter(ds)
    assert [next(it)["x"].shape for _ in range(4)] == [(1, 3)] * 4
    with pytest.raises(CastError, match="a list of 4 in 'x' does not fit into pad_to=3") as found:
        next(it)
    assert "test_pad.py" in str(found.value)
    assert holds(ds.take(4)) == 4


@pytest.mark.law
def test_rows_may_still_leave_their_batch() -> None:
    ds = tokens().padded_batch(3).filter(col("k") != 1).with_columns(y=col("k") * 2)
    assert [b["x"].tolist() for b in ds] == [[[1], [0]], [[5, 6, 0, 0], [7, 8, 9, 10]]]
    assert holds(ds) == 2


@pytest.mark.law
def test_functions_see_what_is_delivered() -> None:
    ds = tokens().padded_batch(2).map(lambda b: {"n": (b["x"] > 0).sum(axis=1)})
    assert [b["n"].tolist() for b in ds] == [[1, 3], [0, 2], [4]]
    assert holds(ds) == 3


@pytest.mark.law
def test_over_what_only_a_run_can_type() -> None:
    ds = tokens().map(lambda r: {"x": [*r["x"], r["k"]], "s": str(r)}).padded_batch(2, pad_to=5)
    assert [b["x"].tolist() for b in ds][1] == [[2, 0, 0, 0, 0], [5, 6, 3, 0, 0]]
    assert holds(ds) == 3
    late = tokens().map(lambda r: {"s": str(r)}).padded_batch(2, pad_to={"x": 5})
    with pytest.raises(SchemaError, match="needs column 'x'"):
        next(iter(late))


@pytest.mark.law
def test_shuffled_and_repeated() -> None:
    assert holds(tokens().shuffle(3).repeat(2).padded_batch(3).shuffle(2)) == 4


def test_tables_hold_the_lists() -> None:
    ds = tokens().padded_batch(2)
    assert ds.to_arrow()["x"].to_pylist() == TOKENS
    assert ds.to_arrow().schema == tokens().to_arrow().schema
    assert str(ds.schema["x"]).startswith("padded<int32")


@pytest.mark.law
def test_ragged() -> None:
    ds = tokens().ragged_batch(3)
    first, second = ds
    assert list(first) == ["k", "x", "x_offsets"]
    assert first["x"].tolist() == [1, 2, 3, 4]
    assert first["x_offsets"].tolist() == [0, 1, 4, 4]
    assert second["x"].tolist() == [5, 6, 7, 8, 9, 10]
    assert second["x"].flags.writeable
    assert holds(ds) == 2
    with pytest.raises(NullValueError, match="column 'x' has a null"):
        list(tokens(pa.list_(pa.float64()), [[1.0], None]).ragged_batch(2))


def test_refusals() -> None:
    with pytest.raises(PlanError, match="padded_batch over batches"):
        tokens().batch(2).padded_batch(2)
    with pytest.raises(PlanError, match="ragged_batch over batches"):
        tokens().batch(2).ragged_batch(2)
    with pytest.raises(PlanError, match="batch needs an integer of at least 1"):
        tokens().padded_batch(0)
    with pytest.raises(PlanError, match="pad_to needs an integer of at least 0"):
        tokens().padded_batch(2, pad_to={"x": -1})
    with pytest.raises(SchemaError, match="cannot pad 'k', which is int64"):
        tokens().padded_batch(2, padding_values={"k": 1})
    with pytest.raises(SchemaError, match="needs column 'y'"):
        tokens().padded_batch(2, pad_to={"y": 1})
    for value in (1.5, "a", 2**40, True):
        with pytest.raises(SchemaError, match="cannot fill 'x'"):
            tokens().padded_batch(2, padding_values=value)
    with pytest.raises(SchemaError, match="x_offsets, which is there already"):
        tokens().rename({"k": "x_offsets"}).ragged_batch(2)
    assert numbers().padded_batch(4).schema == numbers().schema


@pytest.mark.law
def test_how_lists_are_shown_outlives_a_saved_state() -> None:
    """Columns that only a run knows are kept in states, with their marks."""

    def listed(row: dict[str, Any]) -> dict[str, Any]:
        return {"v": [row["x"]] * int(str(row["x"]))}

    ds = numbers(6).map(listed, fingerprint="listed")
    for made in (ds.padded_batch(2, padding_values=7), ds.ragged_batch(2)):
        holds(made.concat(made))
        holds(made.unbatch().mix(made.unbatch()).batch(3))


@pytest.mark.parametrize("inner", [pa.list_(pa.int32()), pa.list_(pa.int32(), 2)])
def test_lists_of_lists_are_refused_and_not_handed_on_as_objects(inner: pa.DataType) -> None:
    ds = tokens(pa.list_(inner), [[[1, 2], [3, 4]], [[5, 6]]])
    with pytest.raises(SchemaError, match=r"cannot pad 'x', which is list"):
        ds.padded_batch(2)
