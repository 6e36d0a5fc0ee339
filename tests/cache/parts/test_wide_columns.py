"""Test parts with a wide column: batches are read back, and its values are contiguous."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.parts import wide_columns
from dml.cache.parts.parts import PartSource, PartStore
from dml.cache.store.disk import Disk
from tests.cache.parts.test_part_fill import cuts, tensors
from tests.cache.store.fills import FP, made, same

IMAGE = pa.fixed_shape_tensor(pa.uint8(), (16, 64))


@pytest.fixture
def narrow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide_columns, "WIDE_BYTES", 1)
        yield


def images(start: int, n: int, absent: tuple[int, ...] = ()) -> pa.Array:
    flat = pa.array((np.arange(n * 1024) + start).astype(np.uint8))
    there = np.ones(n, bool)
    there[list(absent)] = False
    bits = pa.py_buffer(np.packbits(there, bitorder="little")) if absent else None
    storage = pa.Array.from_buffers(IMAGE.storage_type, n, [bits], children=[flat])
    return pa.ExtensionArray.from_storage(IMAGE, storage)


def labelled(start: int, n: int, absent: tuple[int, ...] = ()) -> pa.RecordBatch:
    labels = pa.array([f"l{i}" for i in range(n)], pa.string())
    return pa.record_batch({"label": labels, "image": images(start, n, absent)})


@pytest.mark.law
@pytest.mark.usefixtures("narrow")
@given(batches=cuts(), beside=st.sampled_from([0, 1000, 4 << 20]))
def test_any_batches_come_back_as_they_were_added(
    batches: list[pa.RecordBatch], beside: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide_columns, "BESIDE_BYTES", beside)
        assert made(PartStore(Disk(root, "v1/any")), batches) is PartSource.MADE
    got = PartStore(Disk(root, "v1/any")).part(FP, 0)
    assert same(got, batches)
    assert got is not None
    for each in got.batches:
        each.validate(full=True)


def values_of(batch: pa.RecordBatch) -> np.ndarray:
    found: np.ndarray = batch["image"].to_numpy_ndarray()
    return found


def test_values_of_all_batches_are_one_piece(tmp_path: Path) -> None:
    batches = [labelled(start, n) for start, n in ((0, 3), (3, 1), (4, 0), (4, 9))]
    made(PartStore(Disk(tmp_path, "v1/any")), batches)
    got = PartStore(Disk(tmp_path, "v1/any")).part(FP, 0)
    assert same(got, batches)
    assert got is not None
    arrays = [values_of(each) for each in got.batches if each.num_rows]
    for one, after in pairwise(arrays):
        assert one.ctypes.data + one.nbytes == after.ctypes.data


def test_rows_without_a_value_come_back(tmp_path: Path) -> None:
    batches = [labelled(0, 20, (0, 9, 19)), labelled(20, 5), labelled(25, 9, (8,)).slice(3)]
    made(PartStore(Disk(tmp_path, "v1/any")), batches)
    assert same(PartStore(Disk(tmp_path, "v1/any")).part(FP, 0), batches)


def test_rows_that_are_written_to_while_others_come_are_kept_as_they_were(tmp_path: Path) -> None:
    """Whoever gets rows may write to them, and labels are laid down behind all images."""
    labels = np.arange(8)
    filling = PartStore(Disk(tmp_path, "v1/any")).fill(FP, 0)
    assert filling is not None
    batch = pa.record_batch({"label": pa.array(labels), "image": images(0, 8)})
    filling.add(batch)  # type: ignore[union-attr]
    wanted = pa.RecordBatch.from_pydict({**batch.to_pydict(), "image": images(0, 8)})
    labels[:] = -1
    assert filling.commit() is PartSource.MADE  # type: ignore[union-attr]
    assert same(PartStore(Disk(tmp_path, "v1/any")).part(FP, 0), [wanted])


def read(data: bytes) -> tuple[pa.Schema, wide_columns.Runs]:
    held = pa.py_buffer(data)
    return wide_columns.read(held, wide_columns.shape_of(held))


def laid(batches: list[pa.RecordBatch]) -> bytes:
    schema = batches[0].schema
    column = wide_columns.wide(schema)
    assert column is not None
    layer = wide_columns.Wide(schema, column)
    found = b"".join(bytes(piece) for batch in batches for piece in layer.batch(batch))
    return found + b"".join(map(bytes, layer.end()))


@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_nothing_that_is_written_there_is_looked_for_outside(at: int, value: int) -> None:
    """Who may write to a store may put wrong rows there, but none from memory beside it."""
    data = bytearray(laid([labelled(0, 3), labelled(3, 2)]))
    data[-1 - at % (len(data) - 5 * 1024)] = value
    try:
        _, runs = read(bytes(data))
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
    ):
        return
    for batch, _ in runs:
        if batch.schema.equals(labelled(0, 0).schema):
            assert values_of(batch).nbytes <= len(data)


def test_places_beyond_the_file_are_refused() -> None:
    data = laid([labelled(0, 3)])
    said = data.index(b'{"column"')
    for wrong in (b'"segments": [[-64, ', b'"segments": [[9999, '):
        other = data[:said] + data[said:].replace(b'"segments": [[0, ', wrong)
        grown = len(other) - len(data)
        schema, places, magic = wide_columns.TAIL.unpack(other[-wide_columns.TAIL.size :])
        other = other[: -wide_columns.TAIL.size] + wide_columns.TAIL.pack(
            schema, places + grown, magic
        )
        with pytest.raises(pa.ArrowInvalid, match="not in it"):
            read(other)


def test_places_that_are_too_deep_to_be_read_are_none() -> None:
    data, deep = laid([labelled(0, 3)]), b"[" * 100_000
    schema, places, magic = wide_columns.TAIL.unpack(data[-wide_columns.TAIL.size :])
    before = data[: -wide_columns.TAIL.size - places]
    with pytest.raises(ValueError, match="too deep"):
        read(before + deep + wide_columns.TAIL.pack(schema, len(deep), magic))


def test_a_column_of_small_values_lies_as_arrow_lays_it() -> None:
    assert wide_columns.wide(pa.schema([("a", pa.int64()), ("b", tensors(1, 0).type)])) is None
    assert wide_columns.wide(pa.schema([("a", pa.int64()), ("b", IMAGE)])) == 1
    assert struct.calcsize("<QQ8s") == wide_columns.TAIL.size
