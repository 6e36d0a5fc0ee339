"""Test that TFRecord files are read as by TensorFlow, with their checksums verified."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import DmlError, PlanError, SchemaError, SourceError
from dml.io.tfrecord.examples import MalformedError, example, numbers
from dml.io.tfrecord.tfrecord import RecordSource, read_tfrecords
from dml.testing.source_laws import (
    check_other_process,
    check_same_data,
    check_source,
    everything,
    units,
)
from tests.io.line_sets import refusal, written

VECTORS = Path(__file__).resolve().parents[2] / "vectors/tfrecord"
PACKED = ["plain.tfrecord", "gzip.tfrecord.gz", "zlib.bin"]
KINDS = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}


def framed(records: Iterable[bytes]) -> bytes:
    """Records as files have them, from the description of the format."""

    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        turned = (crc >> 15) + (crc % (1 << 15) << 17)
        return struct.pack("<I", (turned + 0xA282EAD8) % (1 << 32))

    sizes = ((struct.pack("<Q", len(record)), record) for record in records)
    return b"".join(size + masked(size) + record + masked(record) for size, record in sizes)


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A message of protocol buffers with these fields: whole numbers and runs of bytes."""

    def number(value: int) -> bytes:
        low, rest = value % 128, value // 128
        return bytes([low + 128]) + number(rest) if rest else bytes([low])

    return b"".join(
        number(field * 8) + number(value % (1 << 64))
        if isinstance(value, int)
        else number(field * 8 + 2) + number(len(value)) + value
        for field, value in fields
    )


def ints(*values: int) -> bytes:
    """A feature of whole numbers, one field each."""
    return message((3, message(*((1, value) for value in values))))


def record(**features: bytes) -> bytes:
    entries = ((1, message((1, k.encode()), (2, value))) for k, value in features.items())
    return message((1, message(*entries)))


def expected() -> pa.Table:
    """What TensorFlow reads in the vectors; lists where a row has not one value."""
    rows = json.loads((VECTORS / "parsed.json").read_text())
    columns = {}
    for name in sorted({name for row in rows for name in row}):
        kind = next(row[name][0] for row in rows if name in row)
        read = base64.b64decode if kind == "bytes_list" else lambda value: value
        read = float.fromhex if kind == "float_list" else read
        values = [[*map(read, row[name][1])] if name in row else None for row in rows]
        single = all(v is None or len(v) == 1 for v in values)
        arrow = KINDS[kind] if single else pa.list_(KINDS[kind])
        shown = [None if v is None else v[0] for v in values] if single else values
        columns[name] = pa.array(shown, arrow)
    return pa.table(columns)


@pytest.mark.law
@pytest.mark.parametrize("name", PACKED)
def test_files_of_tensorflow_are_read_as_it_reads_them(name: str) -> None:
    check_source(read_tfrecords(VECTORS / name, atom_rows=7), expected())


@pytest.mark.law
@pytest.mark.parametrize("atom_rows", [None, 1, 5])
def test_the_laws_hold(tmp_path: Path, atom_rows: int | None) -> None:
    for name in PACKED:
        shutil.copy(VECTORS / name, tmp_path / f"{name}.tfrecord")
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    source = read_tfrecords(tmp_path, atom_rows=atom_rows)
    check_source(source, pa.concat_tables([expected()] * 3))
    raw = read_tfrecords(tmp_path, raw=True, atom_rows=atom_rows)
    assert raw.row_count == 3 * expected().num_rows
    check_source(raw, everything_of(raw))


def everything_of(source: RecordSource) -> pa.Table:
    return pa.Table.from_batches([everything(source).to_arrow()])


@pytest.mark.law
def test_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    shutil.copytree(VECTORS, tmp_path / "else")
    source = read_tfrecords(VECTORS / "plain.tfrecord")
    check_same_data(source, read_tfrecords(tmp_path / "else" / "plain.tfrecord"))
    code = "from dml.io.tfrecord.tfrecord import read_tfrecords\n"
    check_other_process(source, f"{code}source = read_tfrecords({str(VECTORS / PACKED[0])!r})")


