"""Python's own functions of plain values are called here, for one value at a time.

Lifted row functions use these calls where no computation over whole columns is known to give
Python's result to the last bit: logarithms of the C library, text, formats. ``CALLS`` are Python's
own functions, so results are Python's. A row for which a call raises, or returns a value that a
column cannot store, is null: a check finds it, and the row function itself computes the block.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dml.kernels.arrow_ops import compute
from dml.kernels.functions.function import Arrays, Function, Kinds, Params

Inside: TypeAlias = Callable[[np.ndarray], np.ndarray]
GIVES: dict[str, pa.DataType] = {
    "i": pa.int64(),
    "f": pa.float64(),
    "b": pa.bool_(),
    "s": pa.string(),
}
TAKES = (*GIVES.values(), *(pa.list_(kind) for kind in GIVES.values()))
# Functions of ``math`` that are lifted by calling them.
MATH = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "copysign", "cos"),
    *("cosh", "erf", "erfc", "exp", "exp2", "expm1", "fmod", "gamma", "hypot", "lgamma", "log"),
    *("log10", "log1p", "log2", "nextafter", "pow", "remainder", "sin", "sinh", "tan", "tanh"),
    "ulp",
)
# NumPy functions of one float, whose last bits may depend on the length of the array.
NUMPY = (
    *("arccos", "arcsin", "arctan", "cbrt", "cos", "cosh", "exp", "exp2", "expm1", "log", "log10"),
    *("log1p", "log2", "sin", "sinh", "tan", "tanh"),
)
TEXT = (
    *("lower", "upper", "casefold", "capitalize", "title", "swapcase", "strip", "lstrip", "rstrip"),
    *("startswith", "endswith", "removeprefix", "removesuffix", "replace", "zfill", "ljust"),
    *("rjust", "center", "find", "rfind", "index", "rindex", "count", "isdigit", "isalpha"),
    *("isalnum", "isdecimal", "isnumeric", "isspace", "islower", "isupper", "istitle", "isascii"),
    "isidentifier",
)
CUTS = ("split", "rsplit", "partition", "rpartition", "splitlines")


def _piece(cut: Callable[..., Any]) -> Callable[..., Any]:
    return lambda text, place, *rest: cut(text, *rest)[place]


def _pieces(cut: Callable[..., Any]) -> Callable[..., Any]:
    return lambda text, *rest: len(cut(text, *rest))


def _silent(function: Callable[..., Any]) -> Callable[..., float]:
    return lambda x: float(function(x))


def _power(x: float, y: float) -> float:
    return float(x**y)  # raises for a complex result


def _text(method: str) -> Callable[..., Callable[..., Any]]:
    """Make a function that binds a pattern's method to all its arguments but the last, the text."""

    def prepared(pattern: str, flags: int, *rest: Any) -> Callable[[str], Any]:
        return partial(getattr(re.compile(pattern, flags), method), *rest)

    return prepared


def _whether(method: str) -> Callable[..., Callable[..., Any]]:
    def prepared(pattern: str, flags: int) -> Callable[[str], bool]:
        found = getattr(re.compile(pattern, flags), method)
        return lambda text: found(text) is not None

    return prepared


# Functions that are prepared from their parameters, once per column.
PREPARED: dict[str, Callable[..., Callable[..., Any]]] = {
    "sub": _text("sub"),
    "matches": _whether("match"),
    "finds": _whether("search"),
    "fullmatches": _whether("fullmatch"),
}
CALLS: dict[str, Callable[..., Any]] = {
    **{f"math.{name}": getattr(math, name) for name in MATH if hasattr(math, name)},
    **{f"numpy.{name}": _silent(getattr(np, name)) for name in NUMPY},
    **{f"str.{name}": getattr(str, name) for name in TEXT},
    **{f"piece.{name}": _piece(getattr(str, name)) for name in CUTS},
    **{f"pieces.{name}": _pieces(getattr(str, name)) for name in CUTS},
    "str": str,
    "format": format,
    "len": len,
    "join": lambda text, sep, *cut: sep.join(text.split(*cut)),
    "item": lambda values, place: values[place],
    "slice": lambda text, *ends: text[slice(*ends)],
    "add": lambda a, b: a + b,
    "within": lambda text, part: part in text,
    "contains": lambda text, part: part in text,
    "int": int,
    "float": float,
    "round": round,
    "power": _power,
    "crc32": lambda text: zlib.crc32(text.encode()),
    "adler32": lambda text: zlib.adler32(text.encode()),
}


def called(arrays: Arrays, params: Params) -> pa.Array:
    """Call a function per row, and return its results as a column.

    ``params`` are its name, the key of its result type in ``GIVES``, and its further arguments.
    """
    name, letter, *rest = params
    quick = QUICK.get(name)
    if quick is not None and all(array.type in SIZED.get(name, TEXTS) for array in arrays):
        found = quick(*arrays, *rest)
        if found is not None:
            return found
    if name in PREPARED:
        fn, rest = PREPARED[name](*rest), []
    else:
        fn = CALLS[name]
    inside, taken = _inside(arrays, DOMAINS.get(name)), list(arrays)
    if inside is not None:
        taken = [array.filter(pa.array(inside)) for array in arrays]
    with np.errstate(all="ignore"):
        results = _results(map(fn, *map(_plain, taken), *map(repeat, rest)))
    if inside is not None:
        results = _spread(results, inside)
    return _column(results, GIVES[letter])


