"""A few rows are displayed here: the values of each column below its name and type."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.display import Displayed, Grid, Picture, Sound, one_line
from dml.data.block import from_arrow
from dml.data.schema import code_of, shape_of, short
from dml.udfs.calling.python_rows import to_list

LETTERS = 32
# Most bytes of a sound that a table contains.
MOST_SOUND = 1 << 20
NULL = "null"
# The first bytes of files of JPEG, PNG, GIF, WebP, BMP and TIFF.
STARTS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
# Those of sounds that browsers play, and their types.
SOUNDS = {b"fLaC": "audio/flac", b"OggS": "audio/ogg", b"ID3": "audio/mpeg"}


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
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        value = value["bytes"]  # Hugging Face's struct of bytes and path
    if (mime := _sound_type(value)) is not None:
        return Sound(text, value, mime)
    if not _may_be_image(value):
        return text
    from dml.kernels.images.codec import thumbnail  # noqa: PLC0415 - few tables have images

    return Picture(text, partial(thumbnail, value))


def _sound_type(value: Any) -> str | None:
    """Return the type of a sound that browsers play; None for other values."""
    if not isinstance(value, bytes) or len(value) > MOST_SOUND:
        return None
    if value.startswith(b"RIFF") and value[8:12] == b"WAVE":
        return "audio/wav"
    if len(value) > 1 and value[0] == 0xFF and value[1] & 0xE6 == 0xE2:  # a frame of layer III
        return "audio/mpeg"
    return next((mime for start, mime in SOUNDS.items() if value.startswith(start)), None)


def _may_be_image(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 3 and value.dtype == np.uint8 and value.shape[2] in (1, 3, 4)
    return isinstance(value, bytes) and value.startswith(STARTS)


def _cut(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."
