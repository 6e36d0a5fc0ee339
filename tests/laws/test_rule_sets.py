"""Law: rules that are not loaded for a pipeline would not have changed it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dml.optimize import phases
from dml.optimize.explain.stations import rules_text
from dml.optimize.phases import RULE_SETS, optimize
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case
from tests.laws.dense import dense

pytestmark = pytest.mark.law


@pytest.mark.sample(3)
@pytest.mark.parametrize("fifth", range(5))
def test_rules_that_are_not_loaded_would_not_apply(
    pool: DataPool, many: Callable[[int, int], int], fifth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = tuple((lambda _: True, loaded) for _, loaded in RULE_SETS)
    for number in range(fifth, many(400, 20_000), 5):
        for node in (dense(number).node, case(number, pool).node):
            some = optimize(node, 0)
            with monkeypatch.context() as patched:
                patched.setattr(phases, "RULE_SETS", always)
                every = optimize(node, 0)
            assert rules_text(some, micros=False) == rules_text(every, micros=False)
            assert (some.chosen, some.normalized) == (every.chosen, every.normalized)
