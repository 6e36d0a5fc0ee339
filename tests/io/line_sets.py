"""Write small files of rows for tests, plain and compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from dml.errors import SourceError
from dml.io.source import Source
from dml.testing.source_laws import everything

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write ``files`` under their names, packed as the names say."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PACK[path.suffix if path.suffix in PACK else ""](data))
    return folder


def refusal(source: Callable[[], Source]) -> SourceError:
    """The error of making or reading a source."""
    with pytest.raises(SourceError) as caught:
        everything(source())
    return caught.value
