"""Test that invalid Parquet input raises an error that names the file and the defect."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

import dml
from dml.base.fingerprint import digest
from dml.errors import SourceError
from dml.expr.columns.column import col
from dml.io.parquet.parquet import read_parquet
from dml.testing.source_laws import everything


def table(n: int = 900) -> pa.Table:
    rng = np.random.default_rng(3)
    return pa.table(
        {
            "i": rng.integers(0, 100, n),
            "f": pa.array(rng.random(n), mask=rng.random(n) < 0.2),
            "s": [f"v{k}" for k in rng.integers(0, 50, n)],
            "l": [[k] * (k % 3) for k in rng.integers(0, 9, n).tolist()],
        }
    )


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """A file of three row groups whose pages have checksums."""
    path = tmp_path / "data" / "part-0.parquet"
    path.parent.mkdir()
    pq.write_table(table(), path, row_group_size=300, write_page_checksum=True)
    return path


def footer_start(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def read_all(path: Path) -> bytes:
    return digest(*everything(read_parquet(path, atom_rows=100)).to_arrow().columns)


def refusal(path: object, **options: object) -> SourceError:
    with pytest.raises(SourceError) as caught:
        everything(read_parquet(path, **options))  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) <= 4
    return caught.value


def test_missing_paths_say_what_is_there(checked: Path) -> None:
    error = refusal(str(checked.parent / "part-O.parquet"))
    assert error.what.endswith("part-O.parquet does not exist")
    assert error.why == f"the nearest folder that exists is {checked.parent}; it has part-0.parquet"
    assert error.try_ == f"did you mean {checked}?"
    far = refusal(str(checked.parent / "no" / "such" / "x.parquet"))
    assert f"the nearest folder that exists is {checked.parent};" in far.why
    assert "fsspec knows no 'nos3'" in refusal("nos3://bucket/x.parquet").why


def test_empty_places(tmp_path: Path, checked: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty").why == "it is empty"
    (tmp_path / "empty" / "notes.txt").write_text("words")
    assert refusal(tmp_path / "empty").why == "it has notes.txt"
    assert "no file matches" in refusal(str(tmp_path / "*.parquet")).what
    assert "no paths were given" in refusal([]).what
    assert "is listed twice" in refusal([checked, checked.parent]).what
    with pytest.raises(SourceError, match="3 is not a path"):
        read_parquet([3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("damage", "what", "why"),
    [
        (lambda b: b[:0], "is empty", "0 bytes"),
        (lambda b: b"PK\x03\x04" + b[4:], "is not a Parquet file", "begins with b'PK"),
        (lambda b: b[:4], "is truncated", "4 bytes"),
        (lambda b: b[:-1], "is truncated", "ends with"),
        (lambda b: b[: len(b) // 2], "is truncated", "ends with"),
        (lambda b: b[:-8] + b"\xff\xff\xff\x7fPAR1", "footer of", "cannot be in"),
        (lambda b: b[: footer_start(b)] + bytes(99) + b[footer_start(b) + 99 :], "footer of", ""),
        (lambda b: b[:-4] + b"PARE", "is encrypted", "dml reads no keys"),
    ],
)
def test_damaged_as_a_whole(
    checked: Path, damage: Callable[[bytes], bytes], what: str, why: str
) -> None:
    checked.write_bytes(damage(checked.read_bytes()))
    error = refusal(checked)
    assert what in error.what
    assert str(checked) in error.what
    assert why in error.why


class Keys(encryption.KmsClient):  # type: ignore[misc]
    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)


@pytest.mark.parametrize("column", ["a", "b"])
def test_an_encrypted_column_is_not_called_damaged(tmp_path: Path, column: str) -> None:
    path = tmp_path / "keyed.parquet"
    factory, keys = encryption.CryptoFactory(lambda _: Keys()), {"k2": ["b"]}
    keyed = encryption.EncryptionConfiguration(
        footer_key="k1", column_keys=keys, plaintext_footer=True
    )
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    made = factory.file_encryption_properties(encryption.KmsConnectionConfig(), keyed)
    with pq.ParquetWriter(path, table.schema, encryption_properties=made) as writer:
        writer.write_table(table)
    ds = dml.read_parquet(path).select(column)
    if column == "a":
        assert ds.to_arrow() == table.select(["a"])
        return
    with pytest.raises(SourceError) as caught:
        list(ds)
    assert caught.value.what == f"{path} is encrypted"
    assert caught.value.why == "column 'b' is encrypted, and dml reads no keys"
    assert "pyarrow" in caught.value.try_


def test_a_flipped_bit_is_found_by_file_row_group_and_column(checked: Path) -> None:
    data = bytearray(checked.read_bytes())
    chunk = pq.read_metadata(checked).row_group(1).column(1)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start + chunk.total_compressed_size // 2] ^= 16
    checked.write_bytes(data)
    error = refusal(checked)
    assert error.what == "column 'f' of row group 1 of part-0.parquet is damaged"
    assert error.at == f"{checked}, rows 300 to 599"
    assert "CRC checksum verification failed" in error.why
    source = read_parquet(checked)
    assert everything(source, ["i", "s"]).n == 900  # the other columns can still be read
    assert next(source.read(source.unit(0), ("f",))).n == 300


@pytest.mark.law
def test_a_damaged_footer_gives_a_typed_error_or_rows(checked: Path, *, whole: bool) -> None:
    predicate = ((col("i") > 50).value, (col("s") == "v7").value, (col("f") < 0.5).value)
    data = checked.read_bytes()
    drawn = random.Random(7)
    for _ in range(2000 if whole else 60):
        bad = bytearray(data)
        bad[drawn.randrange(footer_start(data), len(data))] ^= 1 << drawn.randrange(8)
        checked.write_bytes(bad)
        try:
            source = read_parquet(checked, atom_rows=100)
            for index in range(source.unit_count):
                source.may_match(source.unit(index), predicate)
                source.working_bytes(source.unit(index), source.schema.names)
            read_all(checked)
        except SourceError as error:
            if "part-0.parquet" not in str(error):
                raise


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"x": [1], "y": ["a"], "z": [1]}, "a.parquet has no column 'z', b.parquet has"),
        ({"x": [1]}, "b.parquet has no column 'y', a.parquet has"),
        ({"x": [1.5], "y": ["a"]}, "'x' is int64 in a.parquet and double in b.parquet"),
    ],
)
def test_changing_schemas(tmp_path: Path, other: dict[str, list[object]], message: str) -> None:
    pq.write_table(pa.table({"x": [1], "y": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(other), tmp_path / "b.parquet")
    error = refusal(tmp_path)
    assert message in error.what
    assert str(tmp_path / "b.parquet") in error.at


def test_nullability_and_dictionaries_do_not_change_a_schema(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": ["a"]}), tmp_path / "a.parquet")
    coded = pa.table({"s": pa.array(["b"]).dictionary_encode()})
    pq.write_table(coded, tmp_path / "b.parquet")
    strict = pa.schema([pa.field("s", pa.string(), nullable=False)])
    pq.write_table(pa.table({"s": ["c"]}, schema=strict), tmp_path / "c.parquet")
    assert everything(read_parquet(tmp_path)).to_arrow()["s"].to_pylist() == ["a", "b", "c"]


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    pq.write_table(pa.table([[1], [2]], ["x", "x"]), tmp_path / "a.parquet")
    assert "two columns called 'x'" in refusal(tmp_path).what
