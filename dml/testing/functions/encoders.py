"""The oracle computes encoders in plain Python: one-hot, replacements, lookups."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from dml.errors import SchemaError
from dml.expr.columns.column import Column
from dml.testing.functions.lists import NATURAL, REAL, WHOLE
from dml.testing.functions.meaning import BYTES, TEXT, Draw, FunctionMeaning, Params
from dml.testing.scalars.operations import CastFailed, apply_scalar

INTEGERS = WHOLE | NATURAL
WORDS = {*INTEGERS, *TEXT, *BYTES}
# Mappings that fit only some types of columns.
MAPPINGS: tuple[dict[Any, Any], ...] = (
    {1: 2, 2: 1, 0: 7},
    {1.0: 0.5, 0.0: -1.5, -1.5: None},
    {"a": "b", "": "empty", "the cat": "a"},
    {True: False, False: None},
    {b"a": b"\xff"},
    {dt.datetime(2024, 3, 1): dt.date(2020, 1, 1)},
)
VOCABULARIES: tuple[list[Any], ...] = (["b", "a", "é"], [3, 1, 0], [b"a", b""])


def one_hot(place: int, size: int, _kind: pa.DataType) -> list[int]:
    """Return a vector with a 1 at ``place``, if that is inside."""
    return [int(i == place) for i in range(size)]


def multi_hot(places: list[int | None], size: int, _kind: pa.DataType) -> list[int]:
    """Return a vector with a 1 at each of ``places``."""
    return [int(i in places) for i in range(size)]


def replaced(value: Any, keys: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
    """Return the value mapped to a key, or ``value`` itself if it is no key."""
    mapping = {_alike(value, k): _alike(value, v) for k, v in zip(keys, values, strict=True)}
    return mapping.get(value, value)


def replaced_strictly(
    value: Any,
    keys: tuple[Any, ...],
    values: tuple[Any, ...],
    _kind: pa.DataType,
    default: tuple[Any, ...],
) -> Any:
    """Return the value mapped to a key, else the default, else raise CastFailed."""
    mapping = {_alike(value, k): v for k, v in zip(keys, values, strict=True)}
    if value in mapping:
        return mapping[value]
    if not default:
        raise CastFailed(f"{value!r} is not named")
    return default[0]


def _alike(value: Any, other: Any) -> Any:
    """Convert ``other`` between date and datetime to the type of ``value``."""
    if isinstance(value, dt.datetime) and type(other) is dt.date:
        return dt.datetime(other.year, other.month, other.day)
    return other.date() if type(value) is dt.date and isinstance(other, dt.datetime) else other


def place(word: Any, words: tuple[Any, ...], default: int | None, buckets: int) -> int | None:
    """Return the index of a word, or of unknown words: a hash bucket or the default."""
    if word in words:
        return words.index(word)
    if not buckets:
        return default
    return len(words) + int(apply_scalar("hash", (word,), "u8", (0,))) % buckets


def places(
    words: list[Any], known: tuple[Any, ...], default: int | None, buckets: int
) -> list[int | None]:
    """Return the index of each word."""
    return [None if word is None else place(word, known, default, buckets) for word in words]


# ---------------------------------------------------------------------------------------- the types


def _letters(kind: pa.DataType) -> type:
    """Return the Python type of a type's values."""
    for kinds, python in ((INTEGERS, int), (REAL, float), (TEXT, str), (BYTES, bytes)):
        if kind in kinds:
            return python
    return bool if kind == pa.bool_() else dt.date


def _fit(kind: pa.DataType, values: tuple[Any, ...]) -> None:
    """Raise SchemaError unless the literals are values of the type."""
    allowed = {float: (int, float, bool), int: (int, bool)}.get(_letters(kind), _letters(kind))
    for value in values:
        if value is not None and not isinstance(value, allowed):
            raise SchemaError(f"{value!r} is no {kind}")


def _single(kind: pa.DataType) -> bool:
    return kind in WORDS | REAL | {pa.bool_(), pa.date32(), pa.timestamp("us")}


def _replaced_kind(kind: pa.DataType, params: Params) -> pa.DataType:
    _fit(kind, params[0] + params[1])
    return kind


def _strict_kind(kind: pa.DataType, params: Params) -> pa.DataType:
    _fit(kind, params[0])
    return params[2]


def _vector(_kind: pa.DataType, params: Params) -> pa.DataType:
    return pa.fixed_shape_tensor(params[1], (params[0],))


def _place_kind(kind: pa.DataType, params: Params) -> pa.DataType:
    _fit(kind, params[0])
    return pa.int64()


def _listed(kind: pa.DataType) -> bool:
    listed = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in listed)


def _places_kind(kind: pa.DataType, params: Params) -> pa.DataType:
    _fit(kind.value_type, params[0])
    large = pa.types.is_large_list(kind)
    return pa.large_list(pa.int64()) if large else pa.list_(pa.int64())


def _mapped(draw: Draw, c: Column) -> Column:
    mapping = draw.choice(MAPPINGS)
    if draw.random() < 0.1:
        return c.replace_strict({**mapping, "none": None} if "a" in mapping else mapping)
    words = {key: str(value) for key, value in mapping.items()}
    return draw.choice(
        [
            c.replace_strict(mapping, default=None),
            c.replace_strict(words, default="other"),
            c.replace_strict(dict.fromkeys(mapping, 1), default=2.5, return_dtype="f4"),
        ]
    )


def _looked_up(draw: Draw) -> tuple[list[Any], dict[str, Any]]:
    more = {"buckets": draw.choice([0, 3]), "default": draw.choice([-1, None, 9])}
    return draw.choice(VOCABULARIES), more


def _found(draw: Draw, c: Column) -> Column:
    words, more = _looked_up(draw)
    return c.lookup(words, **more)


def _found_in_list(draw: Draw, c: Column) -> Column:
    words, more = _looked_up(draw)
    return c.list.lookup(words, **more)


MEANINGS = (
    FunctionMeaning(
        ".one_hot",
        lambda kind: kind in INTEGERS,
        _vector,
        one_hot,
        lambda d, c: c.one_hot(d.choice([1, 3]), d.choice(["f4", "u1", "bool"])),
        pa.int64(),
    ),
    FunctionMeaning(
        ".multi_hot",
        lambda kind: _listed(kind) and kind.value_type in INTEGERS,
        _vector,
        multi_hot,
        lambda d, c: c.multi_hot(d.choice([1, 4]), d.choice(["f4", "i8"])),
    ),
    FunctionMeaning(
        ".replace",
        _single,
        _replaced_kind,
        replaced,
        lambda d, c: c.replace(d.choice(MAPPINGS)),
    ),
    FunctionMeaning(".replace_strict", _single, _strict_kind, replaced_strictly, _mapped),
    FunctionMeaning(".lookup", lambda k: k in WORDS, _place_kind, place, _found, pa.string()),
    FunctionMeaning(
        "list.lookup",
        lambda kind: _listed(kind) and kind.value_type in WORDS,
        _places_kind,
        places,
        _found_in_list,
    ),
)
