"""Read TFRecord files of TensorFlow, and let TensorFlow read those of dml."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml

PACKINGS = {"": None, "GZIP": "gzip", "ZLIB": "zlib"}  # TensorFlow's word and that of dml
WRITTEN = ("", "GZIP")
ONE = {"i": "int64", "f": "float32", "b": "binary"}
ABSENT: dict[str, Any] = {"i": -1, "f": -1.0, "b": b"none"}
MANY: dict[str, Any] = {
    "is": pa.list_(pa.int64()),
    "fs": pa.list_(pa.float32()),
    "bs": pa.list_(pa.binary()),
}
FLOATS = (0.0, -0.0, 3e38, 1e-40, float("inf"))
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tf() -> Any:
    """TensorFlow, which is in no extra of dml, and what dml[tfrecord] installs."""
    pytest.importorskip("google_crc32c")
    tf = pytest.importorskip("tensorflow")
    tf.config.set_visible_devices([], "GPU")
    return tf


def one(rng: random.Random, kind: str) -> Any:
    """A value: edges of the type among them."""
    if kind == "i":
        return rng.choice((0, -1, 2**63 - 1, -(2**63), rng.randrange(-300, 300)))
    if kind == "f":
        return float(np.float32(rng.choice((*FLOATS, rng.random()))))
    return rng.randbytes(rng.randrange(40))


def drawn(rng: random.Random) -> dict[str, list[Any]]:
    """Features of a record: of one value or of several, and each of them may be absent."""
    row = {name: [one(rng, name)] for name in ONE}
    row |= {name: [one(rng, name[0]) for _ in range(rng.randrange(5))] for name in MANY}
    return {name: values for name, values in row.items() if rng.random() < 0.8}


def feature(tf: Any, name: str, values: list[Any]) -> Any:
    if name[0] == "i":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if name[0] == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def serialized(tf: Any, row: dict[str, list[Any]], *, blank: bool) -> bytes:
    """The record; with ``blank`` an absent feature may be there without a kind."""
    found = {name: feature(tf, name, values) for name, values in row.items()}
    if blank:
        found |= {name: tf.train.Feature() for name in (*ONE, *MANY) if name not in row}
    made: bytes = tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString()
    return made


def asked(tf: Any) -> dict[str, Any]:
    """What TensorFlow is asked for: an absent value is that of ``ABSENT``, an absent list empty."""
    kinds = {"i": tf.int64, "f": tf.float32, "b": tf.string}
    single = {name: tf.io.FixedLenFeature((), kinds[name], ABSENT[name]) for name in ONE}
    return single | {name: tf.io.RaggedFeature(kinds[name[0]]) for name in MANY}


def theirs(tf: Any, paths: list[str], packing: str, features: Any) -> list[dict[str, Any]]:
    """The records as TensorFlow reads them."""
    records = tf.data.TFRecordDataset(paths, compression_type=packing)
    parsed = records.map(lambda record: tf.io.parse_single_example(record, features))
    return [{name: plain(row[name]) for name in features} for row in parsed.as_numpy_iterator()]


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Equal as text, so that -0.0 is not 0.0."""
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs, strict=True):
        assert {name: str(one[name]) for name in two} == {n: str(v) for n, v in two.items()}


def filled(row: dict[str, Any]) -> dict[str, Any]:
    """The row with what TensorFlow was told to give where there is nothing."""
    given: dict[str, Any] = {name: [] if name in MANY else ABSENT.get(name) for name in row}
    return {name: given[name] if value is None else value for name, value in row.items()}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("seed", range(4))
