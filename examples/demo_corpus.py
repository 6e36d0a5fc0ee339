"""This file writes a text corpus that every machine has: Python's own standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

STDLIB = Path(sysconfig.get_paths()["stdlib"])
NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}
TEXT = pa.string()
SCHEMA = pa.schema({"path": TEXT, "package": TEXT, "bytes": pa.int64(), "text": TEXT})


def modules(most_bytes: int) -> Iterator[dict[str, Any]]:
    """Path, package, size and text of the library's modules, about ``most_bytes`` of them."""
    left = most_bytes
    for path in sorted(STDLIB.rglob("*.py")):
        place = path.relative_to(STDLIB)
        if NOT_OURS & set(place.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        yield {
            "path": place.as_posix(),
            "package": place.parts[0].removesuffix(".py"),
            "bytes": path.stat().st_size,
            "text": text,
        }
        left -= len(text)
        if left <= 0:
            return


def write(folder: Path, files: int = 4, most_bytes: int = 24_000_000) -> tuple[int, int]:
    """Write ``files`` Parquet files with checksums on every page; how many rows and bytes."""
    rows = list(modules(most_bytes))
    each = -(-len(rows) // files)
    for number in range(files):
        table = pa.Table.from_pylist(rows[number * each : (number + 1) * each], schema=SCHEMA)
        path = folder / f"part-{number}.parquet"
        pq.write_table(table, path, row_group_size=64, write_page_checksum=True)
    return len(rows), sum(path.stat().st_size for path in folder.iterdir())
