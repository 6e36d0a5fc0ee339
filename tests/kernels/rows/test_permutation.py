"""Test permutations: committed vectors, inverses, and uniform distribution."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels.rows.permutation import (
    COUNTED_LEAST,
    EXPLICIT_MOST,
    IndexPermutation,
    ascending,
    window_permutation,
)
from dml.testing.scalars import ids
from tests.vectors import make_vectors

KEYS = st.integers(0, 2**64 - 1)


def test_vectors_are_what_the_oracle_says() -> None:
    assert make_vectors.read("permutation") == make_vectors.permutation_vectors()


def test_the_engine_gives_the_vectors() -> None:
    vectors = make_vectors.read("permutation")
    for key, n, order in vectors["window"]:
        assert window_permutation(key, n).tolist() == order
    for n, key, cases in vectors["index"]:
        permutation = IndexPermutation(n, key)
        places, elements = np.array(cases).T
        assert permutation.forward(places).tolist() == elements.tolist()
        assert permutation.inverse(elements).tolist() == places.tolist()


@given(KEYS, st.integers(0, 300))
def test_windows_are_permutations_and_equal_the_oracle(key: int, n: int) -> None:
    order = window_permutation(key, n)
    assert sorted(order.tolist()) == list(range(n))
    assert order.tolist() == ids.window_permutation(key, n)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 1000, 4096, 4097, 5000, 16_384, 16_385, 70_000])
@pytest.mark.parametrize("key", [0, 2**64 - 1])
def test_every_index_is_met_once_and_found_again(n: int, key: int) -> None:
    permutation = IndexPermutation(n, key)
    places = np.arange(n)
    elements = permutation.forward(places)
    assert len(permutation) == n
    assert elements.dtype == np.int64
    assert np.array_equal(np.sort(elements), places)
    assert np.array_equal(permutation.inverse(elements), places)


@pytest.mark.law
@given(KEYS, st.integers(EXPLICIT_MOST + 1, 2**62), st.data())
def test_large_permutations_invert_and_equal_the_oracle(
    key: int, n: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4))
    permutation = IndexPermutation(n, key)
    elements = permutation.forward(np.array(places))
    assert elements.tolist() == [ids.index_permutation(n, key, place) for place in places]
    assert permutation.inverse(elements).tolist() == places


def test_what_lies_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        IndexPermutation(2**62 + 1, 0)
    for index in (-1, 5):
        with pytest.raises(IndexError):
            IndexPermutation(5, 0).forward(np.array([index]))
    assert IndexPermutation(0, 0).forward(np.array([], dtype=np.int64)).size == 0


@pytest.mark.law
def test_all_orders_of_four_are_equally_likely() -> None:
    seen = Counter(tuple(window_permutation(key * 77, 4).tolist()) for key in range(12_000))
    assert len(seen) == 24
    chi_square = sum((count - 500.0) ** 2 / 500.0 for count in seen.values())
    assert 5 < chi_square < 60  # 23 degrees of freedom


@pytest.mark.law
def test_a_network_spreads_every_place_evenly() -> None:
    n, cells = EXPLICIT_MOST + 4, 41
    places = np.array([0, 1, n - 1])
    landed = np.array([IndexPermutation(n, key).forward(places) for key in range(4100)])
    for column in landed.T:
        counts = np.bincount(column * cells // n, minlength=cells)
        chi_square = ((counts - 100.0) ** 2 / 100.0).sum()
        assert 12 < chi_square < 90  # 40 degrees of freedom


def test_neighbours_do_not_stay_neighbours() -> None:
    n = 20_000
    steps = np.diff(IndexPermutation(n, 3).forward(np.arange(n)))
    assert (np.abs(steps) == 1).sum() < 12  # two are expected
    assert abs(np.corrcoef(np.arange(n - 1), steps)[0, 1]) < 0.03


@pytest.mark.law
@given(KEYS, st.integers(COUNTED_LEAST - 2, 3 * COUNTED_LEAST), st.sampled_from([0, 16, 40, 62]))
def test_counted_keys_are_in_the_order_of_compared_ones(seed: int, n: int, shift: int) -> None:
    keys = np.random.default_rng(seed).permutation(
        np.unique(
            np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64) >> np.uint64(shift)
        )
    )
    assert ascending(keys).tolist() == np.argsort(keys).tolist()


def test_keys_that_differ_in_their_last_bits_alone_are_compared() -> None:
    keys = np.arange(2 * COUNTED_LEAST, dtype=np.uint64)[::-1].copy()
    assert ascending(keys).tolist() == list(range(2 * COUNTED_LEAST - 1, -1, -1))
