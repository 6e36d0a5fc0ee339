"""Test that digests of Arrow content do not depend on its layout in memory."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dml.base.fingerprint import digest

NANOSECONDS = pa.timestamp("ns")
PAIR = pa.struct({"a": pa.int8(), "b": pa.string()})
ARRAYS: dict[str, tuple[list[Any], pa.DataType]] = {
    "int8": ([1, None, -3, 4], pa.int8()),
    "float64": ([1.5, None, float("nan"), -0.0], pa.float64()),
    "bool": ([True, None, False, True], pa.bool_()),
    "string": (["a", None, "", "déjà"], pa.string()),
    "large binary": ([b"a", None, b"", b"bc"], pa.large_binary()),
    "string view": (["a", None, "", "a much longer text than fits"], pa.string_view()),
    "timestamp": ([dt.datetime(2020, 1, 2), None, None, dt.datetime(1960, 1, 1)], NANOSECONDS),
    "date": ([dt.date(2020, 1, 2), None, None, dt.date(1960, 1, 1)], pa.date32()),
    "decimal": ([decimal.Decimal("1.50"), None, decimal.Decimal(0), None], pa.decimal128(9, 2)),
    "fixed binary": ([b"ab", None, b"cd", b"\0\0"], pa.binary(2)),
    "list": ([[1, None], None, [], [3]], pa.list_(pa.int32())),
    "fixed list": ([[1, 2], None, [3, None], [5, 6]], pa.list_(pa.int32(), 2)),
    "list of text": ([["a", "b"], None, [], [None]], pa.large_list(pa.string())),
    "struct": ([{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": ""}], PAIR),
    "map": ([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int8())),
    "dictionary": (["a", None, "b", "a"], pa.dictionary(pa.int8(), pa.string())),
    "null": ([None, None, None, None], pa.null()),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_slices_and_chunks_do_not_show(name: str) -> None:
    values, kind = ARRAYS[name]
    plain = pa.array(values, kind)
    middle = pa.array(values[2:3] + values + values[:1], kind).slice(1, len(values))
    chunks = pa.chunked_array([plain.slice(0, 1), plain.slice(1, 0), plain.slice(1)], kind)
    assert digest(plain) == digest(middle) == digest(chunks)


@pytest.mark.parametrize("name", [name for name in ARRAYS if name != "null"])
def test_every_value_and_null_shows(name: str) -> None:
    values, kind = ARRAYS[name]
    others = [
        values[:-1],
        [*values[:-1], None],
        [*values, None],
        [values[1], values[0], *values[2:]],
    ]
    if values[-1] is None:
        others[1] = [*values[:-1], values[0]]
    names = {digest(pa.array(each, kind)) for each in (values, *others)}
    assert len(names) == 5


def test_types_show() -> None:
    kinds = {digest(pa.array([], kind)) for _, kind in ARRAYS.values()}
    assert len(kinds) == len(ARRAYS)
    assert digest(pa.array([1], pa.int8())) != digest(pa.array([1], pa.int16()))
    assert (
        digest(pa.timestamp("us"))
        != digest(pa.timestamp("us", "UTC"))
        != digest(pa.timestamp("ns"))
    )


def test_what_lies_under_a_null_does_not_show() -> None:
    def built(hidden: int) -> pa.Array:
        data = np.array([1, hidden, 3], "i8")
        mask = pa.array([True, False, True]).buffers()[1]
        return pa.Array.from_buffers(pa.int64(), 3, [mask, pa.py_buffer(data)])

    assert digest(built(5)) == digest(built(7)) == digest(pa.array([1, None, 3]))


def test_a_validity_without_nulls_does_not_show() -> None:
    mask = pa.py_buffer(b"\xff")
    data = pa.py_buffer(np.array([1, 2, 3], "i8"))
    assert digest(pa.Array.from_buffers(pa.int64(), 3, [mask, data])) == digest(pa.array([1, 2, 3]))


def test_texts_that_are_all_empty_need_no_buffer() -> None:
    bare = pa.array([None, None], pa.string()).fill_null("")
    assert digest(bare) == digest(pa.array(["", ""])) == digest(pa.array(["x", "", ""]).slice(1))


def test_metadata_is_not_content_but_names_and_nullability_are() -> None:
    plain = pa.schema([pa.field("a", pa.int8())])
    assert digest(plain) == digest(plain.with_metadata({"k": "v"}))
    assert digest(plain) != digest(pa.schema([pa.field("b", pa.int8())]))
    assert digest(plain) != digest(pa.schema([pa.field("a", pa.int8(), nullable=False)]))


def test_tables_and_batches_of_equal_content_are_equal() -> None:
    table = pa.table({"a": [1, 2, 3], "s": ["x", None, "z"]})
    batches = pa.Table.from_batches([*table.slice(0, 1).to_batches(), *table.slice(1).to_batches()])
    assert digest(table) == digest(batches) == digest(table.combine_chunks().to_batches()[0])
    assert digest(table) != digest(table.slice(0, 2))
    assert digest(table) != digest(table.rename_columns(["a", "t"]))
    assert digest(table.slice(0, 0)) != digest(pa.table({"a": pa.array([], pa.int64())}))


def test_tensors_are_their_storage_and_shape() -> None:
    def tensor(shape: list[int]) -> pa.Array:
        kind = pa.fixed_shape_tensor(pa.float32(), shape)
        storage = pa.array([[1.0, 2.0, 3.0, 4.0]], pa.list_(pa.float32(), 4))
        return pa.ExtensionArray.from_storage(kind, storage)

    assert digest(tensor([2, 2])) == digest(tensor([2, 2]))
    assert digest(tensor([2, 2])) != digest(tensor([4]))
