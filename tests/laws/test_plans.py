"""Law: hundreds of thousands of plans equal the oracle (`make laws`, or `--plans N`).

Each dense pipeline runs as written, optimized, and in a random way with random rules disabled; some
runs are stopped at a random element and resumed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.laws.cases import resumption, violation
from tests.laws.dense import dense

BLOCK = 125  # plans of a test
SAMPLE, ALL = 125, 10_000


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "block" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--plans")
        plans = asked or (ALL if metafunc.config.getoption("--whole") else SAMPLE)
        metafunc.parametrize("block", range(-(-plans // BLOCK)))


def test_dense_pipelines_under_random_policies(block: int, cache: Path) -> None:
    for number in range(block * BLOCK, (block + 1) * BLOCK):
        found = violation(dense(number), cache)
        assert not found, found


def test_dense_pipelines_resumed_anywhere(block: int, cache: Path) -> None:
    for number in range(block * BLOCK, (block + 1) * BLOCK, 10):
        found = resumption(dense(number), cache)
        assert not found, found


def test_a_row_error_that_is_not_met_lets_a_null_come_before_any_element(cache: Path) -> None:
    found = violation(dense(46_284), cache)
    assert not found, found