def test_records_that_tensorflow_wrote(tf: Any, packing: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = str(tmp_path / "rows.tfrecord")
    with tf.io.TFRecordWriter(path, options=packing) as writer:
        for _ in range(200):
            writer.write(serialized(tf, drawn(rng), blank=rng.random() < 0.3))
    wanted = theirs(tf, [path], packing, asked(tf))
    for compression in ("auto", PACKINGS[packing]):
        ds = dml.read_tfrecords(path, {**ONE, **MANY}, compression=compression, atom_rows=37)
        same([filled(row) for row in ds.to_arrow().to_pylist()], wanted)
    raw = dml.read_tfrecords(path, raw=True, atom_rows=37).to_arrow()["bytes"].to_pylist()
    records = tf.data.TFRecordDataset(path, compression_type=packing)
    assert raw == list(records.as_numpy_iterator())


def test_types_that_records_have(tf: Any, tmp_path: Path) -> None:
    rng = random.Random(5)
    with tf.io.TFRecordWriter(str(tmp_path / "rows.tfrecord")) as writer:
        for _ in range(50):
            writer.write(serialized(tf, drawn(rng), blank=False))
    found = dml.read_tfrecords(tmp_path / "rows.tfrecord").to_arrow().schema
    single = {"i": pa.int64(), "f": pa.float32(), "b": pa.binary()}
    assert {field.name: field.type for field in found} == MANY | single


def table(rng: random.Random) -> pa.Table:
    """Every type that is written, with nulls."""

    def column(kind: pa.DataType, make: Any) -> pa.Array:
        return pa.array([None if rng.random() < 0.2 else make() for _ in range(100)], kind)

    def several(name: str) -> list[Any]:
        return [one(rng, name) for _ in range(rng.randrange(4))]

    return pa.table(
        {
            "i": column(pa.int64(), lambda: one(rng, "i")),
            "f": column(pa.float32(), lambda: one(rng, "f")),
            "b": column(pa.binary(), lambda: one(rng, "b")),
            "is": column(MANY["is"], lambda: several("i")),
            "fs": column(MANY["fs"], lambda: several("f")),
            "bs": column(MANY["bs"], lambda: several("b")),
            "small": column(pa.int8(), lambda: rng.randrange(-128, 128)),
            "flag": column(pa.bool_(), lambda: rng.random() < 0.5),
            "word": column(pa.string(), lambda: rng.choice(("", "a", "höher"))),
            "words": column(pa.list_(pa.string()), lambda: rng.choices(("", "ü"), k=2)),
        }
    )


@pytest.mark.parametrize("packing", WRITTEN)
def test_tensorflow_reads_what_dml_wrote(tf: Any, packing: str, tmp_path: Path) -> None:
    rows = table(random.Random(11))
    dml.from_arrow(rows, atom_rows=16).write_tfrecords(
        tmp_path / "out", compression=PACKINGS[packing], rows_per_file=30
    )
    paths = sorted(str(path) for path in (tmp_path / "out").glob("part-*"))
    assert len(paths) == 4
    wanted = asked(tf) | {
        "small": tf.io.FixedLenFeature((), tf.int64, -1000),
        "flag": tf.io.FixedLenFeature((), tf.int64, -1000),
        "word": tf.io.FixedLenFeature((), tf.string, b"absent"),
        "words": tf.io.RaggedFeature(tf.string),
    }
    found = theirs(tf, paths, packing, wanted)
    same([stored(filled(row)) for row in rows.to_pylist()], found)


def stored(row: dict[str, Any]) -> dict[str, Any]:
    """A row as TensorFlow has its types: whole numbers and bytes."""
    flag, word = row["flag"], row["word"]
    return row | {
        "small": -1000 if row["small"] is None else row["small"],
        "flag": -1000 if flag is None else int(flag),
        "word": b"absent" if word is None else word.encode(),
        "words": [each.encode() for each in row["words"] or []],
    }


@pytest.mark.parametrize("packing", WRITTEN)
def test_tensors_and_raw_records(tf: Any, packing: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (20, 4, 3), dtype=np.uint8)
    ds = dml.from_numpy({"pixels": pixels})
    ds.write_tfrecords(tmp_path / "tensors", compression=PACKINGS[packing])
    paths = [str(path) for path in sorted((tmp_path / "tensors").glob("part-*"))]
    features = {"pixels": tf.io.FixedLenFeature((4, 3), tf.int64)}
    found = theirs(tf, paths, packing, features)
    assert [row["pixels"] for row in found] == pixels.tolist()

    records = [bytes(rng.bytes(int(n))) for n in rng.integers(0, 3000, 20)]
    raw = dml.from_dict({"record": records})
    raw.write_tfrecords(tmp_path / "raw", raw=True, compression=PACKINGS[packing])
    paths = [str(path) for path in sorted((tmp_path / "raw").glob("part-*"))]
    written = tf.data.TFRecordDataset(paths, compression_type=packing)
    assert list(written.as_numpy_iterator()) == records
