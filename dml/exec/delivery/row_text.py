"""A few rows are displayed here: the values of each column below its name and type."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.display import Displayed, Grid, Picture, one_line
from dml.data.block import from_arrow
from dml.data.schema import code_of, shape_of, short
from dml.udfs.calling.python_rows import to_list

LETTERS = 32
NULL = "null"
# The first bytes of files of JPEG, PNG, GIF, WebP, BMP and TIFF.
STARTS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")


class FirstRows(Displayed):
    """The rows of a small table, with numbers aligned right and other values left."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def _parts(self) -> Iterator[str | Grid]:
        table = self.table
        count = f"{table.num_rows:,} row{'s' * (table.num_rows != 1)}"
        if not table.num_columns:
            yield f"({count}), no columns"
            return
        columns = [_cells(field, table.column(i)) for i, field in enumerate(table.schema)]
        texts = {place for place, field in enumerate(table.schema) if not _number(field.type)}
        yield Grid(list(zip(*columns, strict=True)), texts, heads=2)
        yield f"({count})"


def _number(kind: pa.DataType) -> bool:
    return code_of(kind) != "arrow" and not shape_of(kind)


def _cells(field: pa.Field, values: pa.ChunkedArray) -> list[str]:
    """Return the name, type and values of one column as short texts."""
    found = [value for chunk in values.chunks for value in to_list(from_arrow(chunk))]
    return [_cut(one_line(field.name)), _cut(short(field.type)), *map(_cell, found)]


def _cell(value: Any) -> str:
    if value is None:
        return NULL
    text = _cut(one_line(repr(value.tolist()) if isinstance(value, np.ndarray) else str(value)))
    if not _may_be_image(value):
        return text
    from dml.kernels.images.codec import thumbnail  # noqa: PLC0415 - few tables have images

    return Picture(text, partial(thumbnail, value))


def _may_be_image(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 3 and value.dtype == np.uint8 and value.shape[2] in (1, 3, 4)
    return isinstance(value, bytes) and value.startswith(STARTS)


def _cut(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."
