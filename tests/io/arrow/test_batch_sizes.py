"""Test that sizes in the headers of Arrow files are right, and that damaged headers are noticed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import MemoryContractError, SourceError
from dml.io.arrow import arrow
from dml.io.arrow.arrow import FAULTS, read_arrow, sizes_in
from dml.io.stores import byte_ranges
from dml.testing.source_laws import check_same_data, everything
from tests.io.counted_store import CountedStore, counted, noted, uploaded
from tests.io.store_formats import URL

__all__ = ["counted"]

KINDS = (pa.int64(), pa.string(), pa.list_(pa.float32()), pa.dictionary(pa.int8(), pa.string()))
ROW = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=20),
    st.none() | st.lists(st.floats(width=32), max_size=9),
    st.none() | st.sampled_from(["a", "b", "c" * 50]),
)


def written(
    rows: Sequence[tuple[object, ...]], codec: str | None, each: int, *, old: bool
) -> bytes:
    """An Arrow file of some rows."""
    lists = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * len(KINDS)
    arrays = [pa.array(column, kind) for column, kind in zip(lists, KINDS, strict=True)]
    table, sink = pa.table(arrays, names=list("istd")), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec, use_legacy_format=old)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=each)
    return bytes(sink.getvalue())


def footer(data: bytes) -> bytes:
    length = int.from_bytes(data[-10:-6], "little")
    return data[-10 - length : -10]


@pytest.mark.law
@given(
    st.lists(ROW, max_size=60),
    st.sampled_from([None, "lz4", "zstd"]),
    st.integers(1, 70),
    st.booleans(),
)
def test_headers_say_what_is_there(
    rows: list[tuple[object, ...]], codec: str | None, each: int, old: bool
) -> None:
    data = written(rows, codec, each, old=old)
    sizes = sizes_in(footer(data), len(data), lambda r: [data[a:b] for a, b in r])
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    assert sizes.rows == tuple(batch.num_rows for batch in batches)
    for nbytes, batch in zip(sizes.nbytes, batches, strict=True):
        # every buffer may be padded; a bitmap of no nulls is not stored
        assert batch.nbytes - 64 <= nbytes <= batch.nbytes + 64 * 16


@pytest.mark.law
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), min_size=1, max_size=3))
def test_damage_is_a_fault_or_numbers(flips: list[tuple[int, int]]) -> None:
    data = bytearray(
        written([(i, "a" * i, [1.0] * i, "b") for i in range(9)], "zstd", 4, old=False)
    )
    for at, bit in flips:
        data[at % len(data)] ^= 1 << bit
    bad = bytes(data)
    try:
        sizes = sizes_in(footer(bad), len(bad), lambda r: [bad[a:b] for a, b in r])
    except FAULTS:
        return
    assert len(sizes.rows) == len(sizes.nbytes)
    assert all(number >= 0 for number in (*sizes.rows, *sizes.nbytes))


def packed(path: Path, batch: pa.RecordBatch) -> Path:
    with pa.ipc.new_file(
        path, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_batch(batch)
    return path


def test_a_batch_too_large_for_the_number_is_not_unpacked(tmp_path: Path) -> None:
    zeros = np.zeros(1 << 22, np.int64)
    path = packed(tmp_path / "x.arrow", pa.record_batch({"x": zeros}))
    assert path.stat().st_size < 1 << 16
    ds = dml.read_arrow(path).with_options(telemetry_dir="off", executor="threads")
    with pytest.raises(MemoryContractError, match="does not fit") as caught:
        list(ds.with_options(memory_limit="64MiB").batch(1000))
    assert "x.arrow, record batch 0" in caught.value.at


def test_dictionaries_count_as_well(tmp_path: Path) -> None:
    codes = pa.array([0] * 1000, pa.int8())
    batch = pa.record_batch({"s": pa.DictionaryArray.from_arrays(codes, ["word" * (1 << 20)])})
    source = read_arrow(packed(tmp_path / "x.arrow", batch))
    assert source.unit(0).nbytes > 4 << 20


def test_a_buffer_that_lies_about_its_size_is_an_error(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.arrow", pa.record_batch({"x": np.zeros(1 << 16, np.int64)}))
    said = (8 << 16).to_bytes(8, "little")
    path.write_bytes(path.read_bytes().replace(said, (1 << 50).to_bytes(8, "little")))
    source = read_arrow(path)
    assert source.unit(0).nbytes == 1 << 50
    with pytest.raises(SourceError, match=r"record batch 0 of .* is damaged"):
        everything(source)


@pytest.mark.law
@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize("gap", [0, 64, 1 << 18])
def test_in_stores_headers_are_fetched_and_little_else(
    tmp_path: Path,
    counted: type[CountedStore],
    monkeypatch: pytest.MonkeyPatch,
    codec: str | None,
    gap: int,
) -> None:
    monkeypatch.setattr(byte_ranges, "GAP", gap)
    monkeypatch.setattr(arrow, "LONGEST", 3000)
    rows = [(i * i << 30, f"word {i % 77}" * 9, [i / 3] * 5, "a") for i in range(3000)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.arrow").write_bytes(written(rows, codec, 700, old=False))
    here, there = (
        read_arrow(place) for place in (tmp_path / "data", uploaded(tmp_path / "data", URL))
    )
    with noted(counted) as requests:
        assert there.files.counted == here.files.counted
    fetched = sum(stop - start for _, start, stop in requests)
    assert fetched < there.files.files[0].size * (0.1 if gap < 100 else 2)
    check_same_data(here, there)
