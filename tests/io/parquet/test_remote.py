"""Test Parquet in object stores: the rows as on disk, in few requests, also after failures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.errors import SourceError
from dml.io.parquet import remote
from dml.io.parquet.parquet import read_parquet
from dml.io.stores.byte_ranges import GAP, LONGEST, coalesced
from dml.testing.source_laws import check_same_data, check_source, everything, named
from tests.io.counted_store import CountedStore, counted, noted, pauses, uploaded

__all__ = ["counted", "pauses"]

ROWS, COLUMNS = 40_000, 40
places = st.tuples(st.integers(0, 4 * LONGEST), st.integers(0, 2 * LONGEST))


def wide() -> pa.Table:
    random = np.random.default_rng(5)
    return pa.table({f"c{i}": random.integers(0, 1 << 40, ROWS) for i in range(COLUMNS)})


def url_of(table: pa.Table, tmp_path: Path, **options: object) -> tuple[Path, str]:
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, use_dictionary=False, compression="none", **options)
    return path, uploaded(path.parent, "counted://bucket/data")


@pytest.mark.law
@given(st.lists(places, max_size=12))
def test_coalesced_ranges_cover_what_is_asked_and_little_more(pairs: list[tuple[int, int]]) -> None:
    asked = [(start, start + size) for start, size in pairs]
    got = coalesced(asked)
    assert got == sorted(got)
    assert all(0 < stop - start <= LONGEST for start, stop in got)
    assert all(a[1] <= b[0] for a, b in pairwise(got)), "no byte comes twice"
    edges = sorted({edge for pair in (*asked, *got) for edge in pair})
    unasked = 0
    for start, stop in pairwise(edges):
        wanted = any(a <= start and stop <= b for a, b in asked)
        fetched = any(a <= start and stop <= b for a, b in got)
        assert fetched or not wanted
        unasked = unasked + stop - start if fetched and not wanted else 0
        assert unasked <= GAP, "no wide gap is closed"


@pytest.mark.law
def test_the_same_data_as_on_disk(tmp_path: Path, counted: type[CountedStore]) -> None:
    table = wide().select(["c0", "c1", "c2"]).slice(0, 900)
    path, url = url_of(table, tmp_path, row_group_size=250)
    for there in (url, f"{url}/*.parquet", f"{url}/a.parquet", [f"{url}/a.parquet"]):
        source = read_parquet(there, atom_rows=70)
        check_same_data(read_parquet(path.parent, atom_rows=70), source)
    check_source(read_parquet(url, atom_rows=70), table)


@pytest.mark.law
def test_a_footer_is_one_request_and_a_long_one_two(
    tmp_path: Path, counted: type[CountedStore]
) -> None:
    _, url = url_of(wide(), tmp_path)
    with noted(counted) as requests:
        read_parquet(url)
    assert len(requests) == 1
    assert requests[0][2] - requests[0][1] == 64 << 10
    _, url = url_of(wide(), tmp_path, row_group_size=ROWS // 50)
    with noted(counted) as requests:
        source = read_parquet(url)
    assert len(requests) == 2
    assert source.row_count == ROWS


def test_three_of_forty_columns_are_two_requests(
    tmp_path: Path, counted: type[CountedStore]
) -> None:
    path, url = url_of(wide(), tmp_path)
    source = read_parquet(url)
    wanted = ("c3", "c4", "c30")
    with noted(counted) as requests:
        got = everything(source, wanted)
    assert len(requests) == 2
    stored = source.stored_bytes(source.unit(0), wanted)
    fetched = sum(stop - start for _, start, stop in requests)
    assert stored <= fetched <= stored + 4096
    assert stored < 0.1 * path.stat().st_size
    assert got.to_arrow().column(1).equals(wide()["c4"].combine_chunks())


@pytest.mark.law
def test_a_large_row_group_is_fetched_in_rounds_that_fit(
    tmp_path: Path, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = url_of(wide(), tmp_path)
    most = 4 << 20
    monkeypatch.setattr(remote, "MOST_HELD", most)
    source, here = read_parquet(url), read_parquet(path)
    unit, columns = source.unit(0), source.schema.names
    with noted(counted) as requests:
        assert named(everything(source)) == named(everything(here))
    sizes = [stop - start for _, start, stop in requests]
    assert sum(sizes) == source.stored_bytes(unit, columns), "no byte comes twice"
    assert len(requests) <= COLUMNS * (sum(sizes) // (most // 2) + 1)
    assert max(sizes) <= most // 2 // COLUMNS + remote.LEAST_SHARE
    held = source.working_bytes(unit, columns) - here.working_bytes(unit, columns)
    assert held <= most + 2 * COLUMNS * remote.LEAST_SHARE
    check_same_data(source, here)


def test_rounds_hold_what_was_promised(
    tmp_path: Path, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for chunks of different sizes, read at one pace: the larger ones get larger shares."""
    _, url = url_of(wide(), tmp_path)
    monkeypatch.setattr(remote, "MOST_HELD", 1 << 20)
    there = read_parquet(url).files.files[0].remote
    assert there is not None
    chunks = [(0, 3_000_000), (3_000_000, 3_300_000), (3_300_000, 3_310_000)]
    reader = remote.ChunkRounds(there, chunks)
    whole = fsspec.filesystem("counted").cat_file("/bucket/data/a.parquet")
    for step in range(100):
        for start, stop in chunks:
            size = (stop - start) // 100
            reader.seek(start + step * size)
            assert bytes(reader.read(size)) == whole[reader.tell() - size : reader.tell()]
            held = sum(len(data) for _, data in reader._parts)
            assert held <= (1 << 20) + 2 * 3 * remote.LEAST_SHARE


