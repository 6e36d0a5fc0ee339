"""Test the state of a scan: which values it may contain, and that JSON preserves them."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dml.udfs.calling.scan_state import (
    MOST_BYTES,
    MOST_DEPTH,
    NotCarriedError,
    copy_state,
    of_json,
    to_json,
)

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=9),
    st.binary(max_size=9),
    arrays.from_dtype(np.dtype("f4")),
    arrays.from_dtype(np.dtype("M8[us]")),
    arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, max_side=3, min_side=0)),
)
STATES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
    ),
    max_leaves=9,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type and bits, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float):
        return bool(one.hex() == other.hex())
    return bool(one == other)


@pytest.mark.law
@given(STATES)
def test_what_is_carried_comes_back(state: Any) -> None:
    assert same(copy_state(state), state)
    text = json.dumps(to_json(copy_state(state)), allow_nan=False)
    assert same(of_json(json.loads(text)), state)


def test_numbers_at_the_ends() -> None:
    for number in (0, -1, 2**53, -(2**64), -0.0, math.inf, -math.inf, math.nan, 5e-324, 10**5000):
        assert same(of_json(json.loads(json.dumps(to_json(number)))), number)


def test_a_copy_is_nobody_elses() -> None:
    given_: Any = {"a": [1, np.zeros(2)], "b": ({"c": []},)}
    mine: Any = copy_state(given_)
    mine["a"][1][0] = 5
    mine["b"][0]["c"].append(1)
    assert given_["a"][1].tolist() == [0.0, 0.0]
    assert given_["b"] == ({"c": []},)
    read: Any = of_json(to_json(np.zeros(2)))
    read[0] = 1


class Colour(enum.IntEnum):
    RED = 1


class Pair(tuple[int, ...]):
    """A tuple of another type."""


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({1, 2}, "a set"),
        (Colour.RED, "test_scan_state.Colour"),
        (Pair(), "test_scan_state.Pair"),
        (collections.OrderedDict(), "collections.OrderedDict"),
        (dt.date(2020, 1, 1), "datetime.date"),
        ([1, {"x": object()}], "a object"),
        ({1: 2}, "a key of type int"),
        (np.array([None]), "numpy.ndarray of object"),
        (np.zeros(1, [("x", "f4")]), "numpy.ndarray of"),
        (np.ma.zeros(2), "MaskedArray"),
        (1j, "a complex"),
    ],
)
def test_what_cannot_be_carried_is_named(value: Any, named: str) -> None:
    with pytest.raises(NotCarriedError, match=named):
        copy_state(value)


@pytest.mark.parametrize(
    "value",
    [
        *("a" * MOST_BYTES, "ä" * (MOST_BYTES // 2), b"a" * MOST_BYTES),
        *(np.zeros(MOST_BYTES // 8), [0] * (MOST_BYTES // 8)),
    ],
)
def test_what_is_too_large(value: Any) -> None:
    with pytest.raises(NotCarriedError, match="more than 65536 bytes"):
        copy_state(value)
    assert copy_state(np.zeros(MOST_BYTES // 8 - 1)).nbytes == MOST_BYTES - 8
    with pytest.raises(NotCarriedError, match="more than 65536 bytes"):
        copy_state(1 << (8 * MOST_BYTES))


def test_what_holds_itself_or_is_deep() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(NotCarriedError, match=f"nested more than {MOST_DEPTH} deep"):
        copy_state(ring)


@pytest.mark.parametrize("written", [{"set": []}, {}, {"int": "x"}, {"array": 3}, {"float": []}])
def test_what_was_never_written(written: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        of_json(written)
