"""Test files as rows: their bytes, names, and ids that stay when files are added."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.errors import SourceError
from dml.io import source as io_source
from dml.io.binary import binary
from dml.io.binary.binary import read_binary_files
from dml.io.files.files import File
from dml.kernels.rows.ids import RowIds, source_key
from dml.testing.oracle_sources import table_of
from dml.testing.source_laws import (
    check_other_process,
    check_same_data,
    check_source,
    everything,
    id_pairs,
    units,
)
from tests.io.line_sets import refusal, written

FILES = {"a.jpg": b"", "b/c.txt": b"text", "b/d": bytes(range(256)), "e": b"\0"}
EXPECTED = pa.table(
    {"bytes": pa.array(list(FILES.values()), pa.binary()), "path": pa.array(list(FILES))}
)


@pytest.mark.parametrize("atom_rows", [None, 1, 2, 3])
def test_the_laws_hold(tmp_path: Path, atom_rows: int | None) -> None:
    source = read_binary_files(written(tmp_path, FILES), atom_rows=atom_rows)
    check_source(source, EXPECTED)
    assert source.position_of(everything(source).ids).tolist() == [0, 1, 2, 3]
    assert [row.values["path"] for row in table_of(source).rows] == list(FILES)
    assert table_of(source).units == source.unit_count
    bare = read_binary_files(tmp_path, False, atom_rows=atom_rows)
    check_source(bare, EXPECTED.select(["bytes"]))


def test_a_full_shuffle_reads_files_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (binary, io_source):
        monkeypatch.setattr(module, "ATOM_BYTES", 3_000)
    files = {f"{n:03}": b"x" * (n if n < 150 else 500) for n in range(200)}
    ds = dml.read_binary_files(written(tmp_path, files)).shuffle(seed=5).batch(4)
    ds = ds.with_options(executor="sync", telemetry_dir="off")
    opened: list[str] = []
    read = binary._content

    def counted(file: File) -> bytes:
        opened.append(file.name)
        return read(file)

    monkeypatch.setattr(binary, "_content", counted)
    found: list[str] = []
    for batch in ds.epoch(0):
        found += batch["path"].tolist()
        if len(found) == 4:
            assert len(opened) < 40
    assert sorted(found) == list(files)
    assert found == opened
    assert "in the order of ShuffleAll(seed=5)" in str(ds.explain("physical"))
    for taken in (3, 17):
        it = iter(ds.epoch(0))
        for _ in range(taken):
            next(it)
        again = iter(ds)
        again.load_state_dict(it.state_dict())
        assert [name for batch in again for name in batch["path"]] == found[4 * taken :]


@pytest.mark.law
def test_units_are_as_many_files_as_have_8_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "ATOM_BYTES", 300)
    files = {f"{n:02}": b"x" * (n * 10) for n in range(40)}
    source = read_binary_files(written(tmp_path, files))
    names = pa.array(list(files))
    check_source(source, pa.table({"bytes": [*files.values()], "path": names}))
    assert all(unit.nbytes <= 364 or unit.rows == 1 for unit in units(source))
    assert source.unit_count > 5


@pytest.mark.law
def test_names_and_ids_do_not_depend_on_the_place(tmp_path: Path) -> None:
    here = written(tmp_path / "here", FILES)
    shutil.copytree(here, tmp_path / "else")
    source = read_binary_files(here)
    check_same_data(source, read_binary_files(tmp_path / "else"))
    code = "from dml.io.binary.binary import read_binary_files\n"
    check_other_process(source, f"{code}source = read_binary_files({str(here)!r})")
    before = id_pairs(everything(source))
    more = read_binary_files(written(here, {"0": b"new"}))
    assert np.array_equal(id_pairs(everything(more))[1:], before)
    assert source.digest != more.digest


def test_the_file_of_an_error_is_named(tmp_path: Path) -> None:
    source = read_binary_files(written(tmp_path, FILES))
    found = source.unit_of(everything(source).ids.slice(2, 3))
    assert found is not None
    assert (found.index, found.place, found.file) == (0, "b/d", "b/d")
    assert source.unit_of(RowIds.run(source_key("unknown"), 0, 1)) is None
    assert source.unit_of(RowIds.run(source_key("b/d"), 1, 1)) is None


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    source = read_binary_files(written(tmp_path, FILES))
    (tmp_path / "b/c.txt").write_bytes(b"longer text")
    assert "has changed" in refusal(lambda: source).what
    assert everything(source, ("path",)).n == 4
    (tmp_path / "b/c.txt").unlink()
    assert "does not exist" in refusal(lambda: source).what
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="has no visible files"):
        read_binary_files(tmp_path / "empty")
