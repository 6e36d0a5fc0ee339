"""Test ``padded_batch`` and ``ragged_batch``: lists as padded arrays, or concatenated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.base.open_tensors import OpenTensor, column_of, padded_in, padded_shape
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


# ------------------------------------------------------------------------------------------ tensors

SHAPES = [(2, 3), (1, 4), (3, 0), (2, 2), (5, 1)]


def tensors(value: str = "f4", axes: tuple[int | None, ...] = (None, None)) -> dml.Dataset:
    """Tensors whose rows have other shapes; axes that are not None have their length in all."""
    shapes = [[s if a is None else a for s, a in zip(shape, axes, strict=True)] for shape in SHAPES]
    arrays = [np.arange(np.prod(s), dtype=value).reshape(s) + 1 for s in shapes]
    kind = OpenTensor(pa.from_numpy_dtype(np.dtype(value)), axes)
    return table({"k": pa.array(range(len(arrays))), "x": column_of(arrays, kind)})


@pytest.mark.law
@pytest.mark.parametrize("value", ["f4", "f8", "u1", "i8"])
@pytest.mark.parametrize("axes", [(None, None), (2, None), (None, 3)])
def test_tensors_are_padded_on_each_axis(value: str, axes: tuple[int | None, ...]) -> None:
    ds = tensors(value, axes).padded_batch(2, padding_values={"x": 7})
    rows = [row["x"] for row in tensors(value, axes).epoch(0)]
    for number, batch in enumerate(ds):
        part = rows[2 * number : 2 * number + 2]
        longest = np.max([array.shape for array in part], axis=0)
        assert batch["x"].shape == (len(part), *longest)
        assert batch["x"].dtype == np.dtype(value)
        for found, array in zip(batch["x"], part, strict=True):
            inside = tuple(map(slice, array.shape))
            assert (found[inside] == array).all()
            found[inside] = 7
        assert (batch["x"] == 7).all()
    assert holds(ds) == 3


def test_tensors_have_a_width_where_one_axis_is_open() -> None:
    ds = tensors(axes=(2, None)).padded_batch(5, pad_to={"x": 4})
    (batch,) = ds
    assert batch["x"].shape == (5, 2, 4)
    assert holds(ds) == 1
    with pytest.raises(CastError, match=r"a list of 4 in 'x' does not fit into pad_to=3"):
        list(tensors(axes=(2, None)).padded_batch(5, pad_to=3))
    with pytest.raises(SchemaError, match="several are open"):
        tensors().padded_batch(5, pad_to={"x": 4})


def test_one_setting_for_all_columns_leaves_out_tensors_that_cannot_have_it() -> None:
    ids = table({"ids": pa.array([[3, 4]] * len(SHAPES))})
    ds = dml.zip(tensors("u1"), ids)
    (batch,) = ds.padded_batch(5, padding_values=-1, pad_to=3)
    assert batch["ids"].tolist() == [[3, 4, -1]] * 5
    assert batch["x"].shape == (5, 5, 4)
    assert batch["x"][0, 4, 3] == 0
    with pytest.raises(SchemaError, match="cannot fill 'x' with -1"):
        ds.padded_batch(5, padding_values={"x": -1})
    half = column_of(
        [np.ones((2, 2), "f2"), np.ones((1, 3), "f2")], OpenTensor(pa.float16(), (None, None))
    )
    (batch,) = table({"x": half}).padded_batch(2)
    assert [array.shape for array in batch["x"]] == [(2, 2), (1, 3)]


def test_the_bytes_of_a_padded_batch_are_known() -> None:
    arrays = [np.ones(n, np.float32) for n in (1, 3)]
    column = column_of(arrays, OpenTensor(pa.float32(), (None,)))
    for width, shape in ((None, (2, 3)), (9, (2, 9))):
        assert padded_shape(column, width) == shape
        assert padded_in(column, 0, width).shape == shape


def test_null_tensors_are_nan_or_refused() -> None:
    for value in ("f4", "i4"):
        ds = tensors(value).with_columns(x=dml.when(col("k") == 1).then(None).otherwise(col("x")))
        if value == "i4":
            with pytest.raises(NullValueError, match="drop_nulls"):
                list(ds.padded_batch(2))
            continue
        first = next(iter(ds.padded_batch(2)))["x"]
        assert first.shape == (2, 2, 3)
        assert np.isnan(first[1]).all()
        assert not np.isnan(first[0]).any()


@pytest.mark.law
def test_tensors_are_put_into_buckets_by_their_open_axis() -> None:
    ds = tensors(axes=(2, None)).bucket_by_length("x", [2, 4], 2)
    found = [(batch["k"].tolist(), batch["x"].shape) for batch in ds]
    assert found == [([0, 3], (2, 2, 3)), ([2, 4], (2, 2, 1)), ([1], (1, 2, 4))]
    assert holds(ds) == 3
    with pytest.raises(SchemaError, match="cannot measure 'x', which is f4"):
        tensors().bucket_by_length("x", [2], 2)


def test_functions_of_padded_batches_get_one_array() -> None:
    ds = tensors().padded_batch(5).map(lambda b: {"shape": [b["x"].shape[1:]] * len(b["k"])})
    assert next(iter(ds))["shape"].tolist() == [[5, 4]] * 5
    again = tensors().padded_batch(2).unbatch()
    plain = [row["x"].tolist() for row in tensors().epoch(0)]
    assert [np.asarray(row["x"]).tolist() for row in again.epoch(0)] == plain
