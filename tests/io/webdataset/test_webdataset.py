"""Test that WebDataset shards are read as by the webdataset package, without pickle."""

from __future__ import annotations

import base64
import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import DmlError, PlanError, SchemaError, SourceError
from dml.io.webdataset.webdataset import read_webdataset, split_name
from dml.testing.source_laws import (
    check_other_process,
    check_same_data,
    check_source,
    everything,
    units,
)
from tests.io.line_sets import refusal

VECTORS = Path(__file__).resolve().parents[2] / "vectors/webdataset"
READ = json.loads((VECTORS / "read.json").read_text(encoding="utf-8"))


def archive(path: Path, files: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> Path:
    """An archive of plain files, packed as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as made:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    data = out.getvalue()
    path.write_bytes(gzip.compress(data) if path.suffix in (".gz", ".tgz") else data)
    return path


def unpacked(folder: Path) -> Path:
    """The committed archives without their packing."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in VECTORS.glob("*.tar.gz"):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return folder


def expected(name: str, *, bytes_only: bool) -> pa.Table:
    """What the webdataset package read."""
    rows = READ[name]
    columns: dict[str, Any] = {}
    for suffix in dict.fromkeys(["__key__", *(key for row in rows for key in row)]):
        values = [row.get(suffix) for row in rows]
        if suffix == "seg.npy":
            arrays = np.array([value["values"] for value in values], values[0]["dtype"])
            flat = pa.FixedSizeListArray.from_arrays(arrays.ravel(), 6)
            kind = pa.fixed_shape_tensor(pa.int16(), (2, 3))
            columns[suffix] = pa.ExtensionArray.from_storage(kind, flat)
        elif suffix in ("__key__", "txt", "cls", "json") and not (bytes_only and suffix[0] != "_"):
            columns[suffix] = values
        else:
            found = [None if v is None else base64.b64decode(v) for v in values]
            columns[suffix] = pa.array(found, pa.binary())
    return pa.table(columns)


def in_order(table: pa.Table, source: Any) -> pa.Table:
    """The columns as they stand in the archive, which a dict of JSON does not tell."""
    types = source.schema.to_arrow()
    json_type = types.field("json").type if "json" in types.names else None
    columns = {name: table[name] for name in types.names}
    if json_type is not None:
        columns["json"] = pa.array(table["json"].to_pylist(), json_type)
    return pa.table(columns)


@pytest.mark.law
@pytest.mark.parametrize("atom_rows", [None, 1, 2])
@pytest.mark.parametrize("packed", [True, False])
def test_shards_of_webdataset_are_read_as_it_reads_them(
    tmp_path: Path, atom_rows: int | None, *, packed: bool
) -> None:
    folder = VECTORS if packed else unpacked(tmp_path)
    ending = ".gz" if packed else ""
    source = read_webdataset(folder / f"samples.tar{ending}", atom_rows=atom_rows)
    want = expected("samples.tar.gz", bytes_only=False)
    check_source(source, in_order(want, source))
    source = read_webdataset(folder / f"by_hand.tar{ending}", decode=False, atom_rows=atom_rows)
    check_source(source, in_order(expected("by_hand.tar.gz", bytes_only=True), source))


@pytest.mark.law
def test_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    here = unpacked(tmp_path / "here") / "samples.tar"
    shutil.copytree(here.parent, tmp_path / "else")
    source = read_webdataset(here)
    check_same_data(source, read_webdataset(tmp_path / "else" / "samples.tar"))
    code = "from dml.io.webdataset.webdataset import read_webdataset\n"
    check_other_process(source, f"{code}source = read_webdataset({str(here)!r})")


@pytest.mark.parametrize(
    ("name", "key", "suffix"),
    [
        ("a.txt", "a", "txt"),
        ("d.e/f/a.seg.PNG", "d.e/f/a", "seg.png"),
        ("./a.txt", "./a", "txt"),
        ("../a.txt", "../a", "txt"),
        ("a", "", ""),
        ("d.e/a", "", ""),
        (".hidden", "", ""),
        ("__index__", "", ""),
        ("__x__/a.txt", "", ""),
        ("a.txt/", "", ""),
        ("a.", "a", ""),
    ],
)
def test_a_name_is_key_and_suffix(name: str, key: str, suffix: str) -> None:
    assert split_name(name) == (key, suffix)


@pytest.mark.law
def test_parts_are_cut_at_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.io.files.records.ATOM_BYTES", 5000)
    monkeypatch.setattr("dml.io.files.records.WINDOW", 700)
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        long = "" if form == tarfile.USTAR_FORMAT else "é" * 60
        files = {f"{long}{i:02}.{end}": bytes([i]) * (i * 40) for i in range(50) for end in "ab"}
        source = read_webdataset(archive(tmp_path / "x.tar", files, form))
        keys = pa.array([f"{long}{i:02}" for i in range(50)])
        values = pa.array([bytes([i]) * (i * 40) for i in range(50)])
        check_source(source, pa.table({"__key__": keys, "a": values, "b": values}))
        assert len(units(source)) > 10


def test_suffixes_are_chosen(tmp_path: Path) -> None:
    path = VECTORS / "samples.tar.gz"
    assert read_webdataset(path, ["cls", "new"]).schema.names == ("__key__", "cls", "new")
    assert everything(read_webdataset(path, suffixes=["cls"])).n == 7
    with pytest.raises(SourceError, match=r"none of the first samples .* has a file 'a.npy'"):
        read_webdataset(path, ["a.npy"])
    with pytest.raises(PlanError, match="no decode='pil'"):
        read_webdataset(path, decode="pil")
    assert read_webdataset(path, decode="basic").schema == read_webdataset(path).schema


DAMAGED = {
    "txt": (b"\xff", "is no UTF-8"),
    "cls": (b"1.5", "an int64 is expected"),
    "id": (b"9" * 19, "an int64 is expected"),
    "index": (b"", "an int64 is expected"),
    "json": (b'{"a": NaN}', "no number of JSON"),
    "a.json": (b"[" * 100_000, "no JSON"),
    "b.json": (b'{"b": 1}', "unexpected field"),
    "npy": (b"\x93NUMPY\x01\x00", "no array"),
    "new": (b"", "has a file 'new', which none of the first had"),
}


@pytest.mark.parametrize("suffix", DAMAGED)
def test_a_file_that_is_not_what_its_name_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Behind the samples that types are taken from; those are 1 MiB in truth."""
    monkeypatch.setattr("dml.io.files.records.WINDOW", 4 << 10)
    array = io.BytesIO()
    np.save(array, np.arange(3))
    good = {"npy": array.getvalue(), "txt": b"x", "new": b"", "json": b'{"a": 1}'}
    data, why = DAMAGED[suffix]
    fine = good.get(suffix.rpartition(".")[2], b"1")
    files = {f"{i:03}.{'old' if suffix == 'new' else suffix}": fine for i in range(40)}
    source = read_webdataset(archive(tmp_path / "x.tar", {**files, f"x.{suffix}": data}))
    error = refusal(lambda: source)
    assert why in error.why
    assert error.what == "row 40 of x.tar cannot be read"
    assert error.at == f"{tmp_path / 'x.tar'}, sample 40, byte {40 * (512 + bool(fine) * 512)}"


def test_types_are_those_of_the_rows_before_all_that_is_damaged(tmp_path: Path) -> None:
    """The first column fails later than the second."""
    good, files = {"a.cls": b"1", "b.txt": b"x"}, {}
    for i in range(9):
        row = {**good, "a.cls": b"z" if i == 6 else b"1", "b.txt": b"\xff" if i == 3 else b"x"}
        files.update({f"{i}.{suffix}": data for suffix, data in row.items()})
    source = read_webdataset(archive(tmp_path / "x.tar", files), atom_rows=1)
    assert source.schema["b.txt"] == pa.string()
    assert "sample 3" in refusal(lambda: source).at


def test_a_pickle_stays_bytes(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.array([{"a": 1}], object), allow_pickle=True)
    path = archive(tmp_path / "x.tar", {"a.pkl": b"cos\nsystem\n", "a.pth": b"PK"})
    rows = dml.read_webdataset(path).with_options(telemetry_dir="off").take_rows(1)
    assert rows == [{"__key__": "a", "pkl": b"cos\nsystem\n", "pth": b"PK"}]
    path = archive(tmp_path / "y.tar", {"a.npy": array.getvalue()})
    with pytest.raises(SourceError, match=r"the first row of y.tar cannot be read") as caught:
        read_webdataset(path)
    assert "pickle" in caught.value.why


def test_a_sample_has_one_file_of_a_suffix(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    archive(path, {"0.a": b"", "1.A": b"", "1.a": b""})
    with pytest.raises(SourceError, match="cannot be read") as caught:
        everything(read_webdataset(path))
    assert "sample '1' has two files 'a'" in caught.value.why


def test_an_archive_that_is_cut_off(tmp_path: Path) -> None:
    files = {f"{i}.txt": b"x" * i * 300 for i in range(5)}
    whole = archive(tmp_path / "x.tar", files).read_bytes().rstrip(b"\0")
    whole += bytes(-len(whole) % 512)
    for size in (1, 511, 512, 513, 1024, len(whole) - 513, len(whole) - 1, len(whole)):
        (tmp_path / "x.tar").write_bytes(whole[:size])
        error = refusal(lambda: read_webdataset(tmp_path / "x.tar"))
        assert error.what in ("the archive is cut off", "x.tar has no samples"), size
    (tmp_path / "x.tar").write_bytes(b"")
    assert "is empty" in refusal(lambda: read_webdataset(tmp_path / "x.tar")).what


NUMBERS = st.integers(-(2**63), 2**63 - 1)
JSON = st.fixed_dictionaries({"a": st.none() | NUMBERS, "b": st.lists(st.text(max_size=2))})
ROW = st.fixed_dictionaries(
    {
        "txt": st.none() | st.text(max_size=5),
        "cls": NUMBERS,
        "any": st.none() | st.binary(max_size=600),
        "x.json": JSON,
        "y.npy": st.lists(st.floats(width=32), max_size=3),
        "z.npy": NUMBERS,
    }
)
KINDS = {
    "txt": pa.string(),
    "cls": pa.int64(),
    "any": pa.binary(),
    "x.json": pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
    "y.npy": pa.list_(pa.float32()),
    "z.npy": pa.int64(),
}


@pytest.mark.law
@given(st.lists(ROW, min_size=1, max_size=4), st.sampled_from([None, "gzip"]))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], compression: str | None
) -> None:
    full = {
        "txt": "",
        "cls": 0,
        "any": b"",
        "x.json": {"a": 1, "b": ["x"]},
        "y.npy": [1.0, 2],
        "z.npy": 0,
    }
    rows = [full, {**full, "y.npy": [3.0]}, *rows]  # the first ones say what types there are
    table = pa.table({k: pa.array([row[k] for row in rows], kind) for k, kind in KINDS.items()})
    keys = pa.array([f"{i:09}" for i in range(len(rows))])
    folder = tmp_path_factory.mktemp("out") / "out"
    ds = dml.from_arrow(table).with_options(telemetry_dir="off")
    ds.write_webdataset(folder, compression=compression)
    check_source(read_webdataset(folder), table.add_column(0, "__key__", keys))


def test_tensors_and_keys_are_written(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    keys = [f"folder/{name}" for name in ("a", "ü" * 80, "c" * 300, "d")]
    ds = dml.from_dict({"__key__": keys, "t.npy": array}).with_options(telemetry_dir="off")
    ds.write_webdataset(tmp_path / "out", rows_per_file=3)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "part-00000.tar",
        "part-00001.tar",
    ]
    found = dml.read_webdataset(tmp_path / "out").with_options(telemetry_dir="off").to_numpy()
    assert found["__key__"].tolist() == keys
    assert np.array_equal(found["t.npy"], array)
    with tarfile.open(tmp_path / "out" / "part-00000.tar") as made:
        assert made.getnames() == [f"{key}.t.npy" for key in keys[:3]]
    ds.write_webdataset(tmp_path / "out", overwrite=True)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"x": [1]}, "rename it to x.txt"),
        ({"A": [b""]}, "cannot be the end of a file's name"),
        ({"a/b": [b""]}, "cannot be the end of a file's name"),
        ({"__key__": ["a"]}, "alone makes no files"),
        ({"__key__": [1], "a": [b""]}, "names are texts"),
        ({"__key__": ["a", "a"], "b": [b"", b""]}, "neighbours of one key are one sample"),
        ({"__key__": ["a.b"], "b": [b""]}, "is no key"),
        ({"__key__": ["../a"], "b": [b""]}, "is no key"),
        ({"__key__": ["/a"], "b": [b""]}, "is no key"),
        ({"__key__": [""], "b": [b""]}, "is no key"),
        ({"b": [b"", None]}, "has only nulls"),
        ({"b.npy": [[1], [None]]}, "has a null"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, columns: dict[str, Any], why: str) -> None:
    ds = dml.from_dict(columns).with_options(telemetry_dir="off")
    with pytest.raises(SchemaError) as caught:
        ds.write_webdataset(tmp_path / "out")
    assert why in str(caught.value)
    with pytest.raises(DmlError, match="with compression 'zstd'"):
        ds.write_webdataset(tmp_path / "out", compression="zstd")
    assert not (tmp_path / "out").exists()
