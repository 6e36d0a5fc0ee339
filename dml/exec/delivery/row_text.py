"""Format a few rows as text: the values of each column below its name and type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.block import from_arrow
from dml.data.schema import code_of, shape_of, short
from dml.udfs.calling.python_rows import to_list

LETTERS = 32
NULL = "null"


def drawn(table: pa.Table) -> str:
    """Return the rows of ``table`` as text, with numbers aligned right and other values left."""
    if not table.num_columns:
        return f"{_rows(table.num_rows)}, no columns\n"
    columns = [_column(field, table.column(i)) for i, field in enumerate(table.schema)]
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join([*lines, _rows(table.num_rows), ""])


def _rows(count: int) -> str:
    return f"({count:,} row{'s' * (count != 1)})"


def _column(field: pa.Field, values: pa.ChunkedArray) -> list[str]:
    """Return the name, type and values of one column as texts of equal width."""
    found = [value for chunk in values.chunks for value in to_list(from_arrow(chunk))]
    cells = [_cut(field.name), _cut(short(field.type)), *map(_cell, found)]
    width = max(map(len, cells))
    number = code_of(field.type) != "arrow" and not shape_of(field.type)
    return [cell.rjust(width) if number else cell.ljust(width) for cell in cells]


def _cell(value: Any) -> str:
    if value is None:
        return NULL
    text = repr(value.tolist()) if isinstance(value, np.ndarray) else str(value)
    return _cut(text.encode("unicode_escape").decode() if not text.isprintable() else text)


def _cut(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."
