"""The state that a ``scan`` carries from row to row is validated here, and serialized as JSON.

A saved position contains the state, and positions are never unpickled. So a state must be None, a
boolean, number, text, bytes, list, tuple, dict with text keys, or a NumPy scalar or array, and no
instance of a subclass.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np

# Maximum size of a state: a number or place counts 8 bytes, text, bytes and arrays their length.
MOST_BYTES = 64 << 10
MOST_DEPTH = 32
PLACE_BYTES = 8
# JSON parsers of other libraries keep integers of up to this many bits exact.
EXACT_BITS = 53


class NotCarriedError(Exception):
    """A value that cannot be part of a state; ``why`` is the reason and ``try_`` the advice."""

    def __init__(self, what: str, why: str, try_: str) -> None:
        super().__init__(what)
        self.what, self.why, self.try_ = what, why, try_


class _Copy:
    """Copies one value and counts its bytes in ``nbytes``."""

    def __init__(self) -> None:
        self.nbytes = 0

    def of(self, value: Any, depth: int) -> Any:
        copy = COPIES.get(type(value))
        if copy is None:
            copy = _numpy if isinstance(value, np.generic) else _refused
        if depth > MOST_DEPTH:
            raise NotCarriedError(
                f"a state that is nested more than {MOST_DEPTH} deep",
                why="a state is written into every saved position",
                try_="a flat dict or list",
            )
        self.nbytes += PLACE_BYTES
        made = copy(self, value, depth + 1)
        if self.nbytes > MOST_BYTES:
            raise NotCarriedError(
                f"a state of more than {MOST_BYTES} bytes",
                why="a state is written into every saved position, which stays small",
                try_="less of it: counts, sums, the last few values",
            )
        return made


def _same(_: _Copy, value: Any, _depth: int) -> Any:
    return value


def _int(copy: _Copy, value: int, _depth: int) -> int:
    copy.nbytes += value.bit_length() >> 3
    return value


def _text(copy: _Copy, value: str, _depth: int) -> str:
    copy.nbytes += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return value


def _bytes(copy: _Copy, value: bytes, _depth: int) -> bytes:
    copy.nbytes += len(value)
    return value


def _dict(copy: _Copy, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
    for key in value:
        if type(key) is not str:
            raise NotCarriedError(
                f"a state with a key of type {type(key).__name__}",
                why="keys of dicts are text in a saved position",
                try_="str(key), or a list of pairs",
            )
    return {copy.of(key, depth): copy.of(each, depth) for key, each in value.items()}


def _numpy(copy: _Copy, value: Any, depth: int) -> Any:
    if value.dtype.hasobject or value.dtype.names is not None:
        return _refused(copy, value, depth)
    copy.nbytes += value.nbytes
    return value.copy()


def _refused(_: _Copy, value: Any, _depth: int) -> Any:
    kind = type(value)
    detail = f" of {value.dtype}" if isinstance(value, np.ndarray | np.generic) else ""
    raise NotCarriedError(
        f"a state with a {kind.__module__}.{kind.__qualname__}{detail}".replace("builtins.", ""),
        why="saved positions hold numbers, text, bytes, lists, tuples, dicts and arrays of them",
        try_="a list or dict of what it is made of",
    )


COPIES: dict[type, Callable[[_Copy, Any, int], Any]] = {
    type(None): _same,
    bool: _same,
    float: _same,
    int: _int,
    str: _text,
    bytes: _bytes,
    list: lambda copy, value, depth: [copy.of(each, depth) for each in value],
    tuple: lambda copy, value, depth: tuple([copy.of(each, depth) for each in value]),
    dict: _dict,
    np.ndarray: _numpy,
}


def copy_state(value: Any) -> Any:
    """Return a private copy of ``value``; raise NotCarriedError if it cannot be part of a state."""
    return _Copy().of(value, 0)


def to_json(value: Any) -> Any:
    """Return a state as plain JSON, from which ``of_json`` reads exactly the same value."""
    if value is None or isinstance(value, bool) or type(value) is str:
        return value
    if type(value) is int and value.bit_length() <= EXACT_BITS:
        return value
    if type(value) is list:
        return [to_json(each) for each in value]
    word, written = WRITTEN.get(type(value), ("scalar", _raw))
    return {word: written(value)}


def _raw(value: Any) -> list[Any]:
    return [value.dtype.str, list(value.shape), _base64(value.tobytes())]


def of_json(written: Any) -> Any:
    """Return the state from its JSON form; raise KeyError, TypeError or ValueError if invalid."""
    if isinstance(written, list):
        return [of_json(each) for each in written]
    if not isinstance(written, dict):
        return written
    ((word, given),) = written.items()
    return READ[word](given)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _array(given: Any) -> Any:
    dtype, shape, data = given
    flat = np.frombuffer(base64.b64decode(data, validate=True), np.dtype(dtype))
    return flat.reshape(shape).copy()


WRITTEN: dict[type, tuple[str, Callable[[Any], Any]]] = {
    float: ("float", lambda value: "nan" if math.isnan(value) else value.hex()),
    int: ("int", hex),
    bytes: ("bytes", _base64),
    tuple: ("tuple", lambda value: [to_json(each) for each in value]),
    dict: ("dict", lambda value: [[key, to_json(each)] for key, each in value.items()]),
    np.ndarray: ("array", _raw),
}
READ: dict[str, Callable[[Any], Any]] = {
    "float": float.fromhex,
    "int": lambda given: int(given, 16),
    "bytes": lambda given: base64.b64decode(given, validate=True),
    "tuple": lambda given: tuple([of_json(each) for each in given]),
    "dict": lambda given: {key: of_json(each) for key, each in given},
    "array": _array,
    "scalar": lambda given: _array(given)[()],
}