def _inside(arrays: Arrays, takes: Inside | None) -> np.ndarray | None:
    """Return a mask of the rows for which the function is called, or None for all rows.

    These are rows without nulls, whose numbers are in the function's domain ``takes``, or NaN.
    """
    inside = np.ones(len(arrays[0]), bool)
    for array in arrays:
        if array.null_count:
            inside &= array.is_valid().to_numpy(zero_copy_only=False)
        if takes is not None:
            with np.errstate(all="ignore"):
                numbers = array.to_numpy(zero_copy_only=False)
                inside &= takes(numbers) | np.isnan(numbers)
    return None if inside.all() else inside


def _plain(array: pa.Array) -> list[Any]:
    """Convert an array without nulls to a list of Python values."""
    if pa.types.is_floating(array.type) or pa.types.is_integer(array.type):
        return list(array.to_numpy().tolist())
    return list(array.to_pylist())


def _spread(results: list[Any], inside: np.ndarray) -> list[Any]:
    """Return ``results`` in the rows where ``inside`` is true, and None in all other rows."""
    whole = np.full(len(inside), None, object)
    made = np.empty(len(results), object)
    made[:] = results
    whole[inside] = made
    return list(whole)


def _results(made: Iterator[Any]) -> list[Any]:
    """Collect the results of all rows, with None for each row that raises."""
    out: list[Any] = []
    while True:
        try:
            out.extend(made)  # keeps what was made before an exception
        except Exception:  # noqa: BLE001 - the row function will raise it again
            out.append(None)
        else:
            return out


def _column(results: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(results, kind)
    except (OverflowError, UnicodeError, pa.ArrowException):  # a value that a column cannot store
        return pa.array([_storable_or_none(value, kind) for value in results], kind)


def _storable_or_none(value: Any, kind: pa.DataType) -> Any:
    try:
        pa.scalar(value, kind)
    except (OverflowError, UnicodeError, pa.ArrowException):
        return None
    return value


def _ascii(text: pa.Array) -> bool:
    """Return True if all bytes of a column are ASCII, where Arrow's functions match Python's."""
    return bool(compute().all(compute().string_is_ascii(text), min_count=0).as_py())


# White space of ASCII, as Python strips it.
BLANKS = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"


def _cased(function: str) -> Callable[..., pa.Array | None]:
    def run(text: pa.Array) -> pa.Array | None:
        return getattr(compute(), function)(text) if _ascii(text) else None

    return run


def _stripped(function: str) -> Callable[..., pa.Array | None]:
    def run(text: pa.Array, characters: str | None = None) -> pa.Array | None:
        if characters is None and not _ascii(text):
            return None
        wanted = BLANKS if characters is None else characters
        return getattr(compute(), function)(text, characters=wanted) if wanted else text

    return run


def _length(values: pa.Array) -> pa.Array:
    listed = pa.types.is_list(values.type)
    found = compute().list_value_length(values) if listed else compute().utf8_length(values)
    return found.cast(pa.int64())


def _begins(function: str) -> Callable[..., pa.Array | None]:
    def run(text: pa.Array, part: Any, *ends: Any) -> pa.Array | None:
        if ends or type(part) is not str:
            return None
        return getattr(compute(), function)(text, pattern=part)

    return run


def _replaced(text: pa.Array, old: str, new: str, *count: int) -> pa.Array | None:
    if count or not old:
        return None
    return compute().replace_substring(text, pattern=old, replacement=new)


# More characters than a text may have, and small enough for an index in Arrow.
LONGEST = 2**40


def _sliced(text: pa.Array, *ends: int | None) -> pa.Array | None:
    start, stop, *step = ends
    start = start or 0
    if step != [None] or stop is None or not 0 <= min(start, stop) <= max(start, stop) <= LONGEST:
        return None
    return compute().utf8_slice_codeunits(text, start, max(stop, start))


def _joined(left: pa.Array, right: pa.Array) -> pa.Array:
    return compute().binary_join_element_wise(left, right, "")


TEXTS = (pa.string(),)
# Types besides text that the functions of QUICK accept.
SIZED = {"len": (pa.string(), *TAKES[4:])}
# Domains in which functions of ``math`` do not raise.
DOMAINS: dict[str, Inside] = {
    **dict.fromkeys(("math.log", "math.log2", "math.log10"), lambda x: x > 0.0),
    "math.log1p": lambda x: x > -1.0,
    **dict.fromkeys(("math.sin", "math.cos", "math.tan"), np.isfinite),
    **dict.fromkeys(("math.asin", "math.acos"), lambda x: (x >= -1) & (x <= 1)),
}
# Functions of ``CALLS`` over whole columns; they return None for values for which their results
# might differ from Python's.
QUICK: dict[str, Callable[..., pa.Array | None]] = {
    "str.lower": _cased("ascii_lower"),
    "str.upper": _cased("ascii_upper"),
    "str.strip": _stripped("utf8_trim"),
    "str.lstrip": _stripped("utf8_ltrim"),
    "str.rstrip": _stripped("utf8_rtrim"),
    "len": _length,
    "str.startswith": _begins("starts_with"),
    "str.endswith": _begins("ends_with"),
    "within": _begins("match_substring"),
    "str.replace": _replaced,
    "slice": _sliced,
    "add": _joined,
}


FUNCTIONS = (
    Function(
        "python.call",
        Kinds("a plain value", lambda kind: kind in TAKES),
        lambda _, params: GIVES[params[1]],
        called,
        rest=lambda kind: kind,
    ),
)
