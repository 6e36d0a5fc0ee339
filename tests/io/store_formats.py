"""A little data in every file format, for tests of object stores."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dml.io.arrow.arrow import read_arrow
from dml.io.binary.binary import read_binary_files
from dml.io.csv.csv import read_csv
from dml.io.files.files import FileSource
from dml.io.json.json import read_json
from dml.io.numpy.npy import read_numpy
from dml.io.parquet.parquet import read_parquet
from dml.io.text.text import read_text
from tests.io.line_sets import PACK, written

URL = "counted://bucket/data"
WORDS = [f"word {i}" for i in range(200)]
LINES = "".join(f"{word}\n" for word in WORDS).encode()
TABLE = pa.table({"n": range(200), "s": WORDS})
CSV = b"n,s\n" + b"".join(f"{i},{word}\n".encode() for i, word in enumerate(WORDS))
JSON = "".join(json.dumps({"n": i, "s": word}) + "\n" for i, word in enumerate(WORDS)).encode()

Made = tuple[Path, Callable[..., FileSource]]


def arrow_bytes() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=70)
    return bytes(sink.getvalue())


def parquet_bytes() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink, row_group_size=90)
    return bytes(sink.getvalue())


def array_bytes(*, packed: bool = False, fortran: bool = False) -> bytes:
    """Rows of two axes, in one of the ways in which NumPy stores them."""
    values, sink = np.arange(600, dtype=np.int16).reshape(200, 3), io.BytesIO()
    if packed:
        np.savez_compressed(sink, values=values, s=np.array(WORDS))
    else:
        np.save(sink, np.asfortranarray(values) if fortran else values)
    return sink.getvalue()


def packed(name: str, data: bytes) -> dict[str, bytes]:
    return {f"{i}{name}{ending}": data for i, ending in enumerate(PACK)}


FORMATS: dict[str, tuple[Callable[..., FileSource], dict[str, bytes]]] = {
    "parquet": (read_parquet, {"a.parquet": parquet_bytes(), "b/c.parquet": parquet_bytes()}),
    "arrow": (read_arrow, {"a.arrow": arrow_bytes(), "b/c.arrow": arrow_bytes()}),
    "npy": (read_numpy, {"a.npy": array_bytes(), "b/c.npy": array_bytes()}),
    "folded": (read_numpy, {"a.npy": array_bytes(), "c.npy": array_bytes(fortran=True)}),
    "npz": (read_numpy, {"a.npz": array_bytes(packed=True), "b/c.npz": array_bytes(packed=True)}),
    "csv": (read_csv, packed(".csv", CSV)),
    "json": (read_json, packed(".jsonl", JSON)),
    "text": (read_text, packed(".txt", LINES)),
    "bytes": (read_binary_files, {"a": LINES, "b/c": b"", "b/d.gz": CSV}),
}


@pytest.fixture(params=FORMATS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """A folder of files of one format, and what reads it."""
    read, files = FORMATS[request.param]
    return written(tmp_path / "data", files), read
