"""Fixtures of the laws: one pool of data sets, and one folder for caches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dml.cache.parts import parts
from dml.testing.pipelines import write_data
from dml.testing.strategies_data import DataPool
from tests.laws.cases import COVERAGE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COVERAGE.lengths:
        terminalreporter.section("random pipelines")
        terminalreporter.write_line(COVERAGE.text())


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> DataPool:
    """Forty sets of files."""
    return DataPool(tmp_path_factory.mktemp("pool"))


@pytest.fixture(scope="session")
def cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled kernels, which are kept between runs, and stores, which end with this process.

    Rows that an older version of the code has stored would be found by a later one.
    """
    name = f"kernels-{os.geteuid()}"
    kernels = pytestconfig.rootpath / ".pytest_cache" / "xdg" / name
    kernels.mkdir(parents=True, exist_ok=True)
    made = tmp_path_factory.mktemp("cache")
    (made / name).symlink_to(kernels)
    yield made
    shutil.rmtree(made, ignore_errors=True)  # a thread that was left behind may still write


@pytest.fixture(scope="module", autouse=True)
def _hasty() -> Iterator[None]:
    """Nobody waits for long for parts that another makes: how long is a choice, not a law."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "REST_S", 0.02)
        patch.setattr(parts, "POLL_S", 0.01)
        yield


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the named pipelines read."""
    return write_data(tmp_path_factory.mktemp("named"))


@pytest.fixture
def many(whole: bool) -> Callable[[int, int], int]:
    """`many(sample, all)`: how many cases to try."""
    return lambda sample, every: every if whole else sample
