"""Test that the comparison of blocks covers every bit with a meaning, and no other."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.data.block import Block
from dml.data.comparison import difference, first_odd, part
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

FLOATS = st.one_of(st.sampled_from([0.0, -0.0, math.nan, math.inf, 1.5]), st.floats(width=32))
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float32(): FLOATS,
    pa.float64(): FLOATS,
    pa.int64(): st.integers(-3, 3),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from(["", "a", "ab"]),
    pa.list_(pa.float64()): st.lists(FLOATS, max_size=2),
    pa.list_(pa.list_(pa.int8())): st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=2),
    pa.struct([("x", pa.float32()), ("s", pa.string())]): st.fixed_dictionaries(
        {"x": FLOATS, "s": st.sampled_from(["", "a"])}
    ),
    pa.map_(pa.string(), pa.float64()): st.lists(
        st.tuples(st.sampled_from("ab"), FLOATS), max_size=2
    ),
}


def bits(value: Any) -> Any:
    """The value as something that is equal where every bit is, NaNs being one value."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, dict):
        return {name: bits(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    return value


def block(values: list[Any], kind: pa.DataType, padding: int = 0) -> Block:
    """Values as a column, of an array that has more in front."""
    array = pa.array([None] * padding + values, type=kind).slice(padding)
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    return Block.from_arrow(batch, RowIds.run(7, 0, len(values)))


@pytest.mark.law
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_blocks_are_the_same_if_every_bit_is(kind: pa.DataType) -> None:
    cells = st.one_of(st.none(), KINDS[kind])

    @given(st.lists(cells, max_size=4), st.lists(cells, max_size=4), st.integers(0, 2))
    def holds(one: list[Any], other: list[Any], padding: int) -> None:
        a, b = block(one, kind, padding), block(other, kind)
        shown = [[bits(v) for v in each["x"]] for each in map(columns, (a, b))]
        assert (difference([a], [b], batched=False) == "") == (shown[0] == shown[1])
        assert difference([a], [block(one, kind)], batched=False) == ""

    holds()


def columns(given_block: Block) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = given_block.to_arrow().to_pydict()
    return found


@pytest.mark.law
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 6), st.integers(0, 6))
def test_where_blocks_of_rows_end_has_no_meaning(sizes: list[int], start: int, more: int) -> None:
    values = np.arange(sum(sizes))
    whole = block(values.tolist(), pa.int64())
    stops = np.cumsum(sizes)
    parts = [whole.slice(int(b - n), int(b)) for b, n in zip(stops, sizes, strict=True)]
    assert difference(parts, [whole], batched=False) == ""
    found = part(parts, start, start + more)
    assert difference(found, [whole.slice(start, start + more)], batched=False) == ""
    if len([n for n in sizes if n]) > 1:
        assert "rows instead of" in difference(parts, [whole], batched=True)


def test_ids_order_and_what_is_under_a_null() -> None:
    one = block([1.0, 2.0], pa.float64())
    other = Block(one.schema, one.columns, RowIds.run(7, 1, 2))
    assert "id differs" in difference([one], [other], batched=False)
    assert "id differs" in difference([one], [one.take(np.array([1, 0]))], batched=False)
    valid = np.array([True, False])
    nulls = [Block(one.schema, (Vec(np.array([1.0, x]), valid),), one.ids) for x in (2.0, 3.0)]
    assert difference([nulls[0]], [nulls[1]], batched=False) == ""
    assert difference([one], [nulls[0]], batched=False) == "row 1, column 'x'"


def test_tensors_of_no_rows_are_equal() -> None:
    none = Vec(np.zeros((0, 2), "f4"), None)
    assert first_odd(none, Vec(np.zeros((0, 2), "f4"), None)) is None
    some, other = np.zeros((3, 2), "f4"), np.zeros((3, 2), "f4")
    other[2, 1] = 1.0
    assert first_odd(Vec(some, None), Vec(other, None)) == 2
