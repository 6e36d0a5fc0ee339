"""Law: the engine gives the bits of the oracle, for random pipelines and policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

from dml.testing.draws import Drawn
from dml.testing.equality import difference
from dml.testing.executions import PLAIN, elements, outcome
from dml.testing.meanings import MEANINGS
from dml.testing.oracle import Oracle
from dml.testing.strategies import Coverage, pipelines
from dml.testing.strategies_data import DataPool
from tests.laws.cases import COVERAGE, case, resumption, violation
from tests.sampling import amount

BLOCK = 40  # pipelines per test, so that a failure is found early and nothing runs into a timeout
SAMPLE_BLOCKS, ALL_BLOCKS = 2, 500


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "block" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        metafunc.parametrize("block", range(ALL_BLOCKS if whole else SAMPLE_BLOCKS))


def test_random_pipelines_under_random_policies(block: int, pool: DataPool, cache: Path) -> None:
    for number in range(block * BLOCK, (block + 1) * BLOCK):
        one = case(number, pool)
        wanted = one.wanted()
        COVERAGE.add(one.drawn, wanted.error)
        found = violation(one, cache, wanted)
        assert not found, found


def test_random_pipelines_in_compiled_kernels(
    pool: DataPool, cache: Path, many: Callable[[int, int], int]
) -> None:
    for number in range(1_000_000, 1_000_000 + many(2, 200)):
        found = violation(case(number, pool, compiled=1.0), cache)
        assert not found, found


@pytest.mark.parametrize("fifth", range(5))
def test_random_pipelines_resumed_anywhere(
    pool: DataPool, cache: Path, many: Callable[[int, int], int], fifth: int
) -> None:
    for number in range(4_000_000 + fifth, 4_000_000 + many(35, 3000), 5):
        found = resumption(case(number, pool), cache)
        assert not found, found


def test_the_draw_covers_what_it_should(pool: DataPool) -> None:
    coverage = Coverage()
    for number in range(400):
        coverage.add(case(number, pool).drawn, "")
    median = [sorted(n)[200] for n in (coverage.lengths, coverage.files, coverage.atoms)]
    assert median[0] >= 6
    assert median[1] >= 3
    assert median[2] >= 10
    assert set(coverage.operators) == {each.operator.__name__ for each in MEANINGS}
    hurtful = {"NaN", "-0.0", "inf", "null", "integer limit", "empty text", "empty file", "no rows"}
    assert set(coverage.values) == hurtful


def test_what_hypothesis_draws_and_shrinks(pool: DataPool, cache: Path) -> None:
    @settings(max_examples=amount(10, 30))
    @given(pipelines(pool))
    def holds(drawn: Drawn) -> None:
        node = drawn.dataset._node
        wanted = outcome(Oracle(node).elements())
        found = difference(outcome(elements(node, PLAIN, cache)), wanted, optimized=True)
        assert not found, found

    holds()
