"""Test blocks: conversion to and from Arrow, views, copies, and empty blocks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.data.block import Block, Values, block_of, concat, empty, from_arrow, to_arrow
from dml.data.schema import Schema, tensor
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

KINDS = [
    pa.bool_(), pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.list_(pa.int64()), pa.timestamp("ns", "UTC"), pa.date32(), pa.null(),
    tensor("f4", (2, 3)), tensor("b1", (3,)), tensor("i2", (0,)),
]  # fmt: skip


def array_of(kind: pa.DataType, n: int) -> pa.Array:
    """``n`` values of ``kind``, each third null."""
    if isinstance(kind, pa.FixedShapeTensorType):
        size = int(np.prod(kind.shape))
        flat = [[(i + j) % 2 == 1 for j in range(size)] if i % 3 else None for i in range(n)]
        if kind.value_type != pa.bool_():
            flat = [None if row is None else [int(v) for v in row] for row in flat]  # type: ignore[misc]
        return pa.ExtensionArray.from_storage(kind, pa.array(flat, kind.storage_type))
    if pa.types.is_list(kind):
        return pa.array([[i] * i if i % 3 else None for i in range(n)], kind)
    if pa.types.is_null(kind):
        return pa.nulls(n)
    text = kind in (pa.string(), pa.binary())
    plain = [str(i) if text else i % 2 if kind == pa.bool_() else i for i in range(n)]
    if kind == pa.bool_():
        plain = [bool(value) for value in plain]
    return pa.array([value if i % 3 else None for i, value in enumerate(plain)], kind)


def block_over(array: pa.Array) -> Block:
    batch = pa.RecordBatch.from_arrays([array], ["c"])
    return Block.from_arrow(batch, RowIds.run(1, 0, len(array)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("start", "stop"), [(0, 20), (0, 0), (9, 20), (3, 12), (20, 20)])
def test_arrow_and_back(kind: pa.DataType, start: int, stop: int) -> None:
    array = array_of(kind, 20).slice(start, stop - start)
    block = block_over(array)
    assert block.to_arrow().column(0).equals(array)
    assert block.slice(1, 5).to_arrow().column(0).equals(array.slice(1, 4))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_take_and_concat(kind: pa.DataType) -> None:
    array = array_of(kind, 9)
    block = block_over(array)
    index = np.array([8, 0, 3, 3])
    assert block.take(index).to_arrow().column(0).equals(array.take(pa.array(index)))
    assert block.take(index[:0]).n == 0
    parts = [block.slice(0, 2), empty(block.schema), block.slice(2, 9)]
    again = concat(parts)
    assert again.to_arrow().column(0).equals(array)
    assert again.ids.low().tolist() == list(range(9))


def test_numbers_share_memory() -> None:
    array = pa.array([1, 2, 3])
    values = from_arrow(array)
    assert isinstance(values, Vec)
    assert values.valid is None
    assert not values.values.flags.owndata
    assert to_arrow(values, pa.int64()).buffers()[1].address == array.buffers()[1].address


def test_dictionaries_are_decoded() -> None:
    block = block_over(pa.array(["a", "b", "a", None]).dictionary_encode())
    assert block.schema["c"] == pa.string()
    assert block.to_arrow().column(0).to_pylist() == ["a", "b", "a", None]


@pytest.mark.parametrize("n", [1, 2, 8, 16, 17, 64])
@pytest.mark.parametrize("inner", [pa.int64(), pa.float32(), pa.bool_(), pa.string()])
def test_lists_that_are_all_null_have_no_elements(n: int, inner: pa.DataType) -> None:
    # Arrow lends their elements a buffer of any size
    flat = pa.nulls(n, pa.list_(inner)).values
    assert to_arrow(from_arrow(flat), inner).to_pylist() == []


def test_no_columns_and_no_rows() -> None:
    block = Block(Schema(), (), RowIds.run(1, 0, 4))
    assert block.n == 4
    assert block.slice(1, 3).n == 2
    assert concat([block, block]).n == 8
    assert empty(Schema({"x": pa.int8()})).to_arrow().num_rows == 0
    assert block.nbytes == 0


def test_selection_keeps_order_and_memory() -> None:
    columns: dict[str, tuple[pa.DataType, Values]] = {
        "a": (pa.int64(), Vec(np.arange(3))), "b": (pa.float64(), Vec(np.ones(3)))
    }  # fmt: skip
    block = block_of(columns, RowIds.run(1, 0, 3))
    chosen = block.select(["b"])
    assert chosen["b"] is block["b"]
    assert chosen.nbytes == 24


@given(st.lists(st.none() | st.booleans(), max_size=40), st.integers(0, 9), st.integers(0, 40))
def test_bits_at_any_offset(values: list[bool | None], start: int, count: int) -> None:
    array = pa.array(values, pa.bool_()).slice(start, count)
    assert to_arrow(from_arrow(array), pa.bool_()).to_pylist() == array.to_pylist()


NESTED = [
    [[1, None], [2], None, [3, 4, 5]],
    [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": []}],
    [["ab", None], [], ["c"]],
    [None, [[1], None, [None, 2]]],
]


def written_out(block: Block) -> Block:
    """The same rows as a file gives them back: masks that mask nothing are not written."""
    batch, sink = block.to_arrow(), pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
    return Block.from_arrow(pa.ipc.open_file(sink.getvalue()).get_batch(0), block.ids)


@pytest.mark.parametrize("values", NESTED)
def test_rows_weigh_the_same_from_wherever_they_come(values: list[object]) -> None:
    rows = pa.record_batch({"v": pa.array(values * 3)})
    whole = Block.from_arrow(rows, RowIds.run(1, 0, rows.num_rows))
    for start in range(whole.n):
        for stop in range(start, whole.n + 1):
            part = whole.slice(start, stop)
            picked = whole.take(np.arange(start, stop))
            assert written_out(part).weight == picked.weight == part.weight
            middle = min(2, part.n)
            halves = part.slice(0, middle), part.slice(middle, part.n)
            assert sum(half.additive_weight for half in halves) == part.additive_weight
