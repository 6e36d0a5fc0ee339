"""A stream hash is one SHA-256 over everything that a caller can observe of a delivered stream.

Per batch, in order: the number of columns, then per column in order of name: its name, dtype, shape
and bytes. Values that are no plain numbers (object arrays, and rows delivered one by one) are
hashed as type and length, then bytes. Nothing else enters: no column order, memory layout or time.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

NAN = struct.pack("<d", float("nan"))


def stream_hash(batches: Iterable[Mapping[str, Any]]) -> str:
    """Return the SHA-256, in hex digits, of batches (dicts of arrays) or rows (dicts of values)."""
    whole = hashlib.sha256()
    for batch in batches:
        whole.update(batch_bytes(batch))
    return whole.hexdigest()


def batch_bytes(batch: Mapping[str, Any]) -> bytes:
    """Serialize all that a caller can observe of one batch or row; equal bytes, equal batches."""
    parts = [_count(len(batch))]
    for name in sorted(batch):
        parts.append(_sized(name.encode()))
        parts.extend(_column(batch[name]))
    return b"".join(parts)


def _column(values: Any) -> Iterator[bytes]:
    if not isinstance(values, np.ndarray):
        yield _sized(b"row")
        yield _value(values)
        return
    yield _sized(values.dtype.str.encode())
    yield _count(values.ndim) + b"".join(map(_count, values.shape))
    if values.dtype == object:
        for value in values.ravel():
            yield _value(value)
    else:
        little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        yield _sized(little.tobytes())


def _value(value: Any) -> bytes:
    """Serialize a value with its type and length in front."""
    if isinstance(value, np.ndarray):
        return _typed("ndarray", b"".join(_column(value)))
    if isinstance(value, Mapping):
        items = (_value(key) + _value(item) for key, item in value.items())
        return _typed("dict", _count(len(value)) + b"".join(items))
    if isinstance(value, list | tuple):
        return _typed("list", _count(len(value)) + b"".join(map(_value, value)))
    return _typed(type(value).__name__, _plain(value))


def _plain(value: Any) -> bytes:
    if isinstance(value, float):
        return NAN if value != value else struct.pack("<d", value)  # noqa: PLR0124 - a NaN
    if isinstance(value, bytes):
        return value
    if isinstance(value, dt.date | dt.time):
        return value.isoformat().encode()
    if value is None or isinstance(value, bool | int | str):
        return str(value).encode("utf-8", "surrogatepass")
    return repr(value).encode()


def _typed(kind: str, content: bytes) -> bytes:
    return _sized(kind.encode()) + _sized(content)


def _sized(content: bytes) -> bytes:
    return _count(len(content)) + content


def _count(n: int) -> bytes:
    return struct.pack("<Q", n)
