"""Test random draws: committed vectors, the re-keyed generator, their distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator, Philox

from dml.kernels.rows import random as random_module
from dml.kernels.rows.random import RowGenerator, layout_is_known, row_key, stream_key, uniform
from dml.testing.scalars import ids
from tests.vectors import make_vectors

WORDS = st.integers(0, 2**64 - 1)

# Random123, kat_vectors, philox 4x64 10: counter, key, output.
KNOWN_ANSWERS = [
    (
        [0, 0, 0, 0],
        [0, 0],
        [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B],
    ),
    (
        [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
        [0x452821E638D01377, 0xBE5466CF34E90C6C],
        [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6],
    ),
]


def fresh(key: int) -> Generator:
    words = np.array([key, ids.mix64(key ^ make_vectors.GOLDEN)], dtype=np.uint64)
    return Generator(Philox(key=words, counter=0))


def some_draws(rng: Generator) -> list[float]:
    return [
        rng.random(),
        float(rng.integers(1000)),
        rng.normal(),
        float(rng.random(dtype=np.float32)),
    ]


def test_vectors_are_what_the_oracle_says() -> None:
    assert make_vectors.read("random") == make_vectors.random_vectors()


def rekeyed(rows: RowGenerator, key: int) -> Generator:
    return next(iter(rows.each(np.array([key], dtype=np.uint64))))


def test_the_engine_gives_the_vectors() -> None:
    vectors = make_vectors.read("random")
    rows = RowGenerator()
    for hi, lo, seed, ordinal, epoch, key in vectors["row_key"]:
        high, low = np.array([hi], dtype=np.uint64), np.array([lo], dtype=np.uint64)
        assert row_key(hi, lo, seed, ordinal, epoch) == key
        assert row_key(high, low, seed, ordinal, epoch).tolist() == [key]
        assert row_key(hi, low, seed, ordinal, epoch).tolist() == [key]
    for key, draw, value in vectors["uniform"]:
        assert uniform(np.array([key], dtype=np.uint64), draw).tolist() == [value]
    for key, first, second in vectors["philox_key"]:
        words = np.array([first, second], dtype=np.uint64)
        assert some_draws(rekeyed(rows, key)) == some_draws(Generator(Philox(key=words, counter=0)))


@given(WORDS, WORDS, WORDS, st.integers(0, 99), st.integers(0, 2**40))
def test_row_keys_equal_the_oracle(hi: int, lo: int, seed: int, ordinal: int, epoch: int) -> None:
    expected = ids.row_key(hi, lo, seed, ordinal, epoch)
    assert row_key(hi, lo, seed, ordinal, epoch) == expected
    keys = np.array([expected], dtype=np.uint64)
    assert uniform(keys, 3)[0] == ids.uniform(expected, 3)


def test_each_part_of_the_key_matters() -> None:
    parts = [1, 2, 3]
    changed = [
        [value + (place == other) for place, value in enumerate(parts)] for other in range(3)
    ]
    assert len({stream_key(*parts), *(stream_key(*each) for each in changed)}) == 4


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    number = sum(word << 64 * place for place, word in enumerate(counter))
    # NumPy counts up before it draws.
    before = (number - 1) % 2**256
    words = [(before >> 64 * place) & (2**64 - 1) for place in range(4)]
    philox = Philox(key=np.array(key, dtype=np.uint64), counter=np.array(words, dtype=np.uint64))
    assert philox.random_raw(4).tolist() == expected


def test_the_state_is_rewritten_in_memory_here() -> None:
    assert layout_is_known()


@pytest.mark.law
@given(st.lists(WORDS, min_size=1, max_size=8))
def test_a_rekeyed_generator_is_a_fresh_one(keys: list[int]) -> None:
    rows = RowGenerator()
    for key in keys:
        assert some_draws(rekeyed(rows, key)) == some_draws(fresh(key))
    draws = [some_draws(rng) for rng in rows.each(np.array(keys, dtype=np.uint64))]
    assert draws == [some_draws(fresh(key)) for key in keys]


def test_an_unknown_layout_falls_back_to_the_official_setter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random_module, "layout_is_known", lambda: False)
    rows = RowGenerator()
    for key in (0, 5, 2**64 - 1):
        assert some_draws(rekeyed(rows, key)) == some_draws(fresh(key))


def test_two_loops_do_not_disturb_each_other() -> None:
    keys = np.arange(4, dtype=np.uint64)
    both = zip(RowGenerator().each(keys), RowGenerator().each(keys), strict=True)
    for key, (one, other) in enumerate(both):
        assert one is not other
        assert some_draws(one) == some_draws(other) == some_draws(fresh(key))


def test_draws_fill_the_unit_interval_evenly() -> None:
    keys = row_key(1, np.arange(40_000, dtype=np.uint64), seed=0, ordinal=0, epoch=0)
    for draw in range(3):
        values = uniform(keys, draw)
        assert values.min() >= 0
        assert values.max() < 1
        counts = np.bincount((values * 64).astype(int), minlength=64)
        chi_square = ((counts - 625.0) ** 2 / 625.0).sum()
        assert 25 < chi_square < 120  # 63 degrees of freedom: one in 10**5 outside
    pairs = np.corrcoef(uniform(keys, 0), uniform(keys, 1))[0, 1]
    assert abs(pairs) < 0.025
