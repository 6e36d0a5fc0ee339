"""Test that NumPy files are read as rows, from any position, and never unpickled."""

from __future__ import annotations

import ast
import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.data.layouts import usual_column
from dml.errors import SchemaError, SourceError
from dml.io.numpy.npy import read_numpy
from dml.io.numpy.npy_header import MAGIC, NpyError, array_in
from dml.testing.source_laws import (
    check_other_process,
    check_same_data,
    check_source,
    everything,
    units,
)
from tests.io.line_sets import refusal

TENSORS = np.arange(60, dtype=np.float32).reshape(10, 3, 2)
FIELDS = np.dtype([("n", ">i4"), ("t", "f4", (2,)), ("w", "U3"), ("ok", "?"), ("d", "M8[D]")])


def rows_of(n: int) -> np.ndarray:
    found = np.zeros(n, FIELDS)
    found["n"] = np.arange(n)
    found["t"] = np.arange(2 * n).reshape(n, 2)
    found["w"] = [f"{i % 99}é" for i in range(n)]
    found["ok"] = np.arange(n) % 3 == 0
    found["d"] = np.arange(n)
    return found


def table(columns: dict[str, np.ndarray]) -> pa.Table:
    """The columns as from_numpy takes them, which has tests of its own."""
    return dml.from_numpy(columns).with_options(telemetry_dir="off").to_arrow()


