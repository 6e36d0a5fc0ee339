"""This file gives the laws their data: one pool of data sets, one cache of compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dml.testing.pipelines import write_data
from dml.testing.strategies_data import Pool
from tests.laws.cases import COVERAGE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COVERAGE.lengths:
        terminalreporter.section("random pipelines")
        terminalreporter.write_line(COVERAGE.text())


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """Forty sets of files."""
    return Pool(tmp_path_factory.mktemp("pool"))


@pytest.fixture(scope="session")
def cache(pytestconfig: pytest.Config) -> Path:
    """Where compiled kernels are kept between runs."""
    return pytestconfig.rootpath / ".pytest_cache" / "xdg" / "kernels"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the named pipelines read."""
    return write_data(tmp_path_factory.mktemp("named"))


@pytest.fixture
def many(whole: bool) -> Callable[[int, int], int]:
    """`many(sample, all)`: how many cases to try."""
    return lambda sample, every: every if whole else sample
