"""Options and fixtures of all tests: the size of test matrices, and the cache folders."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from dml.api.dataset import Dataset
    from dml.exec.memory.slice_gauge import Begun
    from tests.verify.planting import Sure

Case = TypeVar("Case")

SAMPLE_SEED = 20260101  # the sample is the same in every run until somebody changes this number
FEW = 2  # cases of a test function under `make check`

# Threads take turns as often as tests/shaking.py asks for.
sys.setswitchinterval(float(os.environ.get("SWITCH_INTERVAL_S", sys.getswitchinterval())))

settings.register_profile(
    "sample",
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "whole",
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run long matrices whole, not a sample")
    parser.addoption("--few", action="store_true", help=f"{FEW} cases of each test function")
    parser.addoption("--plans", type=int, default=0, help="random plans to hold to the oracle")
    parser.addoption("--update-plans", action="store_true", help="rewrite tests/plans/*.txt")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep ``FEW`` cases of each test function, or as many as ``@pytest.mark.sample`` says."""
    if config.getoption("--whole"):
        return
    few = bool(config.getoption("--few"))
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in sorted(items, key=lambda each: each.nodeid):
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = {each for some in cases.values() for each in _drawn(some, few=few)}
    config.hook.pytest_deselected(items=[each for each in items if each not in kept])
    items[:] = [each for each in items if each in kept]


def _drawn(cases: Sequence[pytest.Item], *, few: bool) -> list[pytest.Item]:
    """Return a sample of the cases of a function; with several parameters, all their values."""
    marker = cases[0].get_closest_marker("sample")
    count = FEW if few else len(cases) if marker is None else marker.args[0]
    shuffled = random.Random(SAMPLE_SEED).sample(cases, len(cases))
    if count >= len(cases) or few:
        return shuffled[:count]
    seen, kept, others = set[tuple[str, int]](), list[pytest.Item](), list[pytest.Item]()
    for case in shuffled:
        values = set(case.callspec.indices.items())  # type: ignore[attr-defined]
        (kept if values - seen else others).append(case)
        seen |= values
    return (kept + others)[:count]


def pytest_collection_finish() -> None:
    """Thousands of tests and the libraries that they load are there to stay.

    Tests that ask what is garbage collect several times, and would look at all of it each time.
    """
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("whole" if config.getoption("--whole") else "sample")
    # Nothing a test does may touch the caches of the person who runs it; compiled kernels are
    # kept from run to run, since compiling them again would be most of the time.
    own = config.rootpath / ".pytest_cache" / "xdg"
    # A shell that runs tests in the background has it ignored, by them and by what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["DML_TRACEBACK"] = "full"  # where a test fails, dml's lines are what matters
    for kind in ("CACHE", "STATE", "DATA", "CONFIG"):
        os.environ[f"XDG_{kind}_HOME"] = str(own / kind.lower())


@pytest.fixture
def whole(request: pytest.FixtureRequest) -> bool:
    """True under `make test-all`: run every case, not a sample."""
    return bool(request.config.getoption("--whole"))


@pytest.fixture
def sampled(whole: bool) -> Callable[[Iterable[Case], int], list[Case]]:
    """`sampled(cases, n)`: n cases drawn with a fixed seed, or all of them when run whole."""

    def draw(cases: Iterable[Case], n: int) -> list[Case]:
        every = list(cases)
        if whole or n >= len(every):
            return every
        return random.Random(SAMPLE_SEED).sample(every, n)

    return draw


@pytest.fixture
def sure(tmp_path: Path) -> Sure:
    """Options of a run that checks itself, in the caller's thread."""

    def made(ds: Dataset, **options: Any) -> Dataset:
        where = {"verify_dir": str(tmp_path / "bundles"), "telemetry_dir": "off"}
        return ds.with_options(**{"verify": "sample", "executor": "sync", **where, **options})

    return made


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stored rows are computed again: calls of functions are counted."""
    monkeypatch.setattr("dml.api.run_storage.checked", lambda _: False)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices in this process take nothing beside what is accounted for.

    What is measured is the process's, which other tests' libraries and threads share: a law of what
    the accounts say in bytes cannot rest on it. `test_slice_gauge.py` is about the measure itself.
    """
    from dml.exec.memory.slice_gauge import Gauge

    end = Gauge.end

    def uncounted(gauge: Gauge, begun: Begun) -> int:
        end(gauge, begun)
        return 0

    monkeypatch.setattr(Gauge, "end", uncounted)
