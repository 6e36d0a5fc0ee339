"""Test that footers are read as by pyarrow, and that damaged ones raise an error."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml.expr.columns.column import col
from dml.io.parquet import chunk_metadata
from dml.io.parquet.chunk_metadata import Bounds, Chunks, DamageError, read_chunks
from dml.io.parquet.footer import open_files
from dml.io.parquet.parquet import ParquetSource, read_parquet
from dml.io.parquet.statistics import facts_of, is_signed

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=6),
    pa.binary(): st.binary(max_size=6),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.list_(pa.int32()): st.lists(st.integers(0, 9), max_size=3),
}
FAMILIES = {int, float, bool, str, bytes, dt.date}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A table of one to four columns with nulls."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 12))
    return pa.table(
        {
            f"c{i}": pa.array(
                draw(st.lists(st.none() | VALUES[kind], min_size=rows, max_size=rows)), kind
            )
            for i, kind in enumerate(kinds)
        }
    )


@pytest.mark.law
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    table=tables(),
    rows=st.integers(1, 12),
    dictionary=st.booleans(),
    version=st.sampled_from(["1.0", "2.6"]),
    pages=st.sampled_from(["1.0", "2.0"]),
    indexed=st.booleans(),
)
def test_chunks_are_what_pyarrow_says(
    tmp_path: Path, table: pa.Table, rows: int, version: str, pages: str, **options: bool
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        table,
        path,
        row_group_size=rows,
        use_dictionary=options["dictionary"],
        write_page_index=options["indexed"],
        version=version,
        data_page_version=pages,
    )
    file = open_files(str(path)).files[0]
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert list(file.chunks.rows) == [group.num_rows for group in groups]
    for number, group in enumerate(groups):
        for leaf in range(group.num_columns):
            there, here = group.column(leaf), file.chunks.chunk(number, leaf)
            assert here.kind == there.physical_type
            assert here.values == there.num_values
            assert here.uncompressed == there.total_uncompressed_size
            assert here.compressed == there.total_compressed_size
            assert here.has_dictionary == there.has_dictionary_page
    for field in table.schema:
        if not pa.types.is_nested(field.type):
            check_bounds(file.chunks, groups, file.leaves[field.name][0], field.type)


def check_bounds(
    chunks: Chunks, groups: list[pq.RowGroupMetaData], leaf: int, kind: pa.DataType
) -> None:
    """The statistics of one flat column, decoded, are those of pyarrow."""
    for number, group in enumerate(groups):
        there = group.column(leaf).statistics
        found = chunks.bounds(number, leaf, signed=is_signed(kind))
        here = facts_of(found, kind, group.num_rows)
        assert here.nulls == (there.null_count if there and there.has_null_count else None)
        if here.family in FAMILIES and there and there.has_min_max:
            assert (here.low, here.high) == (there.min, there.max)
        else:
            assert here.low is None
            assert here.high is None


def struct(*fields: tuple[int, int, bytes]) -> bytes:
    """A struct of fields given by number, kind and bytes."""
    encoded, last = b"", 0
    for number, kind, value in fields:
        encoded += bytes([(number - last) << 4 | kind]) + value
        last = number
    return encoded + b"\0"


def array(*items: bytes, kind: int = chunk_metadata.STRUCT) -> bytes:
    return bytes([len(items) << 4 | kind]) + b"".join(items)


def number(value: int) -> bytes:
    return bytes([value << 1])


def text(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def footer(
    statistics: bytes, orders: bytes = array(struct((1, chunk_metadata.STRUCT, b"\0")))
) -> bytes:
    """FileMetaData of one row group of three rows in one INT32 column."""
    metadata = struct(
        (1, chunk_metadata.I32, number(1)),
        (5, chunk_metadata.I64, number(3)),
        (6, chunk_metadata.I64, number(20)),
        (7, chunk_metadata.I64, number(10)),
        (12, chunk_metadata.STRUCT, statistics),
    )
    group = struct(
        (1, chunk_metadata.LIST, array(struct((3, chunk_metadata.STRUCT, metadata)))),
        (3, chunk_metadata.I64, number(3)),
    )
    return struct((4, chunk_metadata.LIST, array(group)), (7, chunk_metadata.LIST, orders))


LOW, HIGH = b"\1\0\0\0", b"\2\0\0\0"
OLD = struct((1, chunk_metadata.BINARY, text(HIGH)), (2, chunk_metadata.BINARY, text(LOW)))
NEW = struct((5, chunk_metadata.BINARY, text(HIGH)), (6, chunk_metadata.BINARY, text(LOW)))


@pytest.mark.parametrize(
    ("data", "signed", "found"),
    [
        (footer(NEW), False, (LOW, HIGH)),
        (footer(NEW, array()), False, (None, None)),  # no order declared: theirs is unknown
        (footer(NEW, array(struct((2, chunk_metadata.STRUCT, b"\0")))), True, (None, None)),
        (footer(OLD), True, (LOW, HIGH)),
        (footer(OLD), False, (None, None)),
        (footer(struct((1, chunk_metadata.BINARY, text(HIGH)))), True, (None, None)),
        (footer(struct()), True, (None, None)),
    ],
)
def test_which_bounds_are_trusted(data: bytes, *, signed: bool, found: tuple[Any, Any]) -> None:
    chunks = read_chunks(data, ["INT32"])
    assert list(chunks.rows) == [3]
    assert chunks.bounds(0, 0, signed=signed)[1:] == found


@pytest.mark.parametrize(
    ("data", "kinds", "why"),
    [
        (footer(NEW), ["INT64"], "column 0 of row group 0 is not described"),
        (footer(NEW), ["INT32", "INT32"], "row group 0 has 1 columns of 2"),
        (footer(NEW).replace(bytes([0x46, 6]), bytes([0x46, 5])), ["INT32"], "negative size"),
        (footer(NEW)[:-12], ["INT32"], "does not end where its fields do"),
        (b"\x1c" * 5000, ["INT32"], "does not end where its fields do"),
        (struct((4, chunk_metadata.LIST, array(struct()))), ["INT32"], "has -1 columns of 1"),
    ],
)
def test_what_is_refused(data: bytes, kinds: list[str], why: str) -> None:
    with pytest.raises(DamageError, match=why):
        read_chunks(data, kinds)


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_the_walk_ends(data: bytes) -> None:
    with suppress(DamageError):
        read_chunks(data, ["INT32"])


@pytest.mark.parametrize("bound", [b"", b"\1", b"\1" * 5, b"\xff" * 9])
@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.bool_(), pa.date32()])
def test_bounds_of_a_wrong_length_prove_nothing(bound: bytes, kind: pa.DataType) -> None:
    if kind == pa.bool_() and len(bound) == 1:
        return
    facts = facts_of(Bounds(0, bound, bound), kind, 3)
    assert (facts.low, facts.high, facts.nulls) == (None, None, 0)


def test_a_filter_on_an_unknown_column_reads_everything(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    source = read_parquet(tmp_path)
    assert isinstance(source, ParquetSource)
    assert source.may_match(source.unit(0), ((col("b") > 7).value,))
