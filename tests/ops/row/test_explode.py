"""Test ``explode``: a row for each element of a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.base.open_tensors import OpenTensor, column_of
from dml.errors import CastError, PlanError, SchemaError
from dml.ops.row.flat_map import OUT_ROWS
from tests.expr.checks import agrees, holds, numbers, table

WORDS = [["a", "b"], None, [], ["", None], ["c"]]
FLAGS = [[True, False], [None], None, [True, True], [False]]


def lists(**more: Any) -> dml.Dataset:
    return table({"i": pa.array(range(5)), "w": pa.array(WORDS), **more})


@pytest.mark.law
def test_elements_in_order_and_null_for_none() -> None:
    ds = lists().explode("w")
    assert [(row["i"], row["w"]) for row in ds] == [
        *((0, "a"), (0, "b"), (1, None), (2, None), (3, ""), (3, None), (4, "c"))
    ]
    assert ds.schema == dml.from_dict({"i": [1], "w": ["a"]}).schema
    assert holds(ds) == 7
    assert holds(ds.batch(2)) == 4


@pytest.mark.law
@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.bool_()),
        pa.large_list(pa.bool_()),
        pa.list_(pa.int8()),
        pa.list_(pa.float32()),
        pa.list_(pa.string()),
        pa.list_(pa.list_(pa.int64())),
    ],
)
def test_lists_of_any_kind(kind: pa.DataType) -> None:
    deep = pa.types.is_list(kind.value_type)
    data = [[[1], None], [], None, [[2, 3]], [None]] if deep else FLAGS
    array = pa.array(data, kind if deep else pa.list_(pa.bool_())).cast(kind)
    ds = table({"i": pa.array(range(5)), "v": array}, atom_rows=2).explode("v")
    wanted = [each for one in array.to_pylist() for each in (one or [None])]
    assert [row["v"] for row in ds] == wanted
    assert holds(ds) == len(wanted)


@pytest.mark.law
def test_lists_of_fixed_size() -> None:
    array = pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.int16(), 2))
    ds = table({"v": array}, atom_rows=3).explode("v")
    assert [row["v"] for row in ds] == [1, 2, None, 3, None, 4, 5]
    assert holds(ds) == 7


@pytest.mark.law
def test_nothing_but_empty_lists() -> None:
    ds = table({"v": pa.array([[], None, []], pa.list_(pa.int64()))}).explode("v")
    assert holds(ds) == 3
    assert holds(numbers(0).with_columns(y=1).map(lambda r: {"v": [r["x"]]}).explode("v")) == 0


@pytest.mark.law
def test_tensors_along_their_first_axis() -> None:
    ds = numbers(4).map(lambda row: {"v": np.full((2, 3), row["x"], "f4")}).explode("v")
    assert [row["v"].tolist() for row in ds][2:4] == [[1.0] * 3] * 2
    assert holds(ds.explode("v")) == 24
    declared = numbers(4).map(
        lambda row: {"v": None if row["x"] % 2 else np.arange(2)},
        schema={"v": pa.fixed_shape_tensor(pa.int64(), (2,))},
    )
    assert [row["v"] for row in declared.explode("v")] == [0, 1, None, 0, 1, None]


@pytest.mark.law
def test_several_columns_stand_side_by_side() -> None:
    ds = lists(f=pa.array(FLAGS)).explode("w", "f")
    assert [(row["w"], row["f"]) for row in ds][:3] == [("a", True), ("b", False), (None, None)]
    assert holds(ds) == 7
    assert holds(lists(f=pa.array(FLAGS)).explode("w").explode("f")) == 11


def test_lists_that_do_not_fit_together_are_an_error_at_their_place() -> None:
    other = pa.array([[1, 2], [3], [4], [5], [6]])
    ds = lists(f=other).explode("w", "f")
    run = iter(ds)
    assert [next(run)["f"] for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(CastError, match="2 of 'w', 1 of 'f'"):
        next(run)
    agrees(ds)


@pytest.mark.law
def test_children_have_ids_of_their_own() -> None:
    ds = lists(f=pa.array(FLAGS)).explode("w").explode("f").with_columns(u=dml.random())
    rows = list(ds)
    assert len({row["u"] for row in rows}) == len(rows)
    assert holds(ds.shuffle().take(6)) == 6
    assert holds(lists().repeat(2).explode("w").filter(col("w").is_not_null())) == 8


def test_many_children_come_in_blocks() -> None:
    many = OUT_ROWS + 5
    ds = numbers(2).map(lambda row: {"x": row["x"], "v": list(range(many))}).explode("v")
    assert [row["v"] for row in ds] == list(range(many)) * 2


def test_a_slice_of_a_block_has_its_own_lists() -> None:
    ds = table({"v": pa.array([[i, i + 1] for i in range(9)])}, atom_rows=9).skip(4).explode("v")
    assert [row["v"] for row in ds] == [v for i in range(4, 9) for v in (i, i + 1)]


def test_refuses_what_is_no_list() -> None:
    with pytest.raises(SchemaError, match="'x' is int64"):
        numbers().explode("x")
    with pytest.raises(SchemaError, match="needs column 'y'"):
        numbers().explode("y")
    with pytest.raises(SchemaError, match="explode needs lists"):
        list(numbers().random_map(lambda row, _: row).explode("x"))
    with pytest.raises(PlanError, match="at least one column"):
        numbers().explode()
    with pytest.raises(PlanError, match="after batch"):
        lists().batch(2).explode("w")


@pytest.mark.law
@pytest.mark.parametrize("shape", [(None,), (None, 2), (None, None), (2, None), (None, None, 3)])
def test_tensors_of_open_shape(shape: tuple[int | None, ...]) -> None:
    kind = OpenTensor(pa.int16(), shape)
    sizes = [3, 0, 1, 2, 2] if shape[0] is None else [2] * 5
    shapes = [
        tuple(size if axis == 0 else (n or 1 + row % 3) for axis, n in enumerate(shape))
        for row, size in enumerate(sizes)
    ]
    arrays: list[Any] = [np.arange(np.prod(s), dtype="i2").reshape(s) + 9 for s in shapes]
    arrays[3] = None
    for column in (column_of(arrays, kind), column_of([*arrays, arrays[0]], kind)[:5]):
        ds = table({"i": pa.array(range(5)), "v": column}, atom_rows=2).explode("v")
        rows = [(row["i"], row["v"]) for row in ds]
        empty = [None]
        wanted = [
            (i, each)
            for i, a in enumerate(arrays)
            for each in (empty if a is None or not len(a) else a)
        ]
        assert [i for i, _ in rows] == [i for i, _ in wanted]
        for (_, got), (_, each) in zip(rows, wanted, strict=True):
            assert (got is None) == (each is None)
            assert each is None or np.array_equal(got, each)
        assert holds(ds) == len(wanted)


def test_data_below_null_tensors_is_left_out() -> None:
    kind = OpenTensor(pa.int16(), (None, 2))
    column = column_of([np.ones((2, 2), "i2"), np.zeros((3, 2), "i2"), np.ones((1, 2), "i2")], kind)
    data = [column.storage.field(n) for n in ("data", "shape")]
    storage = pa.StructArray.from_arrays(
        data, fields=list(kind.storage_type), mask=pa.array([False, True, False])
    )
    hidden = pa.ExtensionArray.from_storage(kind, storage)
    rows = [row["v"] for row in table({"v": hidden}).explode("v")]
    assert [None if row is None else row.tolist() for row in rows] == [[1, 1], [1, 1], None, [1, 1]]
