"""Test Parquet texts that are stored once and decoded many times: their memory is predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml.errors import MemoryContractError
from dml.io.arrow.arrow import read_arrow
from dml.io.parquet import dictionary_sizes, parquet
from dml.io.parquet.chunk_metadata import ColumnChunk
from dml.io.parquet.dictionary_sizes import text_bytes
from dml.io.parquet.parquet import ParquetSource, hides, read_parquet, texts_of_unknown_size
from tests.sampling import amount

TEXTS = st.lists(st.none() | st.sampled_from(["", "a", "bc" * 40, "d" * 900]), max_size=60)
# More than one atom of 8 MiB, of a hundredth of that on disk.
LONG = ["x" * 10_000, "y" * 5000]


def numbered(values: Sequence[str | None]) -> pa.DictionaryArray:
    """The same texts as numbers of a dictionary."""
    return pa.array(values, pa.string()).dictionary_encode()


def read(source: ParquetSource, most_bytes: int | None = None) -> list[pa.Array]:
    """The texts of every atom."""
    found = []
    for number in range(source.unit_count):
        unit = source.unit(number)
        if most_bytes is not None:
            unit = dataclasses.replace(unit, most_bytes=most_bytes)
        found += [block.columns[0] for block in source.read(unit, ("s",))]
    return found


@pytest.mark.law
@given(values=TEXTS)
def test_texts_are_added_up_without_making_them(values: list[str | None]) -> None:
    with mock.patch.object(dictionary_sizes, "SMALL_BYTES", -1):
        assert text_bytes(numbered(values)) == sum(len(text or "") for text in values)
    assert text_bytes(numbered(values)) >= sum(len(text or "") for text in values)


@pytest.mark.law
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=amount(25, 40))
@given(values=TEXTS, rows=st.integers(1, 70), atom=st.integers(1, 30))
def test_dictionaries_that_nobody_counted_are_the_same_texts(
    tmp_path: Path, values: list[str | None], rows: int, atom: int
) -> None:
    path = tmp_path / "s.parquet"
    frame = pl.DataFrame({"k": range(len(values)), "s": pl.Series(values, dtype=pl.String)})
    frame.write_parquet(path, row_group_size=rows)
    with mock.patch.object(parquet, "SMALL_BYTES", -1):
        source = read_parquet(path, atom_rows=atom)
        found = [text for atom in read(source) for text in atom.to_pylist()]
        hidden = [texts_of_unknown_size(group, ("k", "s")) for group in source.parts]
    assert found == values
    assert all(set(each) <= {"s"} for each in hidden)


@pytest.mark.law
def test_what_the_writer_counted_decides_atoms(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({"s": LONG * 4000}), path)
    source = read_parquet(path)
    (group,) = source.parts
    assert group.chunks(("s",))[0].text == 4000 * 15_000
    assert group.atoms > 5
    assert not texts_of_unknown_size(group, ("s",))
    assert all(atom.nbytes < 12 << 20 for atom in read(source))
    assert sum(len(atom) for atom in read(source)) == 8000
    unit = source.unit(0)
    assert unit.nbytes > 60_000_000
    assert source.working_bytes(unit, ("s",)) < 60_000_000


@pytest.fixture
def uncounted(tmp_path: Path) -> Path:
    """A file of 60 MB of texts in one row group, and nobody says so."""
    path = tmp_path / "s.parquet"
    pl.DataFrame({"s": pl.Series(LONG * 4000)}).write_parquet(path, row_group_size=8000)
    return path


def test_texts_that_nobody_counted_are_an_error_before_they_are_made(uncounted: Path) -> None:
    source = read_parquet(uncounted)
    assert [*texts_of_unknown_size(source.parts[0], ("s",))] == ["s"]
    before = pa.total_allocated_bytes()
    with pytest.raises(MemoryContractError, match="texts of column 's' do not fit") as raised:
        read(source, most_bytes=20_000_000)
    assert "atom_rows=" in raised.value.try_
    assert "row group 0" in raised.value.at
    assert pa.total_allocated_bytes() - before < 5_000_000


@pytest.mark.law
def test_small_atoms_of_them_are_read(uncounted: Path) -> None:
    atoms = read(read_parquet(uncounted, atom_rows=500), most_bytes=20_000_000)
    assert [len(atom) for atom in atoms] == [500] * 16
    assert atoms[3].to_pylist() == LONG * 250


@pytest.mark.law
def test_encoded_texts_of_an_arrow_file_are_an_error_before_they_are_made(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    table = pa.table({"s": numbered(LONG * 4000)})
    with pa.ipc.new_file(path, table.schema) as out:
        out.write_table(table)
    source = read_arrow(path)
    unit = dataclasses.replace(source.unit(0), most_bytes=20_000_000)
    with pytest.raises(MemoryContractError, match="texts of column 's' do not fit"):
        next(iter(source.read(unit, ("s",))))
    source = read_arrow(path, atom_rows=500)
    unit = dataclasses.replace(source.unit(0), most_bytes=20_000_000)
    assert sum(block.n for block in source.read(unit, ("s",))) == 8000


@pytest.mark.parametrize(
    ("change", "is_hidden"),
    [
        ({}, True),
        ({"has_dictionary": False}, False),
        ({"text": 10}, False),
        ({"uncompressed": 100 << 20}, False),
        ({"values": 2}, False),
    ],
)
def test_what_may_be_larger_than_it_seems(change: dict[str, Any], is_hidden: bool) -> None:
    chunk = ColumnChunk("BYTE_ARRAY", 100_000, 1 << 20, 1000, has_dictionary=True)
    assert hides(chunk._replace(**change)) is is_hidden