def saved(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


@pytest.mark.law
@pytest.mark.parametrize("atom_rows", [None, 1, 3, 7])
@pytest.mark.parametrize("fortran", [False, True])
def test_the_laws_hold_for_arrays(tmp_path: Path, atom_rows: int | None, *, fortran: bool) -> None:
    order = "F" if fortran else "C"
    for name, part in (("0", TENSORS[:4]), ("1", TENSORS[:0]), ("2", TENSORS[4:])):
        saved(tmp_path / f"{name}.npy", np.array(part, order=order))  # type: ignore[call-overload]
    source = read_numpy(tmp_path, atom_rows=atom_rows)
    check_source(source, table({"item": TENSORS}))
    assert source.addressable == (not fortran)
    assert source.position_of(everything(source).ids).tolist() == [*range(10)]


@pytest.mark.law
@pytest.mark.parametrize("atom_rows", [None, 2])
def test_the_laws_hold_for_fields(tmp_path: Path, atom_rows: int | None) -> None:
    rows = rows_of(11)
    saved(tmp_path / "a/0.npy", rows[:5])
    saved(tmp_path / "a/1.npy", rows[5:])
    source = read_numpy(tmp_path, atom_rows=atom_rows)
    check_source(source, table({name: rows[name] for name in FIELDS.names or ()}))
    chosen = read_numpy(tmp_path, columns=["w", "n"], atom_rows=atom_rows)
    assert chosen.schema.names == ("w", "n")
    found = chosen.unit_of(everything(chosen).ids.slice(6, 7))
    assert found is not None
    assert found.file == "1.npy"


@pytest.mark.law
@pytest.mark.parametrize("atom_rows", [None, 1, 4])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_laws_hold_for_archives(tmp_path: Path, save: Any, atom_rows: int | None) -> None:
    columns: dict[str, np.ndarray] = {
        "t": TENSORS,
        "f": np.asfortranarray(TENSORS),
        "n": np.arange(10),
        "w": np.array(list("abcdefghij")),
    }
    save(tmp_path / "0.npz", **columns)
    save(tmp_path / "1.npz", **columns)
    source = read_numpy(tmp_path, atom_rows=atom_rows)
    check_source(source, pa.concat_tables([table(columns)] * 2))
    assert not source.addressable


DTYPES = ["?", "i1", "<u2", ">i4", "u8", "f2", "<f4", ">f8", "M8[ns]", "m8[s]", "S4", "U2"]


@pytest.mark.law
@given(st.sampled_from(DTYPES), st.integers(0, 20), st.binary(min_size=200, max_size=200))
def test_every_dtype_is_read(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, n: int, data: bytes
) -> None:
    bits = np.frombuffer(data, np.uint8) & (1 if dtype == "?" else 255 if dtype[0] != "U" else 0)
    array = bits[: n * np.dtype(dtype).itemsize].view(dtype)
    path = saved(tmp_path_factory.mktemp("x") / "x.npy", array)
    source = read_numpy(path, atom_rows=7)
    block = everything(source).to_arrow()
    native = array.astype(array.dtype.newbyteorder("="))
    values = native.tolist() if array.dtype.kind in "SU" else native
    want = pa.array(values, block.schema.types[0])
    check_source(source, pa.table({"item": usual_column(want)}))


@pytest.mark.law
def test_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    saved(tmp_path / "here/a.npy", TENSORS)
    shutil.copytree(tmp_path / "here", tmp_path / "else")
    source = read_numpy(tmp_path / "here")
    check_same_data(source, read_numpy(tmp_path / "else"))
    code = "from dml.io.numpy.npy import read_numpy\n"
    check_other_process(source, f"{code}source = read_numpy({str(tmp_path / 'here')!r})")


def test_atoms_are_equal_and_of_8_mib(tmp_path: Path) -> None:
    saved(tmp_path / "a.npy", np.zeros((300, 1 << 14)))
    saved(tmp_path / "b.npy", np.zeros((100, 1 << 14)))
    assert [unit.rows for unit in units(read_numpy(tmp_path))] == [64] * 6 + [16]


def test_a_shuffle_reads_at_random(tmp_path: Path) -> None:
    saved(tmp_path / "a.npy", np.arange(1000))
    saved(tmp_path / "b.npy", np.arange(1000, 1500))
    ds = dml.read_numpy(tmp_path, atom_rows=64).with_options(telemetry_dir="off")
    want = dml.range(1500).shuffle(seed=1).with_options(telemetry_dir="off").to_numpy()["id"]
    found = ds.shuffle(seed=1).to_numpy()["item"]
    assert sorted(found.tolist()) == sorted(want.tolist())
    assert (
        ds.shuffle(seed=1).skip(700).take(5).to_numpy()["item"].tolist() == found[700:705].tolist()
    )


PICKLED = io.BytesIO()
np.save(PICKLED, np.array([{"a": 1}], object), allow_pickle=True)
HEADERS = {
    "objects": (PICKLED.getvalue(), "Python objects"),
    "no magic": (b"\x94NUMPY\x01\x00v\x00" + b" " * 99, "begins with"),
    "a pickle": (b"\x80\x04\x95" + bytes(99), "begins with"),
    "another version": (MAGIC + b"\x04\x00v\x00\x00\x00" + b" " * 99, "version 4"),
    "a header without end": (MAGIC + b"\x02\x00\xff\xff\x00\x00" + b" " * 99, "cut off"),
    "a header of 4 GiB": (MAGIC + b"\x02\x00\xff\xff\xff\xff" + b" " * 99, "version 2"),
    "code": (MAGIC + b"\x01\x00\x20\x00" + b"__import__('os').system('true')\n", "damaged"),
    "deep brackets": (MAGIC + b"\x02\x00\x00\xf0\x00\x00" + b"(" * 0xF000, "damaged"),
    "no shape": (MAGIC + b"\x01\x00\x20\x00" + b"{'descr': '<i8'}".ljust(32), "damaged"),
    "negative": (
        MAGIC + b"\x01\x00\x50\x00"
        + b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}".ljust(80), "damaged",
    ),
    "huge": (
        MAGIC + b"\x01\x00\x50\x00"
        + b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}".ljust(80),
        "bytes of values, and 8000000000000 belong",
    ),
    "no axis": (
        MAGIC + b"\x01\x00\x50\x00"
        + b"{'descr': '<i8', 'fortran_order': False, 'shape': ()}".ljust(80) + bytes(8),
        "single value",
    ),
    "complex": (
        MAGIC + b"\x01\x00\x50\x00"
        + b"{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}".ljust(80) + bytes(8),
        "no column can hold",
    ),
    "objects in fields": (
        MAGIC + b"\x01\x00\x50\x00"
        + b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}".ljust(80) + bytes(8),
        "Python objects",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_what_is_no_array_of_rows(tmp_path: Path, case: str) -> None:
    data, why = HEADERS[case]
    (tmp_path / "x.npy").write_bytes(data)
    error = refusal(lambda: read_numpy(tmp_path / "x.npy"))
    assert why in error.why
    assert "x.npy" in error.what
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("a.npy", data)
    assert "y.npz" in refusal(lambda: read_numpy(tmp_path / "y.npz")).what
    if case not in ("no axis", "complex"):  # which are arrays, but no rows
        with pytest.raises(NpyError):
            array_in(data)


def test_archives_of_other_things(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../evil.txt", b"x")
    assert "is no array" in refusal(lambda: read_numpy(path)).why
    np.savez(path, a=np.arange(3), b=np.arange(4))
    error = refusal(lambda: read_numpy(path))
    assert (error.what, error.why) == ("the arrays of x.npz have different lengths", "a 3, b 4")
    np.savez(path, a=rows_of(3))
    assert "has fields, and is a member" in refusal(lambda: read_numpy(path)).why
    np.savez(path)
    assert "no columns" in refusal(lambda: read_numpy(path)).what
    saved(tmp_path / "y.npy", np.arange(3))
    np.savez(path, item=np.arange(3))
    assert everything(read_numpy(tmp_path)).n == 6
    with pytest.raises(SourceError, match="column 'item' is"):
        read_numpy([saved(tmp_path / "z.npy", np.arange(3.0)), path])
    with pytest.raises(SchemaError, match="needs column 'a'"):
        read_numpy(path, columns=["a"])


def test_a_file_that_changes_or_is_cut_off(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.npy", np.arange(100))
    source = read_numpy(path)
    data = path.read_bytes()
    path.write_bytes(data[:-8])
    assert "has changed" in refusal(lambda: source).what
    assert "is not a file of arrays" in refusal(lambda: read_numpy(path)).what
    flags = saved(tmp_path / "b.npy", np.zeros(5, bool))
    flags.write_bytes(flags.read_bytes()[:-1] + b"\x02")
    error = refusal(lambda: read_numpy(flags))
    assert error.what == "column 'item' of b.npy is damaged"


def test_a_damaged_archive_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(20_000), b=np.arange(20_000))
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(19_000, 19_010).tobytes()) + 3] ^= 4
    path.write_bytes(data)
    error = refusal(lambda: read_numpy(path))
    assert error.what == "x.npz is damaged"
    assert "CRC" in error.why
    assert everything(read_numpy(path), ("b",)).n == 20_000


