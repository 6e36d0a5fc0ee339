"""Test the stream hash: pinned bytes, and a change for every visible difference."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import Any

import numpy as np
import pytest

from dml.data.stream_hash import batch_bytes, stream_hash

BASE = {"a": np.array([1, 2], "i8"), "b": np.array([0.5, -0.0])}
OTHERS: list[dict[str, Any]] = [
    {"a": np.array([1, 2], "i8")},
    {"a": np.array([1, 2], "i8"), "c": np.array([0.5, -0.0])},
    {"a": np.array([1, 3], "i8"), "b": np.array([0.5, -0.0])},
    {"a": np.array([1, 2], "i4"), "b": np.array([0.5, -0.0])},
    {"a": np.array([1, 2], "i8"), "b": np.array([0.5, 0.0])},
    {"a": np.array([[1, 2]], "i8"), "b": np.array([0.5, -0.0])},
    {"a": np.array([1, 2], object), "b": np.array([0.5, -0.0])},
    {"a": [1, 2], "b": np.array([0.5, -0.0])},
]
VALUES: list[Any] = [
    *(None, True, 1, 1.0, -0.0, 0.0, float("nan"), "1", b"1", "", [], [1], [[1]], {"a": 1}, {}),
    *(dt.datetime(2024, 1, 1), dt.date(2024, 1, 1), np.array([1]), np.array([1.0]), "None"),
]


def test_the_bytes_of_a_batch_are_pinned() -> None:
    bits = bytes.fromhex(
        "0100000000000000"  # one column
        "010000000000000061"  # its name
        "03000000000000003c6934"  # <i4
        "0100000000000000" + "0200000000000000"  # one axis of two
        "0800000000000000" + "0100000002000000"
    )
    assert batch_bytes({"a": np.array([1, 2], "i4")}) == bits
    assert stream_hash([{"a": np.array([1, 2], "i4")}]) == hashlib.sha256(bits).hexdigest()


def test_order_of_columns_and_memory_layout_are_not_seen() -> None:
    turned = {"b": np.array([0.5, -0.0]), "a": np.array([2, 1], "i8")[::-1]}
    swapped = {"b": BASE["b"], "a": BASE["a"].astype(">i8").astype("<i8")}
    assert stream_hash([BASE]) == stream_hash([turned]) == stream_hash([swapped])


def test_whatever_is_seen_changes_it() -> None:
    hashes = [stream_hash([batch]) for batch in (BASE, *OTHERS)]
    assert len(set(hashes)) == len(hashes)
    assert stream_hash([BASE, BASE]) != stream_hash([BASE])
    assert stream_hash([]) != stream_hash([{}])


@pytest.mark.parametrize("inside", [False, True])
def test_values_of_different_type_differ(inside: bool) -> None:
    def held(value: Any) -> Any:
        array = np.empty(1, object)
        array[0] = value
        return array if inside else value

    hashes = [stream_hash([{"x": held(value)}]) for value in VALUES]
    assert len(set(hashes)) == len(hashes)
