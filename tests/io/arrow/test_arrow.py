"""Test that Arrow IPC files are read batch by batch, and that damage is an error."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.errors import SchemaError, SourceError
from dml.io.arrow.arrow import read_arrow
from dml.testing.oracle_sources import table_of
from dml.testing.source_laws import (
    check_other_process,
    check_same_data,
    check_source,
    everything,
    units,
)
from tests.io.line_sets import refusal

TABLE = pa.table(
    {
        "coded": pa.array(list("abcaabca")).dictionary_encode(),
        "x": pa.array([1, None, 3, 4, 5, 6, 7, 8], pa.int16()),
        "l": pa.array([[1], [], None, [2, 3]] * 2),
        "t": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((8, 2), np.float32)),
    }
)


def write(path: Path, *tables: pa.Table, compression: str | None = None, rows: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, tables[0].schema, options=options) as writer:
        for table in tables:
            writer.write_table(table, max_chunksize=rows)
    return path


def several(folder: Path) -> Path:
    """Files of each compression, empty batches, and a file without any."""
    write(folder / "0.arrow", TABLE, TABLE[:0].combine_chunks(), TABLE)
    write(folder / "1.feather", TABLE, compression="lz4", rows=5)
    write(folder / "2.ipc", TABLE, compression="zstd", rows=100)
    write(folder / "3.arrow", TABLE[:0])
    return folder


@pytest.mark.law
@pytest.mark.parametrize("atom_rows", [None, 1, 2, 7])
def test_the_laws_hold(tmp_path: Path, atom_rows: int | None) -> None:
    source = read_arrow(several(tmp_path), atom_rows=atom_rows)
    check_source(source, pa.concat_tables([TABLE] * 4))
    assert [unit.rows for unit in units(source)] == [3, 3, 2, 3, 3, 2, 5, 3, 8]
    assert [row.values["x"] for row in table_of(source).rows] == TABLE["x"].to_pylist() * 4
    assert table_of(source).units == source.unit_count
    assert sum(source.stored_bytes(unit, ("x",)) for unit in units(source)) > 100


def test_columns_are_selected_and_ordered(tmp_path: Path) -> None:
    source = read_arrow(several(tmp_path), columns=["l", "coded"])
    assert everything(source).to_arrow().schema.names == ["l", "coded"]
    assert source.schema["coded"] == pa.string()
    with pytest.raises(SchemaError, match="needs column 'y'"):
        read_arrow(tmp_path, columns=["y"])


@pytest.mark.law
def test_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    here = several(tmp_path / "here")
    shutil.copytree(here, tmp_path / "else")
    source = read_arrow(here)
    check_same_data(source, read_arrow(tmp_path / "else"))
    check_same_data(source, pickle.loads(pickle.dumps(source)))
    code = f"from dml.io.arrow.arrow import read_arrow\nsource = read_arrow({str(here)!r})"
    check_other_process(source, code)
    assert source.likeness() == read_arrow(tmp_path / "else").likeness()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    ds = dml.range(100).with_options(telemetry_dir="off")
    ds.write_arrow(tmp_path / "out", row_group_size=7)
    assert [row["id"] for row in dml.read_arrow(tmp_path / "out").take_rows(100)] == [*range(100)]


def test_what_is_no_arrow_file(tmp_path: Path) -> None:
    whole = write(tmp_path / "x.arrow", TABLE).read_bytes()
    path = tmp_path / "x.arrow"
    for size in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(SourceError, match=r"not an Arrow file|is damaged"):
            read_arrow(path)
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE)
    with pytest.raises(SourceError, match="not an Arrow file"):
        read_arrow(path)
    with pytest.raises(SourceError, match="does not exist"):
        read_arrow(tmp_path / "y.arrow")


def test_files_of_other_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", TABLE)
    write(tmp_path / "b.arrow", TABLE.drop_columns(["x"]))
    with pytest.raises(SourceError, match=r"b.arrow has no column 'x'"):
        read_arrow(tmp_path)
    write(tmp_path / "b.arrow", pa.table([[1], [2]], names=["x", "x"]))
    with pytest.raises(SourceError, match="two columns called 'x'"):
        read_arrow(tmp_path / "b.arrow")


def test_a_name_that_is_no_text_is_damage(tmp_path: Path) -> None:
    for names in (["word", "x"], ["x", "word"]):
        inner = pa.array([{names[0]: 1}])
        path = write(tmp_path / "x.arrow", pa.table({names[1]: inner}))
        path.write_bytes(path.read_bytes().replace(b"word", b"w\xffrd"))
        assert "is damaged" in refusal(lambda: read_arrow(path)).what  # noqa: B023


def test_a_damaged_batch_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", pa.table({"x": range(9), "s": ["word"] * 9}))
    whole = path.read_bytes()
    at = whole.rindex(b"wordword")
    path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    source = read_arrow(path)
    error = refusal(lambda: source)
    assert error.what == "record batch 2 of x.arrow is damaged"
    assert "rows 6 to 8" in error.at
    write(path, pa.table({"x": range(10)}))
    assert "has changed" in refusal(lambda: source).what