@pytest.mark.law
def test_parts_are_cut_at_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.io.files.records.ATOM_BYTES", 300)
    payloads = [bytes([i]) * (i % 50) for i in range(200)]
    source = read_tfrecords(written(tmp_path, {"a.tfrecord": framed(payloads)}), raw=True)
    check_source(source, pa.table({"bytes": pa.array(payloads, pa.binary())}))
    assert len(units(source)) > 10


def test_a_schema_chooses_and_casts(tmp_path: Path) -> None:
    source = read_tfrecords(
        VECTORS / PACKED[0], {"x": "float64", "id": "int8", "words": pa.list_(pa.string())}
    )
    assert source.schema.names == ("x", "id", "words")
    want = expected()
    assert everything_of(source)["id"].to_pylist() == want["id"].to_pylist()
    assert everything_of(source)["words"].to_pylist()[2] == [
        word.decode() for word in want["words"].to_pylist()[2]
    ]
    with pytest.raises(SourceError, match=r"of plain.tfrecord cannot be read") as caught:
        everything(read_tfrecords(VECTORS / PACKED[0], {"edge": "int16"}))
    assert "record" in caught.value.at
    with pytest.raises(SchemaError, match="TFRecord files have no column 'x' of"):
        read_tfrecords(VECTORS / PACKED[0], {"x": pa.timestamp("s")})
    with pytest.raises(SchemaError, match="a schema or raw=True"):
        read_tfrecords(VECTORS / PACKED[0], {"x": "float32"}, raw=True)
    with pytest.raises(PlanError, match="no compression 'snappy'"):
        read_tfrecords(VECTORS / PACKED[0], compression="snappy")


def test_a_sequence_example_is_refused() -> None:
    error = refusal(lambda: read_tfrecords(VECTORS / "sequence.tfrecord"))
    assert "SequenceExample" in error.why
    assert "raw=True" in error.try_
    assert everything(read_tfrecords(VECTORS / "sequence.tfrecord", raw=True)).n == 1


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([record(a=ints(1)), record(a=ints(1, 2))], "has 2 values, and one is expected"),
        ([record(a=ints(1)), record(a=message((1, message((1, b"x")))))], "bytes values, and int"),
        ([record(a=ints(1)), record(a=ints(1), b=ints(1))], "feature 'b', which no record had"),
        ([record(a=ints(1)), b"\xff\xff"], "a number has no end"),
        ([record(a=ints(1)), message((1, b"\x0a\x09"))], "is cut off"),
        ([record(a=ints(1)), message((1, message((1, message((1, b"\xff"))))))], "is no UTF-8"),
        ([record(a=ints(1)), b"\x0b\x0c"], "wire type 3"),
        ([record(a=ints(1)), b"\x00"], "no field 0"),
        ([record(a=ints(1)), record(a=message((3, b"\x0a\x02\x80\x80")))], "no end"),
        ([record(a=ints(1)), record(a=message((2, b"\x0a\x03abc")))], "a run of floats has 3"),
    ],
)
def test_a_record_that_does_not_fit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[bytes], why: str
) -> None:
    """Whatever is behind the rows that types are taken from; 1 MiB of them, in truth."""
    monkeypatch.setattr("dml.io.files.records.WINDOW", 40)
    first = framed([rows[0]] * 9)
    files = {"a.tfrecord": first + framed(rows[1:])}
    source = read_tfrecords(written(tmp_path, files), atom_rows=3)
    error = refusal(lambda: source)
    assert why in error.why
    assert error.at.endswith(f"a.tfrecord, record 9, byte {len(first)}")
    assert error.what == "row 9 of a.tfrecord cannot be read"


