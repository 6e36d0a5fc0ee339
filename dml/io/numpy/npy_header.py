"""Headers of NumPy's .npy format are parsed and validated here."""

from __future__ import annotations

import ast
import contextlib
import math
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"\x93NUMPY"
# NumPy writes some 100 bytes; a structured type with many fields has more.
MOST_HEADER = 64 << 10
MOST_AXES = 32
ATTEMPTS = 20  # at parsing a header in parallel with other threads
KEYS = {"descr", "fortran_order", "shape"}


class NpyError(Exception):
    """The bytes are not an array, or are an array that dml does not read."""


class Header(NamedTuple):
    """Type and shape of an array in a file, and the byte offset of its first value."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def check_size(self, size: int) -> None:
        """Raise NpyError unless header and values together have ``size`` bytes."""
        if self.start + self.nbytes != size:
            there = size - self.start
            raise NpyError(f"it has {there} bytes of values, and {self.nbytes} belong")


def header(data: bytes) -> Header:
    """Parse the header of an array; raise NpyError if it is invalid or has Python objects."""
    if data[:6] != MAGIC or len(data) < 12:
        raise NpyError(f"it begins with {data[:6]!r}, arrays begin with {MAGIC!r}")
    wide = data[6] > 1
    start = 12 if wide else 10
    size = int.from_bytes(data[8:start], "little")
    if data[6] not in (1, 2, 3) or size > MOST_HEADER:
        raise NpyError(f"its header is of version {data[6]} and has {size} bytes")
    if start + size > len(data):
        raise NpyError("its header is cut off")
    try:
        said = _literal(data[start : start + size].decode("latin-1" if data[6] < 3 else "utf-8"))
        dtype = np.lib.format.descr_to_dtype(said["descr"])
        shape, fortran = said["shape"], said["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise NpyError(f"its header is damaged: {error}") from None
    if said.keys() != KEYS or not _is_shape(shape) or not isinstance(fortran, bool):
        raise NpyError(f"its header is damaged: {said!r:.80}")
    if dtype.hasobject:
        raise NpyError(
            "it holds Python objects, which only pickle could read, and that may run code"
        )
    return Header(dtype, shape, fortran, start + size)


def _literal(text: str) -> Any:
    """Evaluate ``text`` as a Python literal.

    Python 3.11 sometimes raises SystemError if two threads parse at once (CPython's issue 106905),
    whatever the text is; the call is then repeated.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(SystemError):
            return ast.literal_eval(text)
    return ast.literal_eval(text)


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, tuple) or len(shape) > MOST_AXES:
        return False
    return all(type(n) is int and 0 <= n < 1 << 62 for n in shape)


def array_in(data: bytes) -> np.ndarray:
    """Return the array that ``data`` encodes, without a copy; raise NpyError if there is none."""
    found = header(data)
    found.check_size(len(data))
    flat = np.frombuffer(data, found.dtype, math.prod(found.shape), found.start)
    return flat.reshape(found.shape, order="F" if found.fortran else "C")
