"""Test the layout of blobs: Arrow's reader accepts them, and buffers are aligned to 64 bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.parts import aligned_format
from tests.cache.store.fills import cut

TYPES = [
    *(pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()),
    *(pa.large_string(), pa.string_view(), pa.timestamp("us"), pa.list_(pa.int32()), pa.null()),
    *(pa.list_(pa.float32(), 3), pa.struct([("a", pa.int16()), ("b", pa.string())])),
    *(
        pa.dictionary(pa.int32(), pa.string()),
        pa.decimal128(25, 2),
        pa.map_(pa.string(), pa.int8()),
    ),
]


def values(kind: pa.DataType, n: int, salt: int) -> pa.Array:
    """Some rows of a type, some of them null."""
    whole = [None if (i + salt) % 5 == 0 else (i * 7 + salt) % 100 for i in range(n)]
    if pa.types.is_null(kind):
        return pa.nulls(n)
    if pa.types.is_dictionary(kind):
        named = [None if v is None else f"w{v % 9}" for v in whole]
        return pa.array(named, pa.string()).dictionary_encode()
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        size = 3 if pa.types.is_fixed_size_list(kind) else 0
        return pa.array([v if v is None else [v] * (size or v % 4) for v in whole], kind)
    if pa.types.is_map(kind):
        return pa.array([v if v is None else [(f"k{v}", v)] for v in whole], kind)
    if pa.types.is_struct(kind):
        return pa.array([v if v is None else {"a": v, "b": "x" * v} for v in whole], kind)
    if pa.types.is_boolean(kind):
        return pa.array([v if v is None else v % 2 == 0 for v in whole])
    texts = pa.array([v if v is None else str(v) * (v % 7) for v in whole])
    words = (pa.string(), pa.large_string(), pa.binary(), pa.string_view())
    return texts.cast(kind) if kind in words else pa.array(whole, pa.int64()).cast(kind)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    n = draw(st.integers(0, 700))
    kinds = draw(st.lists(st.sampled_from(TYPES), max_size=5))
    columns = {f"c{i}": values(kind, n, draw(st.integers(0, 9))) for i, kind in enumerate(kinds)}
    table = pa.table(columns, metadata=draw(st.sampled_from([None, {b"k": b"v"}])))
    start = draw(st.integers(0, n))
    return table.slice(start, draw(st.integers(0, n - start)))


def laid(table: pa.Table) -> pa.Buffer:
    """The file of a table."""
    laying, found = aligned_format.Laying(table.schema), list[bytes]()
    for batch in cut(table):
        found += map(bytes, laying.batch(batch))
    return pa.py_buffer(b"".join([*found, *laying.end()]))


def buffers(array: pa.Array) -> Iterator[pa.Buffer]:
    yield from (each for each in array.buffers() if each is not None and each.size)
    if pa.types.is_dictionary(array.type):
        yield from buffers(array.dictionary)


@pytest.mark.law
@given(tables())
def test_arrow_reads_what_was_laid_out(table: pa.Table) -> None:
    data = laid(table)
    back = pa.ipc.open_file(data).read_all()
    back.validate(full=True)
    assert back.schema.equals(table.schema, check_metadata=True)
    assert back.equals(table)
    assert pa.ipc.open_stream(data.slice(8)).read_all().equals(table)


@pytest.mark.law
@given(tables())
def test_every_buffer_begins_at_a_multiple_of_64(table: pa.Table) -> None:
    data = laid(table)
    back = pa.ipc.open_file(data).read_all()
    chunks = [chunk for column in back.columns for chunk in column.chunks]
    inside = range(data.address, data.address + data.size)
    found = [each.address for chunk in chunks for each in buffers(chunk) if each.address in inside]
    assert [at for at in found if (at - data.address) % 64] == []
    if table.num_rows and any(not pa.types.is_null(kind) for kind in table.schema.types):
        assert found, "nothing was read in place"


def test_equal_tables_are_equal_files() -> None:
    table = pa.table({"a": range(1000), "b": ["x"] * 1000})
    files = {
        laid(each).to_pybytes() for each in (table, table.slice(0), table.take(list(range(1000))))
    }
    assert len(files) == 1


def test_a_long_schema_is_kept() -> None:
    table = pa.table({"a": range(100)}, metadata={"long": "x" * 100_000})
    back = pa.ipc.open_file(laid(table)).read_all()
    assert back.equals(table)
    assert back.schema.equals(table.schema, check_metadata=True)


def test_another_dictionary_is_refused() -> None:
    laying = aligned_format.Laying(pa.schema([("w", pa.dictionary(pa.int32(), pa.string()))]))
    for words, fits in ((["a", "b"], True), (["a", "b"], True), (["b", "c"], False)):
        batch = pa.record_batch({"w": pa.array(words).dictionary_encode()})
        if fits:
            assert list(laying.batch(batch))
        else:
            with pytest.raises(pa.ArrowInvalid, match=r"[Dd]ictionary"):
                list(laying.batch(batch))


def test_chunks_with_dictionaries_of_their_own_are_kept() -> None:
    chunks = [pa.array(each).dictionary_encode() for each in (["a", "b"], ["b", "c", None])]
    table = pa.table({"w": pa.chunked_array(chunks)})
    back = pa.ipc.open_file(laid(table)).read_all()
    assert back["w"].to_pylist() == table["w"].to_pylist()
    assert back.schema == table.schema