def test_a_record_whose_first_byte_is_a_newline_has_its_own_place(tmp_path: Path) -> None:
    data = framed([b"x" * 10, b"y" * 10, b"z" * 13])
    bad = data.replace(b"zzz", b"zzy", 1)
    source = read_tfrecords(written(tmp_path, {"a.tfrecord": bad}), raw=True)
    assert refusal(lambda: source).at.endswith("record 2, byte 52")


def test_damage_comes_after_the_rows_before_it(tmp_path: Path) -> None:
    whole = framed([b"one", b"two", b"three"])
    for size in (len(whole) - 1, len(whole) - 20, len(framed([b"one", b"two"])) + 3):
        path = written(tmp_path, {"a.tfrecord": whole[:size]}) / "a.tfrecord"
        source = read_tfrecords(path, raw=True, atom_rows=1)
        assert source.row_count is None
        blocks = (each for unit in units(source) for each in source.read(unit, ("bytes",)))
        found = [next(blocks).to_arrow()["bytes"].to_pylist() for _ in range(2)]
        assert found == [[b"one"], [b"two"]]
        with pytest.raises(SourceError, match="a record is cut off") as caught:
            next(blocks)
        assert caught.value.at == f"{path}, record 2, byte 38"


def test_lengths_are_checked_before_they_are_believed(tmp_path: Path) -> None:
    data = bytearray(framed([b"one", b"two"]))
    data[19 + 6] ^= 1
    source = read_tfrecords(written(tmp_path, {"a.tfrecord": bytes(data)}), raw=True)
    error = refusal(lambda: source)
    assert error.what == "the length of a record is damaged"
    assert error.at.endswith("record 1, byte 19")
    size = struct.pack("<Q", 1 << 40)
    huge = size + framed([size])[-4:] + bytes(40)
    source = read_tfrecords(written(tmp_path, {"b.tfrecord": huge}) / "b.tfrecord", raw=True)
    assert "longer than 33554432 bytes" in refusal(lambda: source).what


def test_a_file_of_another_kind_or_none(tmp_path: Path) -> None:
    path = written(tmp_path, {"a.tfrecord": b"id,name\n1,one\n" * 9}) / "a.tfrecord"
    assert "is damaged" in refusal(lambda: read_tfrecords(path)).what
    path.write_bytes(b"")
    assert "has no columns" in refusal(lambda: read_tfrecords(path)).what
    assert everything(read_tfrecords(path, {"a": "int64"})).n == 0
    path.write_bytes(gzip.compress(framed([b"x"] * 9))[:-3])
    assert "is damaged" in refusal(lambda: read_tfrecords(path, raw=True)).what
    path.write_bytes(zlib.compress(framed([b"x"] * 9))[:-3])
    assert "is damaged" in refusal(lambda: read_tfrecords(path, raw=True)).what


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(SourceError, match="need google-crc32c") as caught:
        read_tfrecords(VECTORS / PACKED[0])
    assert "dml[tfrecord]" in caught.value.try_


INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.law
@given(st.lists(INT64, min_size=1))
def test_many_numbers_are_read_as_few_are(values: list[int]) -> None:
    one_by_one = message(*((1, value) for value in values))
    packed = message((1, b"".join(message((1, value))[1:] for value in values)))
    for stored in (one_by_one, packed):
        data = record(a=message((3, stored)))
        feature = example(data, ["a"])["a"]
        assert feature is not None
        assert [int(v) for run in feature[1] for v in run] == values
    run = b"".join(message((1, value))[1:] for value in values)
    assert numbers(run).tolist() == values
    with pytest.raises(MalformedError):
        numbers(run + b"\x80")


@pytest.mark.law
@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(INT64, max_size=3)), max_size=4))
def test_of_equal_names_the_last_holds(entries: list[tuple[str, list[int]]]) -> None:
    stored = ((1, message((1, name.encode()), (2, ints(*values)))) for name, values in entries)
    found = example(message((9, 1), (1, message(*stored)), (7, b"new")), ["a", "b"])
    for name, values in dict(entries).items():
        feature = found[name]
        assert feature is not None
        assert [int(v) for run in feature[1] for v in run] == values
    assert found.keys() == dict(entries).keys()


