"""Compare the index of keys with a dict: tables, hashes, colliding hashes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels.rows import key_matching
from dml.kernels.rows.key_matching import KeyIndex, Keys, keys_of
from dml.kernels.vec import Vec, from_arrow

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)]),
    pa.uint64(): st.integers(0, 3) | st.just(2**64 - 1),
    pa.float64(): st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1e300]),
    pa.bool_(): st.booleans(),
    pa.string(): st.text("ab\0é", max_size=3),
    pa.time64("us"): st.times(),
    pa.date32(): st.dates(),
    pa.null(): st.none(),
}


@st.composite
def columns(draw: st.DrawFn, most: int = 2) -> tuple[list[pa.Array], list[pa.Array]]:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=0, max_size=most))
    sides = []
    for _ in range(2):
        n = draw(st.integers(0, 9))
        cells = [draw(st.lists(VALUES[k] | st.none(), min_size=n, max_size=n)) for k in kinds]
        sides.append([pa.array(c, k) for c, k in zip(cells, kinds, strict=True)] or [n])
    return sides[0], sides[1]


def keys(arrays: list[Any], *, nulls_equal: bool) -> Keys:
    if isinstance(arrays[0], int):
        return keys_of([], arrays[0], nulls_equal=nulls_equal)
    kernel = [
        from_arrow(a) if pa.types.is_primitive(a.type) and not pa.types.is_temporal(a.type) else a
        for a in (each.slice(0) for each in arrays)
    ]
    return keys_of(kernel, len(arrays[0]), nulls_equal=nulls_equal)


def plain(arrays: list[Any]) -> list[tuple[Any, ...]]:
    if isinstance(arrays[0], int):
        return [()] * arrays[0]
    rows = list(zip(*(a.to_pylist() for a in arrays), strict=True))
    return [tuple("nan" if v != v else v for v in row) for row in rows]  # noqa: PLR0124


HASHED = key_matching.hashed


def colliding(found: Keys, salt: int) -> np.ndarray:
    """All keys alike under the first hashes; one word has a hash of its own under any."""
    exact = len(found.words) == 1 and not found.texts
    return HASHED(found, salt) if exact or salt > 2 else np.zeros(found.n, "u8")


@pytest.mark.law
@given(columns(), st.booleans(), st.booleans())
def test_an_index_is_a_dict(sides: Any, nulls_equal: bool, collide: bool) -> None:
    wanted: dict[Any, list[int]] = {}
    for row, key in enumerate(plain(sides[0])):
        if nulls_equal or None not in key:
            wanted.setdefault(key, []).append(row)
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            patch.setattr(key_matching, "hashed", colliding)
        index = KeyIndex(keys(sides[0], nulls_equal=nulls_equal))
        found = index.find(keys(sides[1], nulls_equal=nulls_equal)).tolist()
    assert (index.salt > 2) <= collide
    for key, group in zip(plain(sides[1]), found, strict=True):
        rows = wanted.get(key, []) if nulls_equal or None not in key else []
        assert (group >= 0) == bool(rows)
        if rows:
            start, count = index.starts[group], index.counts[group]
            assert index.order[start : start + count].tolist() == rows
            assert index.first[group] == rows[0]


@pytest.mark.parametrize("spread", [1, 3, 10**9, 2**45 + 1])
@pytest.mark.parametrize("least", [-(2**63), -7, 2**62])
def test_integers_near_and_far(spread: int, least: int) -> None:
    n = 1000
    right = (least + np.arange(n, dtype=object) * spread).astype("i8")
    index = KeyIndex(keys_of([Vec(right)], n, nulls_equal=False))
    assert index.dense == (spread <= 3)
    assert index.find(keys_of([Vec(right)], n, nulls_equal=False)).size == n
    order = np.random.default_rng(1).permutation(n)
    found = index.find(keys_of([Vec(right[order])], n, nulls_equal=False))
    assert index.first[found].tolist() == order.tolist()
    others = np.concatenate([right + np.int64(1), right - np.int64(1), right ^ np.int64(-1)])
    known = set(right.tolist())
    absent = np.array([v for v in others.tolist() if v not in known], "i8")
    assert (index.find(keys_of([Vec(absent)], len(absent), nulls_equal=False)) == -1).all()
