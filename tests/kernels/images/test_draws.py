"""Test random parts of images: their law, and that no library's rounding decides them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dml.kernels.images.draws import area_box, exponential
from dml.kernels.rows.row_draws import RowDraws

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


@pytest.mark.parametrize("x", [0.0, 1e-9, -0.2876820724517809, 0.28768207245178085, 0.7, -1.2, 3.0])
def test_the_exponential_is_exact_to_the_last_bits(x: float) -> None:
    assert exponential(x) == pytest.approx(math.exp(x), rel=4e-16 * max(1, 4 * abs(x)))


def test_numbers_are_uniform_and_differ_by_draw() -> None:
    found = [RowDraws(n / 512).uniform() for n in range(512)]
    assert len(set(found)) == 512
    assert 0.45 < np.mean(found) < 0.55
    one = RowDraws(0.25)
    assert len({one.uniform() for _ in range(100)}) == 100
    assert {RowDraws(n / 999).integer(2) for n in range(99)} == {0, 1, 2}
    assert RowDraws(0.5).integer(0) == 0


@pytest.mark.parametrize("shape", [(375, 500, 3), (10, 3, 3), (1, 1, 1), (3, 400, 1)])
def test_a_random_part_lies_inside(shape: tuple[int, int, int]) -> None:
    for number in range(300):
        top, left, height, width = area_box(shape, RowDraws(number / 300), SCALE, RATIO)
        assert min(top, left) >= 0
        assert min(height, width) > 0
        assert top + height <= shape[0]
        assert left + width <= shape[1]


def test_areas_and_ratios_follow_their_law() -> None:
    boxes = [area_box((1000, 1000), RowDraws(n / 4000), SCALE, RATIO) for n in range(4000)]
    shares = np.array([height * width / 1e6 for _, _, height, width in boxes])
    ratios = np.log([width / height for _, _, height, width in boxes])
    assert 0.45 < shares.mean() < 0.5  # large parts fit less often
    assert shares.min() > 0.079
    assert abs(ratios.mean()) < 0.02
    assert ratios.max() < math.log(4 / 3) + 0.01


def test_if_nothing_fits_the_middle_is_taken() -> None:
    assert area_box((10, 1000), RowDraws(0.3), (1.0, 1.0), RATIO) == (0, 493, 10, 13)
    assert area_box((1000, 10), RowDraws(0.3), (1.0, 1.0), RATIO) == (493, 0, 13, 10)