@given(st.binary(max_size=60))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    try:
        example(data, ["a"])
    except MalformedError:
        return


def column(kind: pa.DataType, values: st.SearchStrategy[Any]) -> st.SearchStrategy[pa.Array]:
    rows = st.lists(st.none() | values, min_size=3, max_size=3)
    return rows.map(lambda each: pa.array(each, kind))


WRITTEN = {
    "bool": column(pa.bool_(), st.booleans()),
    "int64": column(pa.int64(), INT64),
    "uint8": column(pa.uint8(), st.integers(0, 255)),
    "float32": column(pa.float32(), st.floats(width=32)),
    "string": column(pa.string(), st.text(max_size=9)),
    "binary": column(pa.binary(), st.binary(max_size=300)),
    "lists": column(pa.list_(pa.int64()), st.lists(INT64, max_size=40)),
    "floats": column(pa.list_(pa.float32()), st.lists(st.floats(width=32), max_size=3)),
    "words": column(pa.list_(pa.string()), st.lists(st.text(max_size=3), max_size=3)),
}


@pytest.mark.law
@given(st.fixed_dictionaries(WRITTEN), st.sampled_from([None, "gzip"]))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, pa.Array], compression: str | None
) -> None:
    table, folder = pa.table(columns), tmp_path_factory.mktemp("out") / "out"
    ds = dml.from_arrow(table).with_options(telemetry_dir="off")
    ds.write_tfrecords(folder, compression=compression)
    check_source(read_tfrecords(folder, dict(ds.schema)), table)


@pytest.mark.law
def test_tensors_keep_their_order_and_raw_records_their_bytes(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    ds = dml.from_numpy({"t": array}).with_options(telemetry_dir="off")
    ds.write_tfrecords(tmp_path / "t")
    found = dml.read_tfrecords(tmp_path / "t", ds.schema).with_options(telemetry_dir="off")
    assert np.array_equal(found.to_numpy()["t"], array)
    raw = dml.read_tfrecords(tmp_path / "t", raw=True).with_options(telemetry_dir="off")
    raw.write_tfrecords(tmp_path / "raw", raw=True)
    name = "part-00000.tfrecord"
    assert (tmp_path / "raw" / name).read_bytes() == (tmp_path / "t" / name).read_bytes()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pa.array([0.1]), "would not be kept exactly"),
        (pa.array([1], pa.uint64()), "would not be kept exactly"),
        (pa.array([{"a": 1}]), "has no form in an Example"),
        (pa.array([[None, 1]]), "list with a null"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, values: pa.Array, why: str) -> None:
    ds = dml.from_arrow(pa.table({"x": values})).with_options(telemetry_dir="off")
    with pytest.raises(SchemaError) as caught:
        ds.write_tfrecords(tmp_path / "out")
    assert why in str(caught.value)
    with pytest.raises(DmlError, match="with compression 'zstd'"):
        ds.write_tfrecords(tmp_path / "out", compression="zstd")
    assert not (tmp_path / "out").exists()


def test_tensorflow_reads_what_was_written(tmp_path: Path) -> None:
    tf: Any = pytest.importorskip("tensorflow")
    table = expected()
    ds = dml.from_arrow(table).with_options(telemetry_dir="off")
    ds.write_tfrecords(tmp_path / "out")
    path = str(tmp_path / "out" / "part-00000.tfrecord")
    for at, stored in enumerate(tf.data.TFRecordDataset(path).as_numpy_iterator()):
        features = tf.train.Example.FromString(stored).features.feature
        row = table.slice(at, 1).to_pylist()[0]
        assert features.keys() == {name for name, value in row.items() if value is not None}
        for name, feature in features.items():
            values = list(getattr(feature, feature.WhichOneof("kind")).value)
            assert values == (row[name] if isinstance(row[name], list) else [row[name]])
