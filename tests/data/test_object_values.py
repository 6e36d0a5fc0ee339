"""Test the estimated size of columns as Python objects, and that functions get few at a time."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.data import object_values
from dml.data.block import Block
from dml.data.object_values import PIECE_BYTES, in_pieces, many_objects, object_bytes
from dml.errors import MemoryContractError
from dml.kernels.rows.ids import RowIds
from dml.udfs.calling.batch_arrays import arrays_of

TEXT = st.text("ab", max_size=9)
NESTED = st.lists(st.none() | st.lists(st.none() | TEXT, max_size=9), min_size=1, max_size=20)
RECORDS = st.lists(
    st.fixed_dictionaries({"a": st.integers(10**6, 10**9), "b": st.lists(TEXT, max_size=3)}),
    min_size=1,
    max_size=20,
)
NUMBERS = st.none() | st.lists(st.floats(width=32), max_size=5)


def deep(value: Any) -> int:
    """Bytes of a value with all that is in it, as if nothing were shared."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(map(deep, value.values()))
    return size + (sum(map(deep, value)) if isinstance(value, list) else 0)


def block_of(values: list[Any], kind: pa.DataType) -> Block:
    batch = pa.RecordBatch.from_pydict({"v": pa.array(values, kind)})
    return Block.from_arrow(batch, RowIds.run(1, 0, len(values)))


@pytest.mark.law
@given(values=NESTED)
def test_lists_of_texts_are_counted_as_objects(values: list[Any]) -> None:
    told = object_bytes(pa.array(values, pa.list_(pa.string())))
    size = sum(map(deep, values))
    assert 0.7 * size <= told <= 2.5 * size + 100 * len(values)


@pytest.mark.law
@given(values=RECORDS)
def test_structs_are_counted_as_objects(values: list[Any]) -> None:
    kind = pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())})
    told = object_bytes(pa.array(values, kind))
    size = sum(map(deep, values))
    assert 0.7 * size <= told <= 2.5 * size + 100 * len(values)


def test_what_is_many_objects() -> None:
    assert many_objects(pa.list_(pa.string()))
    assert many_objects(pa.list_(pa.list_(pa.int64())))
    assert many_objects(pa.struct({"a": pa.int64()}))
    assert not many_objects(pa.list_(pa.float32()))
    assert not many_objects(pa.string())


@pytest.mark.law
@given(values=NESTED, piece=st.integers(1, 3000))
def test_pieces_are_the_rows_in_order(values: list[Any], piece: int) -> None:
    block = block_of(values, pa.list_(pa.string()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_values, "PIECE_BYTES", piece)
        parts = list(in_pieces(block))
    columns = [part.to_arrow().column(0) for part in parts]
    assert [each for column in columns for each in column.to_pylist()] == values
    assert len(parts) == 1 or all(part.n == parts[0].n for part in parts[:-1])


@pytest.mark.law
def test_a_function_is_given_few_objects_at_a_time() -> None:
    words = ["ab"] * 1000
    block = block_of([words] * 2000, pa.list_(pa.string()))
    parts = list(in_pieces(block))
    assert sum(part.n for part in parts) == 2000
    assert max(object_bytes(part.columns[0]) for part in parts) <= 1.1 * PIECE_BYTES


@given(values=st.lists(NUMBERS, max_size=8), start=st.integers(0, 8))
def test_lists_of_numbers_are_shown_without_python_numbers(values: list[Any], start: int) -> None:
    block = block_of(values, pa.list_(pa.float32())).slice(min(start, len(values)), len(values))
    shown = arrays_of(block)["v"]
    assert shown.dtype == object
    for found, value in zip(shown, values[start:], strict=True):
        if value is None:
            assert found is None
        else:
            assert found.dtype == np.float32
            assert found.flags.writeable
            assert found.flags.owndata
            np.testing.assert_array_equal(found, np.array(value, np.float32))


@pytest.mark.law
@given(values=st.lists(st.none() | st.lists(st.booleans() | st.none(), max_size=4), max_size=8))
def test_lists_with_nulls_are_shown_as_lists(values: list[Any]) -> None:
    shown = arrays_of(block_of(values, pa.list_(pa.bool_())))["v"]
    assert [list(each) if isinstance(each, np.ndarray) else each for each in shown] == values
    for found, value in zip(shown, values, strict=True):
        wanted = np.ndarray if value is not None and None not in value else type(value)
        assert type(found) is wanted


@pytest.mark.law
def test_a_group_of_too_many_objects_is_a_named_error() -> None:
    rows = [{"v": ["ab"] * 1000} for _ in range(2000)]
    ds = dml.from_items(rows, atom_rows=2000).map_batches(lambda batch: {"n": batch["v"]})
    with pytest.raises(MemoryContractError, match="to show as arrays") as raised:
        list(ds.with_options(memory_limit="64MiB", num_workers=1, executor="sync"))
    assert "at most" in raised.value.try_
    few = dml.from_items(rows).map_batches(
        lambda batch: {"n": np.array([len(each) for each in batch["v"]])}, batch_size=50
    )
    found = list(few.with_options(memory_limit="64MiB", num_workers=1, executor="sync"))
    assert [row["n"] for row in found] == [1000] * 2000


def test_rows_wait_as_the_objects_that_they_are() -> None:
    rows = [
        {"l": [1 << 20] * 90, "s": "text", "t": ["a", "b"], "n": 1 << 20, "a": np.zeros((3, 4))}
        for _ in range(50)
    ]
    with iter(dml.from_items(rows).with_options(telemetry_dir="off")) as it:
        next(it)
        chunk = it._now[0]
    assert chunk is not None
    held = sum(map(deep, chunk.elements))
    assert held <= chunk.held_bytes <= 2 * held
    assert chunk.nbytes < held / 3, "they are delivered as so many bytes of values"
