"""Law: runs that check themselves raise no false alarm, and detect planted rules."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dml.api.dataset import Dataset
from dml.errors import NullValueError, VerificationWarning
from dml.optimize import phases
from dml.optimize.rule import Rule
from dml.testing.equality import difference
from dml.testing.executions import outcome
from dml.testing.strategies_data import DataPool
from tests.laws.cases import Case, case
from tests.laws.test_planted_laws import LAWS, fired, known
from tests.sampling import amount

# Of a law, so many pipelines in which it fires are run.
TRIED = 40


def checked(one: Case, folder: Path, **options: Any) -> Dataset:
    """The pipeline as a run that compares all it can."""
    draw = random.Random(one.number)
    where = {"telemetry_dir": "off", "verify_dir": str(folder), "executor": "sync"}
    sizes = {"target_partition_bytes": draw.choice([1, 300, 4096, 1 << 20])}
    given = {"verify": "sample", "kernels": "numpy", "seed": one.seed, **where, **sizes, **options}
    return one.drawn.dataset.with_options(**given).epoch(one.epoch)


@pytest.mark.law
def test_random_pipelines_raise_no_false_alarm(
    pool: DataPool, tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    """A warning would be an error here."""
    compared = 0
    for number in range(9_000_000, 9_000_000 + many(40, 10_000)):
        one = case(number, pool)
        ds = checked(one, tmp_path)
        try:
            got = outcome(iter(ds))
        except NullValueError:
            continue  # statistics show it before anything is read
        compared += ds.stats().summary["verified"]
        found = difference(got, one.wanted(), optimized=True)
        assert not found, f"case {number}: {found}"
    assert compared > many(20, 5000)


@pytest.mark.law
@pytest.mark.parametrize("rule", LAWS[amount(4, 0) :: amount(5, 1)], ids=lambda rule: rule.name)
def test_planted_law_is_found_in_a_run(
    rule: Rule, monkeypatch: pytest.MonkeyPatch, pool: DataPool, tmp_path: Path
) -> None:
    monkeypatch.setattr(phases, "SHAPES", (rule, *phases.SHAPES))
    numbers = islice(fired(pool, rule.name), TRIED)
    assert any(_found(number, pool, tmp_path) for number in numbers)


def _found(number: int, pool: DataPool, folder: Path) -> bool:
    """True if a run of the case warned; then what it handed out is what the oracle says."""
    one, wanted = known(number, pool)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            got = outcome(iter(checked(one, folder)))
        except Exception:  # noqa: BLE001 - a planted law may break the optimizer itself
            return False
    found = any(each.category is VerificationWarning for each in caught)
    if found and not got.error:
        assert not difference(got, wanted, optimized=False), f"case {number}"
    return found
