"""Column encoders compute one-hot and multi-hot vectors, normalize, and map values to indices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from dml.base.user_line import door
from dml.data.schema import CODES, data_type
from dml.errors import PlanError, SchemaError
from dml.expr.columns.literal import plain, whole
from dml.expr.columns.namespaces.namespace import Namespace
from dml.expr.columns.promotion import TypedRegister, common_type, natural
from dml.expr.columns.value import C, Value

# Vectors and buckets are not longer than this: a block of rows has to fit into memory.
WIDEST = 1 << 20


class Encoders(Namespace[C]):
    """The implementation of the encoders of ``Column``."""

    __slots__ = ()

    @door
    def one_hot(self, size: object, dtype: object) -> C:
        """Check the arguments of ``Column.one_hot``, and return its result."""
        return self._apply(".one_hot", whole("size of one_hot", size, 1, WIDEST), _number(dtype))

    @door
    def multi_hot(self, size: object, dtype: object) -> C:
        """Check the arguments of ``Column.multi_hot``, and return its result."""
        return self._apply(
            ".multi_hot", whole("size of multi_hot", size, 1, WIDEST), _number(dtype)
        )

    @door
    def normalize(self, mean: Any, std: Any) -> C:
        """Check the arguments of ``Column.normalize``, and return its result."""
        made: C = (self._column - _moment("mean", mean)) / _moment("std", std)
        return made

    @door
    def replace(self, mapping: Any) -> C:
        """Check the arguments of ``Column.replace``, and return its result."""
        return self._apply(".replace", *_pairs("replace", mapping))

    @door
    def replace_strict(self, mapping: Any, default: Any, return_dtype: Any) -> C:
        """Check the arguments of ``Column.replace_strict``, and return its result."""
        keys, values = _pairs("replace_strict", mapping)
        other = () if default is ... else (plain(default),)
        kind = _common((*values, *other)) if return_dtype is None else data_type(return_dtype)
        return self._apply(".replace_strict", keys, values, kind, other)

    @door
    def lookup(self, vocabulary: Any, default: Any, buckets: object) -> C:
        """Check the arguments of ``Column.lookup``, and return its result."""
        return self._apply(".lookup", *looked_up(vocabulary, default, buckets))


def looked_up(vocabulary: Any, default: Any, buckets: object) -> tuple[Any, ...]:
    """Return validated parameters of ``lookup``: words, index of other values, bucket count."""
    if isinstance(vocabulary, str | bytes | Mapping) or not isinstance(vocabulary, Iterable):
        raise PlanError(
            f"lookup needs a list of words, got {vocabulary!r}",
            why=f"it is of type {type(vocabulary).__name__}",
            try_='.lookup(["a", "b"])',
        )
    words = tuple(plain(word) for word in vocabulary)
    _distinct("lookup", words)
    other = None if default is None else whole("default of lookup", default, -(1 << 63), 1 << 62)
    return words, other, whole("buckets of lookup", buckets, 0, 1 << 62)


def _pairs(verb: str, mapping: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    if not isinstance(mapping, Mapping) or not mapping:
        raise PlanError(
            f"{verb} needs a dict from value to value, got {mapping!r}",
            why="it says what each value becomes",
            try_=f'.{verb}({{"a": "b"}})',
        )
    keys = tuple(plain(key) for key in mapping)
    _distinct(verb, keys)
    return keys, tuple(plain(value) for value in mapping.values())


def _distinct(verb: str, keys: tuple[Any, ...]) -> None:
    """Raise PlanError for duplicate keys, and for keys that equal no value (None, NaN)."""
    odd = [k for k in keys if k is None or (isinstance(k, float) and math.isnan(k))]
    if odd or len(set(keys)) < len(keys):
        raise PlanError(
            f"{verb} cannot look for {odd[0]!r}" if odd else f"{verb} is given a value twice",
            why="no value is equal to it" if odd else "each value has one place",
            try_=".fill_null(...) or .fill_nan(...) before" if odd else "each value once",
        )


def _common(values: tuple[Any, ...]) -> pa.DataType:
    kind = common_type(
        [TypedRegister(-1, natural(v), v, is_weak=True) for v in values], Value("mapping")
    )
    if pa.types.is_null(kind):
        raise SchemaError(
            "replace_strict gives nothing but nulls",
            why="their type is not known",
            try_='return_dtype="int64"',
        )
    return kind


def _number(word: object) -> pa.DataType:
    kind = data_type(word)
    if kind not in CODES:
        raise SchemaError(
            f"a vector of zeros and ones cannot be {kind}",
            why="it holds numbers or booleans",
            try_='dtype="float32"',
        )
    return kind


def _moment(name: str, value: Any) -> float:
    """Return a parameter of ``normalize`` as a float, so that integer columns become floats."""
    found = plain(value)
    if type(found) not in (int, float):
        raise PlanError(
            f"normalize needs a number as {name}, got {value!r}",
            why=f"it is of type {type(value).__name__}",
            try_='(col("x") - col("m")) / col("s") where columns say it',
        )
    if name == "std" and not 0 < found < math.inf:
        raise PlanError(
            f"normalize divides by std, which is {found!r}",
            why="a standard deviation is above zero",
            try_="std=1.0 leaves the scale as it is",
        )
    return float(found)
