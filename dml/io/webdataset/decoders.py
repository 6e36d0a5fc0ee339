"""Files of samples are decoded by the suffix of their names; nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dml.data.block import to_arrow
from dml.errors import SourceError
from dml.io.column_store import whole
from dml.io.files.lines import MOST_BYTES, RowError
from dml.io.inferred_types import from_list
from dml.io.json.json import check_depth, check_numbers, guessed, parsed
from dml.io.numpy.npy_header import NpyError, array_in
from dml.kernels.vec import Vec

Files: TypeAlias = "Sequence[bytes | None]"  # the file of one suffix in every row
# Decodes files to a column of the given type, or of their own type for None.
Decoder: TypeAlias = Callable[[Files, str, "pa.DataType | None"], pa.Array]

DIGITS = 20


def decoder_of(suffix: str, *, decode: bool) -> Decoder:
    """Return the decoder for ``suffix``: unchanged bytes if unknown, or if not ``decode``."""
    return DECODERS.get(suffix.rpartition(".")[2], as_bytes) if decode else as_bytes


def as_bytes(files: Files, _: str, __: pa.DataType | None) -> pa.Array:
    """Return the files as unchanged bytes."""
    if sum(len(file) for file in files if file is not None) >= MOST_BYTES:
        raise RowError("an atom has more than 2 GiB of one column", 0, "a smaller atom_rows=")
    return pa.array(files, pa.binary())


def as_text(files: Files, name: str, _: pa.DataType | None) -> pa.Array:
    """Decode files as UTF-8; raise RowError for invalid bytes."""
    for row, file in enumerate(files):
        try:
            if file is not None:
                file.decode()
        except UnicodeDecodeError as error:
            raise RowError(f".{name} is no UTF-8: {error}", row, "decode=False") from None
    return as_bytes(files, name, None).cast(pa.string())


def as_number(files: Files, name: str, _: pa.DataType | None) -> pa.Array:
    """Decode files as integers in decimal digits; raise RowError for anything else."""
    found: list[int | None] = []
    for row, file in enumerate(files):
        digits = (b"0" if file is None else file).strip()
        sign = digits[:1] in (b"-", b"+")
        value = int(digits) if digits[sign:].isdigit() and len(digits) < DIGITS + 1 else None
        if value is None or not -(1 << 63) <= value < 1 << 63:
            why = f".{name} is {file!r:.60}, and an int64 is expected"
            raise RowError(why, row, "decode=False")
        found.append(None if file is None else value)
    return pa.array(found, pa.int64())


def as_json(files: Files, name: str, kind: pa.DataType | None) -> pa.Array:
    """Decode files as JSON values, of type ``kind`` or an inferred type, as ``read_json`` does."""
    lines = [_line(file, name, row) for row, file in enumerate(files)]
    data = b"".join(lines)
    if kind is None:
        check_depth(data)
        kind = guessed(data, {})[name] if any(files) else pa.null()
    table = parsed(data, {name: kind}, "error")
    check_numbers(data, table, ())
    return whole(table.column(name))


def _line(file: bytes | None, name: str, row: int) -> bytes:
    """Encode one value as a line of JSON lines under the key ``name``."""
    if file is None:
        return b"{}\n"
    try:
        value = {name: json.loads(file, parse_constant=_no_number)}
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (ValueError, RecursionError) as error:
        raise RowError(f".{name} is no JSON: {error}", row, "decode=False") from None


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def as_arrays(files: Files, name: str, kind: pa.DataType | None) -> pa.Array:
    """Decode .npy arrays: tensors if dtype and shape are equal, lists if arrays have one axis."""
    arrays = []
    for row, file in enumerate(files):
        try:
            arrays.append(None if file is None else _native(array_in(file)))
        except NpyError as error:
            raise RowError(f".{name} is no array: {error}", row, "decode=False") from None
    arrays = [a[()] if a is not None and a.ndim == 0 else a for a in arrays]
    try:
        found, stored = from_list(arrays, name, kind)
    except SourceError as error:
        raise RowError(f".{name}: {error.what}: {error.why}", None, "decode=False") from None
    if isinstance(stored, Vec):
        return to_arrow(stored, found)
    return whole(stored) if isinstance(stored, pa.ChunkedArray) else stored


def _native(array: np.ndarray) -> np.ndarray:
    """Convert an array to the byte order of this machine."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(("txt", "text", "transcript"), as_text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), as_number),
    **dict.fromkeys(("json", "jsn"), as_json),
    "npy": as_arrays,
}