COLUMNS = {
    "b": st.booleans(),
    "i": st.integers(-100, 100),
    "f": st.none() | st.floats(width=32, allow_nan=False),
    "t": st.lists(st.integers(0, 255), min_size=6, max_size=6),
    "d": st.none() | st.dates(),
    "s": st.none() | st.datetimes(),
}
ARROW = {
    "b": pa.bool_(),
    "i": pa.int8(),
    "f": pa.float32(),
    "t": pa.fixed_shape_tensor(pa.uint8(), (3, 2)),
    "d": pa.date32(),
    "s": pa.timestamp("us"),
}


def test_what_python_takes_for_an_error_of_its_own_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CPython's issue 106905: two threads parse at once."""
    parsed, errors = ast.literal_eval, iter([SystemError("AST constructor"), SystemError()])

    def literal_eval(text: str) -> Any:
        for error in errors:
            raise error
        return parsed(text)

    file = io.BytesIO()
    np.save(file, np.arange(5))
    monkeypatch.setattr(ast, "literal_eval", literal_eval)
    assert array_in(file.getvalue()).tolist() == list(range(5))


@pytest.mark.law
@given(st.lists(st.fixed_dictionaries(COLUMNS), min_size=1, max_size=5))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    arrays = {}
    for name, kind in ARROW.items():
        values = [row[name] for row in rows]
        if name == "t":
            storage = pa.array(values, kind.storage_type)
            arrays[name] = pa.ExtensionArray.from_storage(kind, storage)
        else:
            arrays[name] = pa.array(values, kind)
    folder = tmp_path_factory.mktemp("out") / "out"
    ds = dml.from_arrow(pa.table(arrays)).with_options(telemetry_dir="off")
    ds.write_numpy(folder, rows_per_file=3)
    arrays["f"] = arrays["f"].fill_null(float("nan"))
    check_source(read_numpy(folder), pa.table(arrays))
    loaded = np.load(folder / "part-00000.npy", mmap_mode="r", allow_pickle=False)
    assert loaded["i"].tolist() == [row["i"] for row in rows[:3]]


@pytest.mark.law
def test_one_column_is_a_plain_array(tmp_path: Path) -> None:
    ds = dml.from_numpy({"t": TENSORS, "n": np.arange(10)}).with_options(telemetry_dir="off")
    ds.write_numpy(tmp_path / "out", column="t")
    assert np.array_equal(np.load(tmp_path / "out/part-00000.npy"), TENSORS)
    none = ds.filter(dml.col("n") < 0)
    none.write_numpy(tmp_path / "out", overwrite=True)
    assert read_numpy(tmp_path / "out").row_count == 0
    ds.write_numpy(tmp_path / "out", overwrite=True, rows_per_file=4)
    check_source(read_numpy(tmp_path / "out"), table({"t": TENSORS, "n": np.arange(10)}))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pa.array(["a"]), "arrays hold numbers"),
        (pa.array([[1]]), "arrays hold numbers"),
        (pa.array([1, None]), "has a null"),
        (pa.array([True, None]), "has a null"),
        (pa.array([1], pa.timestamp("s", "UTC")), "without a time zone"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, values: pa.Array, why: str) -> None:
    ds = dml.from_arrow(pa.table({"x": values})).with_options(telemetry_dir="off")
    with pytest.raises(SchemaError) as caught:
        ds.write_numpy(tmp_path / "out")
    assert why in str(caught.value)
    with pytest.raises(SchemaError, match="cannot hold these columns"):
        ds.write_numpy(tmp_path / "out", column="y")


def test_a_column_without_a_name_is_not_renamed(tmp_path: Path) -> None:
    ds = dml.from_dict({"": [1], "b": [2]}).with_options(telemetry_dir="off")
    with pytest.raises(SchemaError, match="cannot hold") as caught:
        ds.write_numpy(tmp_path / "out")
    assert "without a name" in caught.value.why