@pytest.mark.law
def test_memory_is_promised_with_what_is_fetched(
    tmp_path: Path, counted: type[CountedStore]
) -> None:
    path, url = url_of(wide(), tmp_path)
    here, there = read_parquet(path), read_parquet(url)
    stored = there.stored_bytes(there.unit(0), ("c3",))
    assert (
        there.working_bytes(there.unit(0), ("c3",))
        == here.working_bytes(here.unit(0), ("c3",)) + stored
    )
    assert there.stored_bytes(there.unit(0), ("c3",)) == here.stored_bytes(here.unit(0), ("c3",))


@pytest.mark.law
@pytest.mark.parametrize("size", [0, 3, 8, 11, 5000, -3])
def test_damage_is_said_as_on_disk(tmp_path: Path, counted: type[CountedStore], size: int) -> None:
    path, _ = url_of(wide(), tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    url = uploaded(path.parent, "counted://bucket/data")
    with pytest.raises(SourceError) as here:
        read_parquet(path)
    with pytest.raises(SourceError) as there:
        read_parquet(f"{url}/a.parquet")
    assert there.value.what == here.value.what.replace(str(path), f"{SHOWN}/a.parquet")


SHOWN = "counted:///bucket/data"


@pytest.mark.law
def test_a_damaged_column_is_named(tmp_path: Path, counted: type[CountedStore]) -> None:
    path, url = url_of(wide(), tmp_path, write_page_checksum=True)
    start, _ = read_parquet(path).files.files[0].chunks.place(0, 7)
    data = bytearray(path.read_bytes())
    data[start + 5000] ^= 255
    path.write_bytes(bytes(data))
    uploaded(path.parent, url)
    with pytest.raises(SourceError, match="column 'c7' of row group 0"):
        everything(read_parquet(url))


@pytest.mark.law
def test_another_file_under_the_same_name_is_noticed(
    tmp_path: Path, counted: type[CountedStore]
) -> None:
    _, url = url_of(wide(), tmp_path)
    source = read_parquet(url)
    assert everything(source, ("c1",)).n == ROWS
    url_of(wide().set_column(1, "c1", wide()["c2"]), tmp_path)  # as many bytes
    with pytest.raises(SourceError, match="has changed since it was opened"):
        everything(source, ("c1",))
    with pytest.raises(SourceError, match="has changed since it was opened"):
        everything(source, ())
